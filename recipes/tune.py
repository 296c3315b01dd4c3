r"""Tune options of a recipe with Optuna: ask for values, run, prune on the rounds' scores.

    python recipes/tune.py digits \
        --tune lr=0.01..1:log --tune algorithm.rho=0.01..0.5:log
    python recipes/tune.py digits \
        --trials 30 --tune batch-size=8,16,32 --algorithm fedavg

The first argument is a recipe, by name or as a file; its options follow. A space is LOW..HIGH, with
:log for a logarithmic scale, or a list of values. The score is the last validation accuracy, on a
tenth of each client's samples unless --validation says otherwise. The study and the runs lie in
--folder; the same command continues it, also in several processes at the same time. A trial that
was killed or stopped does not count as one of --trials. It needs the package optuna.
"""

import argparse
import fcntl
import sys
from contextlib import redirect_stdout
from pathlib import Path

from fl_lightning.cli.arguments import ArgumentParser, flag_of, given
from fl_lightning.cli.error_messages import exit_with_error, exit_with_message
from fl_lightning.cli.recipes import experiment_of
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.runs.options import Effect

try:
    import optuna
except ImportError:
    exit_with_error("tuning needs a package: pip install optuna")


class Report:
    """Reports a scalar of the rounds to a trial, and ends the run if the trial is pruned."""

    def __init__(self, trial: optuna.Trial, monitor: str):
        self.trial, self.monitor, self.pruned = trial, monitor, False
        self.score: float | None = None

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Compare the round with the same round of other trials."""
        if self.monitor in metrics:
            self.score = metrics[self.monitor]
            self.trial.report(self.score, federation.round)
            self.pruned = self.trial.should_prune()
            federation.should_stop |= self.pruned

    def on_last_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Report the score that a round has because the run ends early."""
        if federation.round < federation.rounds and self.monitor in federation.last_only:
            self.on_round_end(federation, metrics)


def suggest(trial: optuna.Trial, name: str, space: str) -> object:
    """A value from a space such as 0.01..1:log, 1..50 or 8,16,32."""
    bounds, _, scale = space.partition(":")
    low, dots, high = bounds.partition("..")
    if not dots:
        return trial.suggest_categorical(name, space.split(","))
    try:
        log = {"": False, "log": True}[scale]
        if {".", "e"} & {*low.lower(), *high.lower()}:
            return trial.suggest_float(name, float(low), float(high), log=log)
        return trial.suggest_int(name, int(low), int(high), log=log)
    except (KeyError, ValueError) as error:
        exit_with_error(f"--tune {name}={space} is no space such as 0.01..1:log ({error})")


def run(trial: optuna.Trial, argv: list[str], o: argparse.Namespace) -> float:
    """Run the recipe with the values of a trial; the output goes to a file next to its folder."""
    values = [f"{flag_of(n)}={suggest(trial, n, space)}" for n, space in o.tune]
    folder = o.folder / f"trial-{trial.number}"
    report = Report(trial, o.monitor)
    with folder.with_suffix(".log").open("w", encoding="utf-8") as log, redirect_stdout(log):
        fcntl.flock(log, fcntl.LOCK_EX)  # until the process ends: see counts
        experiment = experiment_of(o.recipe, [*argv, *values, "--run-dir", str(folder)])
        experiment.callbacks = [*experiment.callbacks, report]
        try:
            experiment.run()
        except SystemExit as ended:
            if ended.code != 2 or not (folder / "config.yaml").is_file():
                raise  # Ctrl-C, or an option that no trial can have
            raise RuntimeError("the run has failed") from ended
    if report.score is None:
        exit_with_error(f"no round has recorded {o.monitor!r}: give another --monitor")
    if report.pruned:
        raise optuna.TrialPruned
    return report.score


