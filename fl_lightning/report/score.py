"""How well a run did, as one number, and several runs as mean and standard deviation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median, stdev

from fl_lightning.runs.run import TAIL_LENGTH, Run


@dataclass(frozen=True)
class Score:
    """A number that tells how well a run did.

    Attributes:
        name: Heads its column.
        of: The number; infinite if the run did not get there, None if the run did not record it.
        digits: After the point.
        higher_is_better: None where neither is.
    """

    name: str
    of: Callable[[Run], float | None]
    digits: int = 2
    higher_is_better: bool | None = True

    def mean(self, runs: Sequence[Run]) -> float | None:
        """The mean over runs; None unless all of them have it and have got there."""
        values = [self.of(run) for run in runs]
        return (
            None if None in values or inf in values else fmean(v for v in values if v is not None)
        )

    def shown(self, runs: Sequence[Run]) -> str:
        """Mean and sample standard deviation over runs, for people; one run has no deviation."""
        values = [value for value in map(self.of, runs) if value is not None]
        reached = [value for value in values if value < inf]
        if len(values) < len(runs):
            return ""
        if len(reached) < len(values):
            return f"in {len(reached)} of {len(values)}" if reached else "never"
        spread = f" ± {stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        return f"{fmean(values):.{self.digits}f}{spread}"


def accuracies(run: Run) -> dict[int, float]:
    """Test accuracy of the global model in percent, by round."""
    return {k: 100 * accuracy for k, accuracy in run.scalars.get("test/accuracy", {}).items()}


def _of_accuracies(number: Callable[[list[float]], float]) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        scored = list(accuracies(run).values())
        return number(scored) if scored else None

    return of


LAST = Score("last, %", _of_accuracies(lambda scored: scored[-1]))
"""Test accuracy at the last evaluation."""
BEST = Score("best, %", _of_accuracies(max))
"""Test accuracy of the best round, which many papers print: the test set chose it."""
TAIL = Score(f"last {TAIL_LENGTH}, %", _of_accuracies(lambda scored: fmean(scored[-TAIL_LENGTH:])))
"""Mean test accuracy of the last evaluations."""
SECONDS = Score(
    "s a round", lambda run: median(s) if (s := _column(run, "time/round_s")) else None, 3, None
)
"""Median time of a round; says little where runs shared a machine."""


def rounds_to(target: float) -> Score:
    """Rounds until the test accuracy first reached `target` percent."""

    def of(run: Run) -> float | None:
        scored = accuracies(run)
        return (
            min((k for k, accuracy in scored.items() if accuracy >= target), default=inf)
            if scored
            else None
        )

    return Score(f"rounds to {target:g}%", of, 0, higher_is_better=False)


def megabytes_to(target: float) -> Score:
    """Megabytes that all clients together sent and received until then."""
    rounds = rounds_to(target).of

    def of(run: Run) -> float | None:
        until = rounds(run)
        if until is None or until == inf:
            return until
        ways = (run.scalars.get(tag, {}) for tag in ("comm/uplink_mb", "comm/downlink_mb"))
        return sum(megabytes for way in ways for k, megabytes in way.items() if k <= until)

    return Score(f"MB to {target:g}%", of, 0, higher_is_better=False)


def own_models(runs: Sequence[Run]) -> list[Score]:
    """Mean test accuracy of the clients' own models after each number of epochs of fine-tuning that a run scored."""
    tags = dict.fromkeys(
        tag for run in runs for tag in run.scalars if tag.startswith("personal/accuracy_")
    )

    def score(tag: str) -> Score:
        return Score(
            f"own models after {tag.rpartition('_')[2]}, %",
            lambda run: 100 * last[-1] if (last := _column(run, tag)) else None,
        )

    return [score(tag) for tag in tags]


def _column(run: Run, tag: str) -> list[float]:
    return list(run.scalars.get(tag, {}).values())
