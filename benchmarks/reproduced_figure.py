"""Draw docs/reproduced.svg: published accuracies and ours, one point for each of 48 cells.

python benchmarks/reproduced_figure.py
"""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from pandas import read_csv
from reproduced import PUBLISHED, RESULTS

from fl_lightning.algorithms.registry import paper_name

FIGURE = Path(__file__).parents[1] / "docs" / "reproduced.svg"


def main() -> None:
    """Draw the cells of FedSSG's Table 4 in benchmarks/reproduced/."""
    ours = read_csv(RESULTS).groupby(["method", "column"])["last_50"].mean().unstack("column")
    published = PUBLISHED["last:50"]
    matplotlib.rcParams["svg.hashsalt"] = FIGURE.name  # equal bytes each time
    figure = Figure(figsize=(4.6, 4.2), layout="constrained")
    axes = figure.subplots()
    ends = 97.5, 98.7
    axes.plot(ends, ends, color="gray", linewidth=0.8)
    cells = 0
    for method, row in ours.iterrows():
        theirs = [published[str(method)][str(column)] for column in row.index]
        axes.plot(theirs, row, "o", markersize=4, label=paper_name(str(method)))
        cells += len(theirs)
    axes.set(
        xlabel="published test accuracy, %",
        ylabel="ours, %",
        xlim=ends,
        ylim=ends,
        aspect="equal",
        title=f"FedSSG's Table 4, MNIST: {cells} cells",
    )
    axes.legend(fontsize="small", frameon=False)
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
