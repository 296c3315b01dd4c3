"""Write benchmarks/reproduced.md: published numbers next to ours.

    fl-lightning table fedssg/table4 --columns "MNIST *" --runs runs/fedssg --jobs 2 --compile
    fl-lightning table fedavg/table1 --runs runs/fedavg --jobs 2
    python benchmarks/reproduced.py runs/fedssg
    python benchmarks/reproduced.py runs/fedavg --data-dir FOLDER
    python benchmarks/reproduced.py runs/delta --data-dir FOLDER
    python benchmarks/reproduced.py

Finished runs in the folders are recognized by their options, of which a folder of images is one.
Their results are kept in benchmarks/reproduced/, from which the last command makes the page again:
of FedSSG's Table 4 and FedAvg's Table 1 the scores, of benchmarks/fedsol_strength.yaml and
benchmarks/fedtoga_delta.yaml the curves.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

from pandas import Categorical, DataFrame, Series, concat, isna, read_csv

from fl_lightning.cli.recipes import recipes
from fl_lightning.lab.report import Run, Table, grid, score
from fl_lightning.lab.report.score import Result
from fl_lightning.lab.sweep.plan import command_lines, plan
from fl_lightning.lab.sweep.table_file import TableFile
from fl_lightning.runs.config import Config, load

PAGE = Path(__file__).with_suffix(".md")
RESULTS = PAGE.with_suffix("") / "fedssg_table4.csv"
LAST, BEST, ROUNDS = score("last:50"), score("best"), score("rounds_to:97")
TABLE = TableFile.read("fedssg/table4").changed(columns=["MNIST *"])
PUBLISHED = TABLE.published | TableFile.read("fedssg/table5").published
SEEDS = 0, 1, 2
STRENGTH, DELTA = (
    TableFile.read(str(PAGE.with_name(f"{name}.yaml")))
    for name in ("fedsol_strength", "fedtoga_delta")
)
FEDAVG = TableFile.read("fedavg/table1")
COLUMNS = ["method", "column", "seed", "rounds", "last_50", "deviation", "best"]
COLUMNS += ["rounds_to_97", "commit"]


def collect(runs: Path) -> DataFrame:
    """The results of the finished runs in a folder, one row per cell and seed."""
    rows = []
    for job in plan(replace(TABLE, seeds=SEEDS), recipes()["papers"], runs):
        if job.state != "finished":
            continue
        run = Run.read(job.folder)
        last, to_target = LAST.of(run), ROUNDS.of(run)
        numbers = round(last.value, 4), round(last.deviation, 4), round(BEST.of(run).value, 2)
        reached = to_target.value if to_target.reached else None
        commit = load((job.folder / "environment.yaml").read_text()).get("git_commit", "")[:10]
        for row, column, _ in job.cells:
            rows.append([row, column, job.config["seed"], run.rounds, *numbers, reached, commit])
    return DataFrame(rows, columns=COLUMNS)


def fastest(folders: Sequence[Path], further: Sequence[str]) -> DataFrame:
    """FedAvg's rounds to 97% at the best learning rate of each cell, as saved, after new ones.

    A cell counts when the runs of all its learning rates are finished.
    """
    file, rows = RESULTS.with_name("fedavg_table1.csv"), list[tuple[Any, ...]]()
    for job in (j for f in folders for j in plan(FEDAVG, recipes()["papers"], f, further)):
        reached = ROUNDS.of(Run.read(job.folder)) if job.state == "finished" else Result(nan)
        rounds = reached.value if reached.reached else inf
        rows += [(row, column, job.config["lr"], rounds) for row, column, _ in job.cells]
    new = DataFrame(rows, columns=["method", "column", "lr", "rounds_to_97"])
    cells = new.groupby(["method", "column"])
    whole = cells.filter(lambda cell: cell["rounds_to_97"].notna().all())
    best = whole.sort_values("rounds_to_97", kind="stable")
    results = concat([best, *([read_csv(file)] if file.is_file() else [])])
    results = results.drop_duplicates(["method", "column"]).sort_values(["method", "column"])
    if folders:
        results.to_csv(file, index=False)
    return results


def fedavg(results: DataFrame) -> list[str]:
    """The section on FedAvg's Table 1: rounds beside the published ones, and their quotients."""
    published = FEDAVG.published["rounds_to:97"]
    table = grid(
        results.to_dict("records"),  # type: ignore[arg-type]
        [*results["method"]],
        Categorical(results["column"], [*FEDAVG.columns]),
        [replace(ROUNDS, of=lambda row: Result(row["rounds_to_97"]), higher_is_better=None)],
        published=published,
    )
    rounds = results.set_index(["method", "column"])["rounds_to_97"]
    lines = []
    for slow, fast in (("IID B inf", "IID B 10"), ("non-IID B inf", "non-IID B 10")):
        if {(slow, "C 0.1"), (fast, "C 0.1")} <= {*rounds.index}:
            ours = rounds[slow, "C 0.1"] / rounds[fast, "C 0.1"]
            theirs = published[slow]["C 0.1"] / published[fast]["C 0.1"]
            times = f"{ours:.1f} times the rounds of {fast}, published {theirs:.1f}"
            lines.append(f"- C 0.1: {slow} takes {times}")
    return [table.markdown(), "\n".join(lines)]


