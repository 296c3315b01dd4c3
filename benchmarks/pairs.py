"""Draw both sides of contradictions between papers and code, and fill docs/paper-and-code.md.

    fl-lightning table benchmarks/neutral/pairs.yaml --data-dir FOLDER --runs runs/neutral/pairs
    python benchmarks/pairs.py runs/neutral/pairs
    python benchmarks/pairs.py

The second command keeps the curves of the runs in benchmarks/neutral/pairs.csv; the third draws
what is kept.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
from pandas import DataFrame, Series, concat, read_csv

from fl_lightning.cli.recipes import recipes
from fl_lightning.lab.report import Run
from fl_lightning.lab.report.comparison import format_value
from fl_lightning.lab.sweep.plan import plan
from fl_lightning.lab.sweep.table_file import TableFile

FOLDER = Path(__file__).parent / "neutral"
CURVES = FOLDER / "pairs.csv"
DOCS = FOLDER.parents[1] / "docs"
PAGE = DOCS / "paper-and-code.md"
TABLE = TableFile.read(str(FOLDER / "pairs.yaml"))
SIDES = "paper", "code"
SHOWN, TAIL = 10, 5
BEGIN, END = "<!-- pairs: made by benchmarks/pairs.py -->\n", "<!-- end of pairs -->"


class Pair(NamedTuple):
    """A contradiction with its accuracies, (round, seed) in percent, by side."""

    method: str
    option: str
    curves: dict[str, DataFrame]

    def value(self, side: str) -> str:
        """The value of the option."""
        row = TABLE.rows[f"{self.method}, {self.option}, {side}"]
        return format_value(row[f"algorithm.{self.option}"])

    def last(self, side: str) -> str:
        """Mean and deviation over the seeds of the last evaluations."""
        of_seeds = self.curves[side].tail(TAIL).mean()
        return f"{of_seeds.mean():.2f} ± {of_seeds.std():.2f}"

    @property
    def differences(self) -> "Series[float]":
        """Paper minus code in the last evaluations, by seed."""
        paper, code = (self.curves[side].tail(TAIL).mean() for side in SIDES)
        return (paper - code).dropna()

    @property
    def size(self) -> float:
        """The absolute mean difference."""
        return float(abs(self.differences.mean()))


def collect(runs: Path) -> DataFrame:
    """The test accuracies of the finished runs in a folder."""
    frames = []
    for job in plan(TABLE, recipes()[TABLE.recipe], runs):
        if job.state == "finished":
            values = Run.read(job.folder).metrics["test/accuracy"].dropna().round(4)
            for cell in job.cells:  # the default of several contradictions is one run
                place = {"row": cell.row, "seed": job.config["seed"]}
                frames.append(DataFrame({**place, "round": values.index, "accuracy": [*values]}))
    return concat(frames)


def pairs(curves: DataFrame) -> list[Pair]:
    """The contradictions of which both sides have run by now, the largest first."""
    by_row = {
        str(row): 100 * of.pivot_table("accuracy", "round", "seed")
        for row, of in curves.groupby("row")
    }
    found = []
    for method, option in dict.fromkeys(tuple(row.split(", ")[:2]) for row in TABLE.rows):
        rows = [f"{method}, {option}, {side}" for side in SIDES]
        if all(row in by_row for row in rows):
            sides = dict(zip(SIDES, (by_row[row] for row in rows), strict=True))
            found.append(Pair(method, option, sides))
    return sorted(found, key=lambda pair: -pair.size)


def draw(shown: list[Pair]) -> None:
    """A panel for each of the largest, both sides by round."""
    matplotlib.rcParams["svg.hashsalt"] = PAGE.stem  # equal bytes each time
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    panels = [*figure.subplots(2, SHOWN // 2).flat]
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, pair in zip(panels, shown, strict=False):
        for side, color in zip(SIDES, ("#0072B2", "#D55E00"), strict=True):
            mean, spread = pair.curves[side].mean(axis=1), pair.curves[side].std(axis=1)
            axes.plot(mean.index, mean, color=color, label=f"{side}: {pair.value(side)}")
            axes.fill_between(mean.index, mean - spread, mean + spread, color=color, alpha=0.18)
        axes.set_title(f"{pair.method}: {pair.option}", fontsize=10)
        axes.legend(fontsize=8, frameon=False, loc="lower right")
        axes.grid(alpha=0.25)
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("test accuracy, %", fontsize=10)
    figure.savefig(DOCS / "paper-and-code.svg", metadata={"Date": None})


def table(found: list[Pair]) -> str:
    """The last accuracies of both sides, and their difference within the seeds."""
    lines = ["| method | option | paper | code | paper minus code |", "|---" * 5 + "|"]
    for pair in found:
        points = pair.differences
        cells = [
            f"`{pair.method}`",
            f"`{pair.option}`",
            *(f"{pair.last(side)} (`{pair.value(side)}`)" for side in SIDES),
            f"{points.mean():+.2f} ± {points.std():.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Keep the curves of the folder that is given, and draw."""
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1])).to_csv(CURVES, index=False)
    found = pairs(read_csv(CURVES))
    draw(found[:SHOWN])
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}")


if __name__ == "__main__":
    main()
