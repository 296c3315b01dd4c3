"""The pages of the papers, written from the presets, their comments and benchmarks/reproduced/."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from citations import titles
from evidence import cells
from markdown.extensions.toc import slugify
from method_pages import table
from pandas import DataFrame, read_csv

from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli.config_files import read_chain
from fl_lightning.lab.report import score
from fl_lightning.lab.sweep.table_file import TableFile

ROOT = Path(__file__).parents[1]
PRESETS = ROOT / "recipes" / "presets"
REPRODUCED = ROOT / "benchmarks" / "reproduced.md"
INTRODUCTION, *SECTIONS = re.split(r"^## ", (PRESETS / "README.md").read_text(), flags=re.M)
PAPERS = {text.partition("\n")[0]: text.partition("\n")[2].strip() for text in SECTIONS}
"""What the presets' README says of each paper, by its method."""

CONDITIONS = (
    "The hours of a table are the time of its gradients in plain PyTorch, on one core of an AMD "
    "EPYC. Batches, steps and evaluations are not counted (`python benchmarks/paper_hours.py`)."
)
"""How the hours on the pages were found."""


def pages() -> dict[str, str]:
    """All pages, in Markdown, by path."""
    return {"papers/index.md": index()} | {path(paper): page(paper) for paper in PAPERS}


def path(paper: str) -> str:
    """Where the site has the page of a paper."""
    return f"papers/{paper.lower()}.md"


def tables(paper: str) -> list[TableFile]:
    """The tables of a paper with published numbers; other files are read after a table's."""
    files = sorted((PRESETS / paper.lower()).glob("*.yaml"), key=lambda file: natural(file.stem))
    names = [f"{paper.lower()}/{file.stem}" for file in files if "published:" in file.read_text()]
    return [TableFile.read(name) for name in names]


@cache
def hours() -> DataFrame:
    """The gradients of each table, and their hours on one core, by `benchmarks/paper_hours.py`."""
    return read_csv(ROOT / "docs" / "paper_hours.csv", index_col="table")


def natural(name: str) -> tuple[str, int]:
    """`table10` after `table2`."""
    word, number = re.findall(r"^(\D+)(\d*)", name)[0]
    return word, int(number or 0)


def index() -> str:
    """The list of the papers."""
    rows = []
    for paper, text in PAPERS.items():
        found = tables(paper)
        numbers = sum(len(row) for t in found for of in t.published.values() for row in of.values())
        ours = ", ".join(f"[{title}]({link})" for title, link in reproductions(paper))
        source = text.partition("\n")[0]
        rows.append((f"[{paper}]({paper.lower()}.md)", source, str(len(found)), str(numbers), ours))
    heads = "paper", "source", "tables", "published numbers", "ours beside them"
    introduction = INTRODUCTION.partition("\n")[2]
    return "\n".join(["# Papers", "", *table(heads, rows), "", introduction, "", CONDITIONS])


def page(paper: str) -> str:
    """The page of one paper: its items with their commands, then a section for each table."""
    text = PAPERS[paper]
    links = re.findall(r"\((https?://[^)]+)\)", text)
    lines = [f"# {paper}", "", *(f"*{titles()[link]}*" for link in links[:1]), "", text, ""]
    if found := reproductions(paper):
        lines += ["Reproduced so far:", "", *(f"- [{title}]({link})" for title, link in found), ""]
    for one in tables(paper):
        lines += section(one)
    return "\n".join(lines)


def section(of: TableFile) -> Iterator[str]:
    """A table: its command, its size, what it leaves open, its published numbers."""
    folder, _, stem = of.name.partition("/")
    word, number = natural(stem)
    part = stem.removeprefix(f"{word}{number}").replace("_", " ")
    heading, left_open = comment(PRESETS / folder / f"{stem}.yaml")
    yield from (f"## {word.title()} {number}{part}", "", heading, "")
    yield from ("```sh", f"fl-lightning table {of.name}", "```", "")
    tried = sum(len(of.tried(row, column)) for row in of.rows for column in of.column_labels)
    runs = tried * len(of.seeds)
    files = [*read_chain(of.name)]
    rounds = [str(content["rounds"]) for content in files if "rounds" in content]
    stops = any("stopping_threshold" in str(content.get("callback")) for content in files)
    size = f"{len(of.rows)} rows, {len(of.column_labels)} columns: {runs:,} runs"
    size += f"; {rounds[-1]} rounds as it stands." if rounds else "."
    gradients, of_core = (float(f"{n:.2g}") for n in hours().loc[of.name, ["gradients", "hours"]])
    million = f"{gradients / 1e6:,g} million gradients"
    of_core = f"{'at most' if stops else 'about'} {of_core:,g} hours of one CPU core"
    yield from (f"{size} {million}, {of_core}.", "")
    if left_open:
        yield from ('??? note "What is left open, and what was chosen"', "")
        yield from (f"    {line}" for line in left_open.splitlines())
        yield ""
    for name, published in of.published.items():
        ours = cells(of.name, name)
        said = "ours in bold, then the published number" if ours else "published"
        digits = score(name).digits
        yield from (f"{score(name).name}, {said}:", "")
        yield from (*numbers(of, published, ours, digits), "")


def numbers(
    of: TableFile,
    published: Mapping[str, Mapping[str, float]],
    ours: Mapping[tuple[str, str], float],
    digits: int,
) -> list[str]:
    """Published numbers, and ours where there are any."""

    def cell(row: str, column: str) -> str:
        theirs = f"{published[row][column]:.{digits}f}" if column in published[row] else ""
        mine = f"**{ours[row, column]:.{digits}f}** " if (row, column) in ours else ""
        return mine + theirs

    shown = [c for c in of.column_labels if any(c in row for row in published.values())]
    rows = [(linked(row), *(cell(row, column) for column in shown)) for row in published]
    return table(("method", *(column or "value" for column in shown)), rows)


def linked(row: str) -> str:
    """A row's label, with a link if it is a method."""
    return f"[{row}](../methods/{row}.md)" if row in ALGORITHMS else row


def comment(file: Path) -> tuple[str, str]:
    """The first sentence of the comment that heads a preset, and the rest in Markdown."""
    lines = re.match(r"(#.*\n)*", file.read_text())[0].splitlines()  # type: ignore[index]
    first, _, rest = "\n".join(line[2:] for line in lines).partition("\n\n")
    if not rest:  # a list may follow at once
        first, _, rest = first.partition("\n- ")
        rest = rest and f"- {rest}"
    return " ".join(first.split()), re.sub(r":\n- ", ":\n\n- ", rest)


def reproductions(paper: str) -> list[tuple[str, str]]:
    """The sections of benchmarks/reproduced.md on a paper: title and link."""
    titles = re.findall(rf"^## ({paper}\b.*)", REPRODUCED.read_text(), re.M)
    return [(t.partition(":")[0], f"../benchmarks/reproduced.md#{slugify(t, '-')}") for t in titles]
