"""Scores: numbers that say how well a run did, each with a name that commands and presets share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor, isnan, log10, nan
from typing import Annotated, NamedTuple

from pandas import DataFrame, Series, read_csv

from fl_lightning.core.constraints import NonNegativeFloat, PositiveInt, Range, checked
from fl_lightning.errors import UserError
from fl_lightning.runs.run import TAIL_LENGTH, Run
from fl_lightning.runs.scalars import higher_is_better

EVALUATED = "test", "val"
"""How names of scores of the global model begin, unless a LightningModule names them."""

Percent = Annotated[float, Range("a percentage above 0 and at most 100", 0, 100, "(]")]


class Result(NamedTuple):
    """The score of a run.

    Attributes:
        value: The number; NaN if the run did not record it.
        deviation: The population standard deviation within the run; NaN unless the value is a mean.
        reached: False if the run never reached the target; then the value counts all its rounds.
        short: Whether the run has fewer evaluations than the value is named to be the mean of.
    """

    value: float
    deviation: float = nan
    reached: bool = True
    short: bool = False


@dataclass(frozen=True)
class Score:
    """A number that says how well a run did.

    Attributes:
        name: The heading of its column.
        of: The result of a run.
        digits: Digits after the point, at least.
        higher_is_better: None if neither is.
        spread: What the deviation within a run is over, `rounds` or `clients`; empty for none.
        to_target: Whether it counts what a run spent until it reached a target.
        needs: The option with which runs record it, and a part of its value, such as `callback
            gradients`; empty for none.
        significant: Whether the largest value is shown with two significant digits at least.
    """

    name: str
    of: Callable[[Run], Result]
    digits: int = 2
    higher_is_better: bool | None = True
    spread: str = ""
    to_target: bool = False
    needs: str = ""
    significant: bool = False

    def with_digits(self, values: "Series[float]") -> "Score":
        """The score with the digits that these values need."""
        if not (self.significant and values.max() > 0):
            return self
        return replace(self, digits=max(self.digits, 1 - floor(log10(values.max()))))

    def format(self, mean: float, deviation: float, runs: int, reached: int) -> str:
        """The text of a cell: empty without a mean, `800+` if no run reached the target."""
        if isnan(mean):
            return ""
        if reached < runs:
            return f"in {reached:.0f} of {runs:.0f}" if reached else f"{mean:.{self.digits}f}+"
        spread = "" if isnan(deviation) else f" ± {deviation:.{self.digits}f}"
        return f"{mean:.{self.digits}f}{spread}"


def is_evaluation(run: Run, tag: str) -> bool:
    """Whether a scalar of a run is a score of the global model."""
    return tag in run.scores or tag.startswith(EVALUATED)


def _column(run: Run, tag: str) -> "Series[float]":
    """The rounds in which a tag was recorded; none if it is unknown.

    An evaluation that is NaN counts: the model has diverged. Other tags are NaN in a round without
    clients, which does not count.
    """
    column = Series(run.scalars.get(tag, {}), dtype=float).sort_index()
    return column if is_evaluation(run, tag) else column.dropna()


def _accuracies(run: Run) -> "Series[float]":
    """Test accuracy of the global model in percent, by round."""
    return 100 * _column(run, "test/accuracy")


def _mean(values: "Series[float]") -> Result:
    deviation = values.std(ddof=0, skipna=False) if len(values) > 1 else nan
    return Result(values.mean(skipna=False), deviation)


def _last(values: "Series[float]", count: int) -> Result:
    return _mean(values.tail(count))._replace(short=0 < len(values) < count)


@checked
def last(evaluations: PositiveInt = TAIL_LENGTH) -> Score:
    """Mean of the last evaluations: of the test accuracy, or of the first score of other tasks."""
    name = f"last {evaluations}, %"
    return Score(name, lambda run: _last(_accuracies(run), evaluations), spread="rounds")


def final() -> Score:
    """Test accuracy at the last evaluation."""
    return replace(last(1), name="final, %")


def best() -> Score:
    """Test accuracy of the best round.

    It is the round of the best validation accuracy if there is a validation part; else that of the
    best test accuracy, as in many papers.
    """

    def of(run: Run) -> Result:
        accuracies, validated = _accuracies(run), _column(run, "val/accuracy")
        chosen = accuracies.get(validated.idxmax(), nan) if len(validated) else accuracies.max()
        return Result(chosen)

    return Score("best, %", of)


@checked
def to_target(
    unit: str, tags: Sequence[str], target: Percent, digits: int = 0, needs: str = ""
) -> Score:
    """What a run had spent when its test accuracy first reached `target` percent.

    It is the sum of these tags over all rounds so far, or their number if there are no tags.
    """

    def of(run: Run) -> Result:
        if not len(accuracies := _accuracies(run)):
            return Result(nan)
        reached = accuracies.index[accuracies.round(5) >= target]  # 100 * 0.57 is below 57
        end = min(reached, default=run.rounds)
        spent = DataFrame({tag: _column(run, tag) for tag in tags}).sum(axis=1, skipna=False)
        value = spent.cumsum().loc[:end].tail(1).mean() if tags else end
        return Result(value, reached=len(reached) > 0)

    name = f"{unit} to {target:g}%"
    return Score(
        name,
        of,
        digits,
        higher_is_better=False,
        to_target=True,
        needs=needs,
        significant=bool(tags),
    )


@checked
def personal(epochs: NonNegativeFloat | None = None) -> Score:
    """Mean test accuracy of the clients' models after fine-tuning (default: the most epochs)."""
    after = "" if epochs is None else f" after {epochs:g}"
    name = f"own models{after}, %"
    of, needs = lambda run: _mean(_clients(run, epochs)), "finetune_epochs"
    return Score(name, of, spread="clients", needs=needs)