def counts(trial: optuna.trial.FrozenTrial, folder: Path) -> bool:
    """Whether a trial has ended, or its process, which locks its log, is still at work."""
    if trial.state.is_finished():
        return True
    with (folder / f"trial-{trial.number}.log").open("a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of the tuning, and those of the recipe."""
    parser = ArgumentParser(
        usage="%(prog)s RECIPE --tune NAME=SPACE [--tune NAME=SPACE]... [OPTIONS]",
        description=__doc__,
    )
    add = parser.add_argument
    add("--tune", action="append", metavar="NAME=SPACE", type=_space, required=True)
    add("--trials", type=int, default=20, help="number of trials in all (default: 20)")
    add("--monitor", default="val/accuracy", help="maximized if its metric or name says so")
    add("--folder", type=Path, help="folder of the study (default: runs/tune-RECIPE)")
    named = bool(argv) and not argv[0].startswith("-")
    o, others = parser.parse_known_args(argv[named:])
    if not named:
        parser.error("name a recipe first, such as digits")
    o.recipe = argv[0]
    o.folder = o.folder or Path("runs", f"tune-{Path(o.recipe).stem}")
    return o, others


def asked(o: argparse.Namespace, argv: list[str]) -> dict[str, object]:
    """What a study asks: its monitor, and the options that all trials share."""
    shared = experiment_of(o.recipe, argv).config.identity(Effect.NUMBERS, Effect.EXTENT)
    tuned = {name for name, _ in o.tune}
    kept = {k: v for k, v in shared.items() if not {k, k.partition(".")[0]} & tuned}
    return {"monitor": o.monitor, "recipe": o.recipe, **kept}


def check_continued(study: optuna.Study, now: dict[str, object], folder: Path) -> None:
    """Keep what a study asks with its first start, and refuse another question later.

    Optuna keeps the first direction: the worst trial of another monitor would be announced as best.
    """
    before = study.user_attrs.get("asked")
    if before is None:
        study.set_user_attr("asked", now)
    elif differ := [k for k in {**before, **now} if before.get(k) != now.get(k)]:
        which = ", ".join(f"{k} {before.get(k)}, not {now.get(k)}" for k in differ[:3])
        exit_with_error(f"the study in {folder} has {which}: omit the change, or add --folder NEW")


def begin(o: argparse.Namespace, argv: list[str]) -> optuna.Study:
    """The study in its folder, begun or continued, with values that no other start proposes."""
    with exit_with_message():
        larger = experiment_of(o.recipe, argv).parts().task.larger_is_better(o.monitor)
    o.folder.mkdir(parents=True, exist_ok=True)
    with (o.folder / "study.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # SQLite refuses the second of two at the same time
        study = optuna.create_study(
            storage=f"sqlite:///{o.folder / 'study.db'}",
            study_name="tune",
            load_if_exists=True,
            direction="maximize" if larger else "minimize",
            pruner=optuna.pruners.MedianPruner(n_warmup_steps=10),
        )
        check_continued(study, asked(o, argv), o.folder)
        starts = study.user_attrs.get("starts", 0)
        study.set_user_attr("starts", starts + 1)
    study.sampler = optuna.samplers.TPESampler(seed=starts, constant_liar=True)
    return study


def _space(text: str) -> tuple[str, str]:
    name, equals, space = text.partition("=")
    if not equals or not space:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SPACE, such as lr=0.01..1:log")
    return name.replace("-", "_"), space


def main() -> None:
    """Tune."""
    o, argv = parse(sys.argv[1:])
    chosen = given(argv)
    argv += [] if "validation" in chosen else ["--validation", "0.1"]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = begin(o, argv)

    def announce(_: object, trial: optuna.trial.FrozenTrial) -> None:
        scores, state = trial.intermediate_values, trial.state.name.lower()
        last = f", {scores[max(scores)]:.4f}" if scores else ""
        print(f"trial {trial.number}: {_flags(trial.params)}  {state}{last}")

    while sum(counts(trial, o.folder) for trial in study.get_trials(deepcopy=False)) < o.trials:
        study.optimize(
            lambda trial: run(trial, argv, o), 1, catch=RuntimeError, callbacks=[announce]
        )
    if all(trial.state.name != "COMPLETE" for trial in study.trials):
        exit_with_error(f"no trial has come to its end: see the .log files in {o.folder}")
    best = study.best_trial
    print(f"best {o.monitor} {best.value:.4f}: {_flags(best.params)}")
    print(f"compare: fl-lightning compare {o.folder}")


def _flags(values: dict[str, object]) -> str:
    """Values as they stand on a command line."""
    return " ".join(f"{flag_of(name)} {value}" for name, value in values.items())


if __name__ == "__main__":
    main()