def curves(
    table: TableFile, folders: Sequence[Path] = (), further: Sequence[str] = ()
) -> DataFrame:
    """The test accuracies of a table's rows by seed and round, as saved, after saving new ones.

    Args:
        table: The table, with one column.
        folders: Folders of runs. The accuracies of the finished ones replace those saved.
        further: Options of all runs.
    """
    file = (RESULTS.parent / Path(table.name).name).with_suffix(".csv")
    saved = read_csv(file, index_col=["seed", "round"]) if file.is_file() else DataFrame()
    recipe = recipes()["papers"]
    for job in (job for folder in folders for job in plan(table, recipe, folder, further)):
        if job.state == "finished":
            accuracy = Run.read(job.folder).metrics["test/accuracy"].dropna().round(4)
            by_seed = concat(
                {job.config["seed"]: accuracy.to_frame(job.cells[0][0])}, names=["seed"]
            )
            saved = by_seed.combine_first(saved)
    saved = saved[[row for row in table.rows if row in saved]]
    if folders:
        saved.to_csv(file)
    return saved


def scored(table: TableFile, **options: Any) -> Table:
    """The scores of a table's saved curves; seeds have columns of their own if there are several.

    Args:
        table: The table, with one column.
        options: Those of `grid`.
    """
    saved, ((column, _),) = curves(table), table.columns.items()
    runs, columns = list[Run](), list[str]()
    for seed, of_seed in saved.groupby("seed"):
        part = of_seed.droplevel("seed").dropna(axis=1, how="all")
        several = saved.index.unique("seed").size > 1
        name = f"seed {seed}, {part.index.max()} rounds" if several else column
        columns += [name] * len(part.columns)
        runs += [_run(row, part[row]) for row in part]
    return grid(runs, [run.path.name for run in runs], columns, table.scores, **options)


def _run(row: str, accuracies: "Series[float]") -> Run:
    """A run of which nothing is left but its curve."""
    run = Run(Path(row), Config())
    run.__dict__["scalars"] = {"test/accuracy": accuracies.to_dict()}
    return run


def lay_out(results: DataFrame, which: str, of: Callable[[Any], Result], share: str) -> Table:
    """The results of one participation next to the published numbers.

    Args:
        results: What `collect` returned, or the same read from its file.
        which: The score.
        of: The score of a row of `results`.
        share: The first words of the columns.
    """
    columns = [column for column in TABLE.columns if column.startswith(share)]
    part = results[results["column"].isin(columns)]
    table = grid(
        part.to_dict("records"),  # type: ignore[arg-type]
        [*part["method"]],
        Categorical(part["column"], columns),
        [replace(score(which), of=of)],
        published={row: {c: PUBLISHED[which][row][c] for c in columns} for row in TABLE.rows},
        spread="rounds",
        over="fedavg" if of is saved_rounds and "fedavg" in {*part["method"]} else "",
    )
    cells = table.text.loc[[*TABLE.rows], columns]
    table.text.loc[[*TABLE.rows], columns] = cells.replace("", "not run")
    caption = table.caption if of is saved_accuracy else "rounds to 97%, means over the seeds"
    return replace(table, caption=caption, marks=DataFrame())  # few cells have several seeds


def as_released(results: DataFrame) -> Table:
    """Our FedDyn next to the published FedVRA, which is FedDyn in FedSSG's released code."""
    part, row = results[results["method"] == "feddyn"], "fedvra as released"
    return grid(
        part.to_dict("records"),  # type: ignore[arg-type]
        [row] * len(part),
        Categorical(part["column"], [*TABLE.columns]),
        [replace(score("last:50"), of=saved_accuracy)],
        published={row: {c: PUBLISHED["last:50"]["fedvra"][c] for c in TABLE.columns}},
        spread="rounds",
    )


def saved_accuracy(row: Mapping[str, Any]) -> Result:
    """The score `last:50`."""
    return Result(row["last_50"], row["deviation"])


def saved_rounds(row: Mapping[str, Any]) -> Result:
    """The score `rounds_to:97`."""
    never = isna(row["rounds_to_97"])
    return Result(row["rounds"] if never else row["rounds_to_97"], reached=not never)


