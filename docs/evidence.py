"""What backs a method: recordings, the paper's equations, published numbers."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pandas import read_csv

from fl_lightning import algorithms
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.lab.sweep.table_file import TableFile

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "tests" / "golden"
OWN_READING = "fedtoga"
"""The recordings that come from no released code, by the first word of their names."""


@cache
def recordings() -> dict[str, list[str]]:
    """The repositories whose recorded trajectories each method replays, one entry a recording.

    A method that replays one by a term of the tests' own, and by no option, does not count.
    """
    sys.path.append(str(ROOT / "tests" / "helpers"))
    from golden_families import set_up  # needs the helpers' folder

    found: dict[str, list[str]] = {name: [] for name in ALGORITHMS}
    for file in sorted(RECORDINGS.glob("*-*.npz")):
        prefix = file.stem.partition("-")[0]
        if prefix == OWN_READING:
            continue
        with noted() as made:
            terms = set_up(file)[0].algorithm.terms
        offered = all(type(term).__module__.startswith("fl_lightning.") for term in terms)
        for name in made[:1] if offered else ():  # none is made of a variant that has no name
            found[name].append(repositories()[prefix])
    return found


@contextmanager
def noted() -> Iterator[list[str]]:
    """The names of the methods that are made meanwhile."""
    made: list[str] = []

    def noting(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(make)
        def call(*args: Any, **options: Any) -> Any:
            made.append(name)
            return make(*args, **options)

        return call

    with patch.multiple(algorithms, **{n: noting(n, make) for n, make in ALGORITHMS.items()}):
        yield made


@cache
def repositories() -> dict[str, str]:
    """The repository of each first word of a recording's name, from the recordings' README."""
    text = (RECORDINGS / "README.md").read_text()
    rows = re.findall(r"^\| ([\w, ]+) \| (.+?) \|$", text, re.M)
    return {
        prefix: name
        for prefixes, names in rows
        for prefix, name in zip(
            prefixes.split(", "), re.findall(r"[\w-]+/[\w-]*\w", names), strict=False
        )
    }


@cache
def equations() -> set[str]:
    """The headings of the methods that equal their papers' equations in docs/who-is-right.md."""
    page = (ROOT / "docs" / "who-is-right.md").read_text()
    return set(re.findall(r"^\| ([^|]+) \| equal, ", page, re.M))


OURS = {
    ("fedssg/table4", "last:50"): ("fedssg_table4", "last_50"),
    ("fedssg/table5", "rounds_to:97"): ("fedssg_table4", "rounds_to_97"),
    ("fedavg/table1", "rounds_to:97"): ("fedavg_table1", "rounds_to_97"),
}
"""The file in benchmarks/reproduced/ and its column that have our numbers of a table and score."""


def cells(table: str, score: str) -> dict[tuple[str, str], float]:
    """Our numbers of a published table, means over seeds, by row and column."""
    if (table, score) not in OURS:
        return {}
    file, column = OURS[table, score]
    ours = read_csv(ROOT / "benchmarks" / "reproduced" / f"{file}.csv")
    return dict(ours.groupby(["method", "column"])[column].mean())


@cache
def reproduced() -> dict[str, tuple[int, float]]:
    """How many cells of FedSSG's Table 4 a method has, and their mean distance to the published."""
    name = "fedssg/table4", "last:50"
    published, distances = TableFile.read(name[0]).published[name[1]], dict[str, list[float]]()
    for (method, column), ours in cells(*name).items():
        distances.setdefault(method, []).append(abs(ours - published[method][column]))
    return {method: (len(all_), sum(all_) / len(all_)) for method, all_ in distances.items()}
