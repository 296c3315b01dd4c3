"""Write docs/comparison.md: sixteen methods on four problems, each with its best of equal trials.

    fl-lightning table benchmarks/neutral/schools.yaml --runs runs/neutral/schools --stack 3
    python benchmarks/neutral.py runs/neutral --data-dir FOLDER
    python benchmarks/neutral.py

The second command keeps what the runs have given in benchmarks/neutral/: the scores of the trials,
those of the chosen settings, and their curves. The third makes the page from these files alone.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
from leads import Leads
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, concat, read_csv

from fl_lightning.algorithms.registry import paper_name
from fl_lightning.cli.recipes import recipes
from fl_lightning.lab.report import Run, Score, grid, score
from fl_lightning.lab.report.score import Result
from fl_lightning.lab.sweep.layout import choose
from fl_lightning.lab.sweep.plan import Job, plan
from fl_lightning.lab.sweep.table_file import TableFile

FOLDER = Path(__file__).with_suffix("")
DOCS = FOLDER.parents[1] / "docs"
SETUPS = {
    "mnist_small": "MNIST",
    "cifar10_small": "CIFAR-10 (JPEG)",
    "text_small": "Text",
    "schools": "160 schools",
}
LARGER = {
    "mnist": "MNIST, FedSSG's set-up",
    "cifar10": "CIFAR-10 (JPEG), LeNet",
    "text": "Text, the recipe's Transformer",
}
TITLES = SETUPS | LARGER
COMMAND = "fl-lightning table benchmarks/neutral/{0}.yaml{1} --runs runs/neutral/{0}{2}"
FAMILIES = {
    "drift": ("scaffold", "feddyn", "fedssg"),
    "sharpness and drift": ("fedsam", "fedsmoo", "fedlesam_d", "fedtoga"),
    "sharpness along the path": ("fedgmt", "fedwmsam"),
    "AdamW and Muon": ("local_adamw", "fedadamw", "local_muon"),
    "aligned Muon": ("fedmuon", "fedpac_muon", "fedmuon_lmo"),
}
BASE = "fedavg"


@cache
def table(setup: str) -> TableFile:
    """The file of a problem."""
    return TableFile.read(str(FOLDER / f"{setup}.yaml"))


def kept(name: str) -> DataFrame:
    """A file of results; empty if there is none yet."""
    file = FOLDER / f"{name}.csv"
    return read_csv(file, dtype={"setting": str}) if file.is_file() else DataFrame()


def collect(setup: str, runs: Path, further: Sequence[str]) -> dict[str, DataFrame]:
    """The trials, the scores and the curves of the methods whose runs are all in a folder.

    No table may be at work there: a run that has not ended counts as diverged.
    """
    of = table(setup)
    recipe = recipes().get(of.recipe, Path(of.recipe))
    trials = plan(replace(of, seeds=of.tune_seeds), recipe, runs, further)
    chosen, _ = choose(of, trials)
    finals = plan(chosen, recipe, runs, further)
    missing = {job.cells[0].row for job in trials + finals if job.state == "missing"}
    trials = [job for job in trials if job.cells[0].row not in missing]
    finals = [job for job in finals if job.cells[0].row not in missing and job.state == "finished"]
    return {
        "trials": DataFrame([_trial(setup, job) for job in trials]),
        "runs": DataFrame([_final(setup, job) for job in finals]),
        "curves": concat([DataFrame(), *(_curve(setup, job) for job in finals)]),
    }


def _place(setup: str, job: Job) -> dict[str, Any]:
    cell = job.cells[0]
    return {"setup": setup, "method": cell.row, "setting": cell.tuned, "seed": job.config["seed"]}


def _trial(setup: str, job: Job) -> dict[str, Any]:
    """A trial and the score that chooses; none if it has diverged."""
    ended = job.state == "finished"
    value = score(table(setup).scores[0]).of(Run.read(job.folder)).value if ended else None
    return {**_place(setup, job), "score": value}


def _final(setup: str, job: Job) -> dict[str, Any]:
    """The scores of a run, and whether it came to the target; what it spent in all if not."""
    run = Run.read(job.folder)
    found = {name: score(name).of(run) for name in table(setup).scores[1:]}
    row = _place(setup, job) | {name: result.value for name, result in found.items()}
    return {**row, "reached": all(result.reached for result in found.values())}


def _curve(setup: str, job: Job) -> DataFrame:
    tag = "test/r2" if setup == "schools" else "test/accuracy"
    values = Run.read(job.folder).metrics[tag].dropna().round(4)
    place = {k: v for k, v in _place(setup, job).items() if k != "setting"}
    return DataFrame({**place, "round": values.index, "value": values.to_numpy()})


def keep(found: dict[str, DataFrame], setup: str) -> None:
    """Put the results of a problem's methods in the place of older ones."""
    for name, frame in found.items():
        if len(frame):
            before = kept(name)
            old = before["setup"].eq(setup) & before["method"].isin(frame["method"])
            frame = concat([before[~old], frame])
            frame.to_csv(FOLDER / f"{name}.csv", index=False, float_format="%.6g")


