"""A method's test accuracy on the digits beside FedAvg's, as a picture of the page's colors."""

from functools import cache
from pathlib import Path

from pandas import DataFrame, Series, read_csv

FILE = Path(__file__).with_name("digits.csv")
"""Accuracies by round; `benchmarks/digits_curves.py` writes it."""

OWN = Path(__file__).with_name("digits_own.csv")
"""The same of clients' own models: means over the clients."""

BASE = "fedavg"
WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT = 640, 230, 56, 28, 20
LOWEST = 0.4
"""The accuracy at the bottom of the picture."""


def picture(name: str, label: str) -> list[str]:
    """The section with the curve of a method, if there is one.

    Args:
        name: The method's function.
        label: What the picture calls it.
    """
    file = next((file for file in (FILE, OWN) if name in accuracies(file)), None)
    if file is None:
        return []
    curves = accuracies(file)
    last = Series({"FedAvg": curves[BASE].iloc[-10:].mean(), label: curves[name].iloc[-10:].mean()})
    said = ", ".join(f"{who} {mean:.1%}" for who, mean in last.items())
    lines = [line(curves[BASE], "base"), "" if name == BASE else line(curves[name], "own")]
    ticks = [tick(level / 100) for level in (40, 60, 80, 100)]
    ends = [
        f'<text x="{x(round):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{round}</text>'
        for round in (1, 25, 50, 75, 100)
    ]
    svg = (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Test accuracy '
        f'by round: {said}">{"".join([*ticks, *ends, *lines])}</svg>'
    )
    command = f"`python recipes/digits.py --algorithm {name}{options(name)}`"
    what = "Mean test accuracy of clients' own models" if file == OWN else "Test accuracy"
    note = f"{what} by round of {command}, beside FedAvg's (gray). {NOTE}"
    return ["## On the digits", "", svg, "", f"{note} Mean of the last ten rounds: {said}.", ""]


NOTE = (
    "20 clients with few classes each, one seed: it shows that the method works, and ranks nothing."
)


@cache
def accuracies(file: Path) -> DataFrame:
    """The curves in a file, by method."""
    return read_csv(file, index_col="round").rename(columns=lambda name: name.split()[0])


@cache
def options(name: str) -> str:
    """The options of a method's run that are not the recipe's, such as ` --lr 0.001`."""
    columns = [column for file in (FILE, OWN) for column in read_csv(file, nrows=0).columns]
    return next((c.removeprefix(name) for c in columns if c.split()[0] == name), "")


def line(curve: "Series[float]", kind: str) -> str:
    """One curve."""
    points = " ".join(f"{x(round):.1f},{y(accuracy):.1f}" for round, accuracy in curve.items())
    return f'<polyline class="{kind}" points="{points}"/>'


def tick(level: float) -> str:
    """A line across the picture, with its number."""
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(level) + 4:.1f}" text-anchor="end">{level:.0%}</text>'
    )


def x(round: float) -> float:
    """The place of a round."""
    return LEFT + (WIDTH - LEFT - RIGHT) * (round - 1) / 99


def y(accuracy: float) -> float:
    """The place of an accuracy; lower ones than `LOWEST` lie on the bottom line."""
    share = (max(accuracy, LOWEST) - LOWEST) / (1 - LOWEST)
    return 10 + (HEIGHT - BOTTOM - 10) * (1 - share)
