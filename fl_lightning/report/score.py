"""The result of a run as one number, and of several runs as mean and standard deviation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan

from pandas import Series

from fl_lightning.runs.run import TAIL_LENGTH, Run


@dataclass(frozen=True)
class Score:
    """A number that says how well a run did.

    Attributes:
        name: The heading of its column.
        of: The number; infinite if the run did not reach it, NaN if the run did not record it.
        digits: Digits after the point.
        higher_is_better: None if neither is.
    """

    name: str
    of: Callable[[Run], float]
    digits: int = 2
    higher_is_better: bool | None = True

    @staticmethod
    def mean(values: "Series[float]") -> float:
        """The mean over runs; NaN unless all of them have recorded and reached it."""
        mean = float(values.mean(skipna=False))
        return mean if mean < inf else nan

    def format(self, values: "Series[float]") -> str:
        """Mean and sample standard deviation over runs as text; one run has no deviation."""
        if values.hasnans:
            return ""
        reached = int((values < inf).sum())
        if reached < len(values):
            return f"in {reached} of {len(values)}" if reached else "never"
        spread = f" ± {values.std():.{self.digits}f}" if len(values) > 1 else ""
        return f"{values.mean():.{self.digits}f}{spread}"


def _column(run: Run, tag: str) -> "Series[float]":
    """The rounds in which a tag was recorded; none if it is unknown."""
    return run.metrics.get(tag, Series(dtype=float)).dropna()


def _accuracies(run: Run) -> "Series[float]":
    """Test accuracy of the global model in percent, by round."""
    return 100 * _column(run, "test/accuracy")


LAST = Score("last, %", lambda run: _accuracies(run).iloc[-1])
"""Test accuracy at the last evaluation."""
BEST = Score("best, %", lambda run: _accuracies(run).max())
"""Test accuracy of the best round, which many papers print although the test set chose it."""
TAIL = Score(f"last {TAIL_LENGTH}, %", lambda run: _accuracies(run).tail(TAIL_LENGTH).mean())
"""Mean test accuracy of the last evaluations."""
SECONDS = Score("s a round", lambda run: _column(run, "time/round_s").median(), 3, None)
"""Median time of a round; not meaningful if runs shared a machine."""


def rounds_to(target: float) -> Score:
    """Rounds until the test accuracy first reached `target` percent."""
    return Score(
        f"rounds to {target:g}%",
        lambda run: _first_round(run, target),
        digits=0,
        higher_is_better=False,
    )


def megabytes_to(target: float) -> Score:
    """Megabytes that all clients together sent and received until then."""

    def of(run: Run) -> float:
        rounds = _first_round(run, target)
        tags = [tag for tag in ("comm/uplink_mb", "comm/downlink_mb") if tag in run.metrics]
        return inf if rounds == inf else float(run.metrics.loc[:rounds, tags].to_numpy().sum())

    return Score(f"MB to {target:g}%", of, digits=0, higher_is_better=False)


def _first_round(run: Run, target: float) -> float:
    accuracies = _accuracies(run)
    return min(accuracies.index[accuracies >= target], default=inf)


def own_models(runs: Sequence[Run]) -> list[Score]:
    """Mean test accuracy of the clients' own models after each number of fine-tuning epochs."""
    tags = dict.fromkeys(tag for run in runs for tag in run.scalars)

    def score(tag: str) -> Score:
        name = f"own models after {tag.rpartition('_')[2]}, %"
        return Score(name, lambda run: 100 * max(_column(run, tag).tail(1), default=nan))

    return [score(tag) for tag in tags if tag.startswith("personal/accuracy_")]