def summary(tables: list[Table]) -> str:
    """The number of cells, their differences, and those beyond 0.15 and 0.30 points."""
    cells = concat([table.numbers for table in tables])
    done = cells.dropna(subset="difference") if "difference" in cells else cells[:0]
    lines = [f"{len(done)} of {len(cells)} cells are run"]
    if len(done):
        size = done["difference"].abs()
        names = done["column"].astype(str) + " " + done["row"]
        lines[0] += f"; mean absolute difference {size.mean():.3f} points"
        for bound in (0.15, 0.30):
            beyond = ", ".join(names[size > bound]) or "none"
            lines.append(f"beyond {bound:.2f}: {(size > bound).sum()} ({beyond})")
        several = (done["runs"] > 1).sum()
        lines.append(f"cells with several seeds: {several}; the others have seed 0 alone")
    return "\n".join(f"- {line}" for line in lines)


def page(results: DataFrame) -> str:
    """The whole page."""
    shares = "MNIST 15%", "MNIST 10%"
    accuracy = [lay_out(results, "last:50", saved_accuracy, share) for share in shares]
    rounds = [lay_out(results, "rounds_to:97", saved_rounds, share) for share in shares]
    commands = {column: f"# {column}" for column in TABLE.columns}
    for (_, column, _), argv in command_lines(TABLE):
        commands[column] += f"\nfl-lightning run papers {' '.join(argv)} --compile"
    parts = [
        "# Published numbers, reproduced",
        "Made by `python benchmarks/reproduced.py` from `benchmarks/reproduced/`.",
        "## FedSSG, Table 4, MNIST: test accuracy in %, mean ± deviation over the last 50 rounds",
        summary(accuracy),
        *(table.markdown() for table in accuracy),
        "The released code of FedVRA is FedDyn's: its additional loss has no gradient. Our FedDyn "
        "next to the published FedVRA:",
        as_released(results).markdown(),
        "The difference of FedProx at 10% DiD2 is not explained.",
        "## FedSSG, Table 5, MNIST: rounds to 97 %, and speed-up over FedAvg",
        *(table.markdown() for table in rounds),
        "## FedAvg, Table 1, 2NN on MNIST: rounds to 97 %",
        "`fl-lightning table fedavg/table1`, one seed, the best of three learning rates. Ours take "
        "half of the published rounds or fewer. The paper leaves open the initial weights, the "
        "scale of the pixels and its learning rates: with standardized pixels IID B 10, C 0.1 took "
        "47 rounds at rate 0.0464 instead of 102. Empty cells are not run.",
        *fedavg(fastest((), ())),
        "## FedSOL, Table 2, MNIST, LDA 0.1: test accuracy in % after 200 rounds, one seed",
        "`fl-lightning table benchmarks/fedsol_strength.yaml --data-dir FOLDER`, in bf16-mixed; "
        "`fedavg, cutout` and FedSOL as released in float32. The rows without `as released` have "
        "borders of the mean color, where the released code has black ones.",
        scored(STRENGTH, published=STRENGTH.published["final"], spread="rounds").markdown(),
        "The four methods as released have the published order, in the last round and in the last "
        "ten evaluations. The differences of FedAvg, FedNTD and FedASAM in the last round are not "
        "explained; evaluations of all three, five rounds apart, differ by more.",
        "With the released code's augmentation FedSOL per column, the released code's reading of "
        "Eq. 7, gains 1.36 points over FedAvg in the last ten evaluations, per tensor, the text's, "
        "0.80; published is 1.33 (benchmarks/RESULTS.md).",
        "## FedTOGA's Delta, in Table 1's set-up at Dirichlet 0.6, on CIFAR-10 (JPEG)",
        "`fl-lightning table benchmarks/fedtoga_delta.yaml --data-dir FOLDER`. Beta 0 has no "
        "Delta; the others divide the mean movement by K steps, by E epochs, and by K eta, as a "
        "gradient (benchmarks/RESULTS.md).",
        scored(DELTA, over=DELTA.over).markdown(),
        "## Commands of FedSSG's tables",
        "All cells: `fl-lightning table fedssg/table4 --columns 'MNIST *' --compile`. One cell:",
        "```\n" + "\n".join(commands.values()) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Add the results of the folders that are given, and write the page."""
    frames = [read_csv(RESULTS)] if RESULTS.is_file() else []
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    given, further = parser.parse_known_args()
    frames += [collect(folder) for folder in given.folders]
    results = concat([DataFrame(columns=COLUMNS), *frames])
    results = results.drop_duplicates(["method", "column", "seed"], keep="last")
    order = {"column": [*TABLE.columns], "method": [*TABLE.rows], "seed": SEEDS}
    results = results.sort_values([*order], key=lambda c: c.map([*order[c.name]].index))
    results = results.astype({"rounds_to_97": "Int64"})
    RESULTS.parent.mkdir(exist_ok=True)
    results.to_csv(RESULTS, index=False)
    fastest(given.folders, further)
    for table in (STRENGTH, DELTA):
        curves(table, given.folders, further)
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
