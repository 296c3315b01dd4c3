"""Draw docs/speed.svg: how many times as fast as other simulators, by the speed guide's table.

python benchmarks/speed_figure.py
"""

import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
GUIDE, FIGURE = DOCS / "guides" / "speed.md", DOCS / "speed.svg"
COLORS = "#bbbbbb", "#0173b2", "#029e73"


def ratios() -> tuple[list[str], dict[str, list[str]]]:
    """The ways of training, and by workload and other simulator the ratio of each."""
    lines = re.findall(r"^\| (.+?) \| (.+?) \| (.+) \|$", GUIDE.read_text(), re.M)
    (_, _, ways), *rows = next(
        lines[i:] for i, (first, *_) in enumerate(lines) if first == "workload"
    )
    numbers = {f"{other}: {work}": rest for work, other, rest in rows if rest[0].isdigit()}
    return ways.split(" | "), {name: rest.split(" | ") for name, rest in numbers.items()}


def main() -> None:
    """Draw the bars."""
    ways, rows = ratios()
    matplotlib.rcParams["svg.hashsalt"] = FIGURE.name  # equal bytes each time
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for k, (way, color) in enumerate(zip(ways, COLORS, strict=True)):
        places = [row + 0.27 * (k - 1) for row in range(len(rows))]
        texts = [row[k] for row in rows.values()]
        bars = axes.barh(places, [*map(float, texts)], 0.25, color=color, label=way)
        axes.bar_label(bars, texts, padding=3, fontsize="small")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(yticks=range(len(rows)), yticklabels=rows, xlim=(0, 4.3))
    axes.set_xlabel("time of the other over ours, on two CPU cores")
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=len(ways), fontsize="small", frameon=False)
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