@checked
def worst_clients(percent: Percent = 10) -> Score:
    """Mean test accuracy of the worst fine-tuned models, of `percent` % of the clients."""

    def of(run: Run) -> Result:
        accuracies = _clients(run, None)
        return _mean(accuracies.nsmallest(ceil(len(accuracies) * percent / 100)))

    name = f"worst {percent:g}% of clients, %"
    return Score(name, of, spread="clients", needs="finetune_epochs")


def _clients(run: Run, epochs: float | None) -> "Series[float]":
    """Test accuracy of each client's own model in percent; none where there are no classes."""
    file = run.path / "personal.csv"
    table = read_csv(file).filter(like="accuracy_") if file.is_file() else DataFrame()
    asked = table if epochs is None else table.filter([f"accuracy_{epochs:g}"])
    return Series(dtype=float) if asked.empty else 100 * asked.iloc[:, -1].dropna()


def round_seconds() -> Score:
    """Median time of a round; not meaningful if runs shared a machine."""
    return Score("s a round", lambda run: Result(_column(run, "time/round_s").median()), 3, None)


@checked
def of_tag(tag: str, evaluations: PositiveInt = 1) -> Score:
    """Mean of a scalar of `metrics.csv` over the last rounds that recorded it."""
    better = True if higher_is_better(tag) else False if "loss" in tag else None
    name = tag if evaluations == 1 else f"last {evaluations}, {tag}"
    return Score(name, lambda run: _last(_column(run, tag), evaluations), 4, better, "rounds")


def main_tag(runs: Sequence[Run]) -> str:
    """The scalar that counts: the test accuracy, or the first score of runs without any."""
    accurate = not runs or any("test/accuracy" in run.scalars for run in runs)
    return "test/accuracy" if accurate else next(iter(runs[0].scores), "test/accuracy")


_SCORES = last, best, final, personal, worst_clients, round_seconds
SCORES: dict[str, Callable[..., Score]] = {make.__name__: make for make in _SCORES} | {
    "rounds_to": partial(to_target, "rounds", ()),
    "seconds_to": partial(to_target, "s", ["time/train_s"]),  # of local training
    "mb_to": partial(to_target, "MB", ["comm/uplink_mb", "comm/downlink_mb"]),  # of all clients
    "uplink_to": partial(to_target, "MB sent", ["comm/uplink_mb"], digits=2),
    "gradients_to": partial(
        to_target, "gradients", ["client/gradients"], needs="callback gradients"
    ),
}
"""The scores by name. A number may follow a colon: `last:50`, `rounds_to:80`."""


def score(text: Score | str, runs: Sequence[Run] = ()) -> Score:
    """Make a score from its name, such as `best`, `last:50`, `rounds_to:80` or `test/loss`.

    A score is returned as it is. Whether larger values of a tag are better is what the runs have
    recorded of it, else by its name.

    Raises:
        UserError: If there is no such score, or its number is missing or wrong.
    """
    if isinstance(text, Score):
        return text
    name, _, number = text.partition(":")
    if name == "last" and (tag := main_tag(runs)) != "test/accuracy":
        name, number = tag, number or str(TAIL_LENGTH)
    is_tag = (  # LightningModules log val_loss, and callbacks any name
        "/" in name
        or name.startswith(("train", *EVALUATED))
        or (name not in SCORES and any(name in run.scalars for run in runs))
    )
    function = partial(of_tag, name) if is_tag else SCORES.get(name)
    if function is None:
        known = ", ".join(SCORES)
        raise UserError(f"there is no score {name}: take a tag with a slash, or one of {known}")
    try:
        values = [float(number)] if number else []
        made = function(*(int(value) if value.is_integer() else value for value in values))
    except (TypeError, ValueError):
        raise UserError(
            f"{text!r} is no score: give one such as best, last:50 or rounds_to:80"
        ) from None
    found = {run.larger_is_better(name) for run in runs if is_tag} - {None}
    return replace(made, higher_is_better=found.pop()) if found else made