def columns(setup: str) -> Iterator[Score]:
    """The columns of a problem's table."""
    for name in table(setup).scores[1:]:
        known, scale = score(name), 1.0
        if name.startswith(("test/clients", "clients/accuracy")):
            known, scale = Score("worst 10 % of clients, %", known.of), 100.0
        elif name == "clients/rmse_worst10":
            known = Score("worst 10 % of schools, RMSE", known.of, 2, False)
        elif name.startswith("test/"):
            shown = {"test/r2:5": "R²", "test/rmse:5": "RMSE"}[name]
            known = replace(known, name=shown, digits=3, higher_is_better=shown == "R²")
        elif known.to_target:
            known = replace(known, digits=0)

        def of(row: Any, name: str = name, scale: float = scale, known: Score = known) -> Result:
            reached = bool(row.values["reached"]) or not known.to_target
            return Result(scale * row.values[name], reached=reached)

        yield replace(known, of=of, spread="")


def has_run(setup: str) -> bool:
    """Whether there are results of a problem, of more methods than FedAvg."""
    ran = kept("runs")
    return len(ran) > 0 and ran.query("setup == @setup")["method"].nunique() > 1


def command(setup: str) -> str:
    """What makes the runs of a problem."""
    needs_folder = setup.startswith(("mnist", "cifar"))
    return COMMAND.format(
        setup, " --data-dir FOLDER" * needs_folder, " --stack 3" * (setup in SETUPS)
    )


def by_method(setup: str, name: str) -> DataFrame:
    """A score, (seeds, methods); NaN where a run has diverged."""
    part = kept("runs").query("setup == @setup")
    order = [m for m in (BASE, *chain(*FAMILIES.values())) if m in {*part["method"]}]
    return part.pivot_table(name, "seed", "method")[order]


def results(setup: str) -> list[str]:
    """The section of a problem: its table, with the settings, and its command."""
    part, scores = kept("runs").query("setup == @setup"), [*columns(setup)]
    main = by_method(setup, table(setup).scores[1])
    order, larger = [*main], bool(scores[0].higher_is_better)
    rows = [
        SimpleNamespace(path=Path(str(row["method"])), values=row)
        for row in part.to_dict("records")
    ]
    rows.sort(key=lambda row: order.index(row.path.name))
    shown = grid(rows, [row.path.name for row in rows], None, scores)  # type: ignore[arg-type]
    text = shown.text.copy()
    beside = Leads.over(main, BASE, larger)
    leads = ["" if m == BASE else beside.text(str(m), scores[0].digits) for m in text.index]
    text.insert(2, f"over {paper_name(BASE)}", leads)
    settings = part.groupby("method")["setting"].first()
    tried = kept("trials").query("setup == @setup").groupby("method")["setting"].nunique()
    text.insert(1, "setting, of", [f"{settings[m]}, of {tried[m]}" for m in text.index])
    text["method"] = [f"[{paper_name(m)}](methods/{m}.md)" for m in text.index]
    head = [*map(str, text)]
    unbroken = text.map(lambda cell: cell.replace(" ± ", "\u00a0±\u00a0"))
    lines = [head, ["---"] * len(head), *unbroken.to_numpy().tolist()]
    return [
        f"{'#' * (2 + (setup in LARGER))} {TITLES[setup]}",
        (FOLDER / f"{setup}.md").read_text().strip(),
        "\n".join(f"| {' | '.join(line)} |" for line in lines),
        f"Mean ± standard deviation over {len(main)} seeds. {beside.sentence()}",
        f"```sh\n{command(setup)}\n```",
    ]


def summary() -> str:
    """Each method's lead over FedAvg on each problem, and where it is significant."""
    setups = [setup for setup in SETUPS if has_run(setup)]
    found = {setup: [*_beside_base(setup)] for setup in setups}
    kinds = "above, below", "above, below in the worst 10 %"
    head = ["method", *(SETUPS[s] for s in setups), *kinds]
    lines = [head, ["---"] * len(head)]
    for method in chain(*FAMILIES.values()):
        ours, worst = ([leads for leads, _ in kind] for kind in zip(*found.values(), strict=True))
        cells = [
            leads.text(method, digits, counted=False) or "-"
            for leads, digits in (found[setup][0] for setup in setups)
        ]
        signs = [[leads.signs.get(method, 0) for leads in of] for of in (ours, worst)]
        counts = [f"{of.count(1)}, {of.count(-1)}" for of in signs]
        lines.append([f"[{paper_name(method)}](methods/{method}.md)", *cells, *counts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _beside_base(setup: str) -> Iterator[tuple[Leads, int]]:
    """The leads over FedAvg and their digits: in the first score, and of the worst clients."""
    names, shown = table(setup).scores[1:], [*columns(setup)]
    worst = next(k for k, score in enumerate(shown) if score.name.startswith("worst 10 %"))
    for k in (0, worst):
        larger = bool(shown[k].higher_is_better)
        yield Leads.over(by_method(setup, names[k]), BASE, larger), shown[k].digits


def draw() -> None:
    """A row of panels for each problem that has run, a column for each family."""
    curves = kept("curves")
    names = [s for s in SETUPS if len(curves) and s in {*curves["setup"]}]
    if not names:
        return
    matplotlib.rcParams["svg.hashsalt"] = "comparison"  # equal bytes each time
    figure = Figure(figsize=(12, 2.3 * len(names) + 0.4), layout="constrained")
    panels = figure.subplots(len(names), len(FAMILIES), sharey="row", squeeze=False)
    for setup, row in zip(names, panels, strict=True):
        part = curves[curves["setup"] == setup]
        medians = part.pivot_table("value", "round", "method", aggfunc="median")
        for (family, methods), axes in zip(FAMILIES.items(), row, strict=True):
            _panel(axes, medians, methods)
            if setup == names[0]:
                axes.set_title(family, fontsize=10)
            if setup == names[-1]:
                axes.set_xlabel("round")
        low = min(medians.iloc[len(medians) // 4].median(), medians.iloc[-1].min())
        high = medians.max().max()
        bottom = max(0.0, high - 2 * (high - low))  # room for the legend
        row[0].set_ylim(bottom, high + 0.1 * (high - low))
        row[0].set_ylabel(f"{SETUPS[setup]}\n{'R²' if setup == 'schools' else 'test accuracy'}")
    figure.savefig(DOCS / "comparison.svg", metadata={"Date": None})


SHORT = {"fedmuon": "FedMuon (alignment)", "fedmuon_lmo": "FedMuon (LMO)"}


def _panel(axes: Axes, curves: DataFrame, methods: Sequence[str]) -> None:
    if BASE in curves:
        axes.plot(curves[BASE], color="gray", linewidth=1, label=paper_name(BASE))
    for method in (m for m in methods if m in curves):
        axes.plot(curves[method], linewidth=1.2, label=SHORT.get(method, paper_name(method)))
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def write_page() -> None:
    """Fill the page's frame with the sections."""
    ran = [part for setup in SETUPS if has_run(setup) for part in results(setup)]
    larger = [part for setup in LARGER if has_run(setup) for part in results(setup)]
    text = (FOLDER / "comparison.md.in").read_text().replace("@SUMMARY@", summary())
    for mark, lines in {"@RESULTS@": ran, "@LARGER@": larger}.items():
        text = text.replace(mark, "\n\n".join(lines))
    (DOCS / "comparison.md").write_text(text)


def main() -> None:
    """Keep the results of the folder that is given, and write the page."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=Path, help="a folder with one for each problem")
    given, further = parser.parse_known_args()
    for setup in TITLES:
        if given.runs and (given.runs / setup).is_dir():
            keep(collect(setup, given.runs / setup, further), setup)
    draw()
    write_page()


if __name__ == "__main__":
    main()
