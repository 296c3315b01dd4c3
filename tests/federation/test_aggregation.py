"""The sums of a round: what counts as finite, and the means without skipped clients."""

from math import inf, nan
from typing import Any

import pytest
import torch
from problems import close, vec
from torch import Tensor

from fl_lightning.executors import Outcome
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.exact_sum import ExactSum, PlainSum, Sum


def outcome(
    progress: float = 1.0, loss: float = 1.0, message: float = 1.0, mean: float = 1.0, seen: int = 1
) -> Outcome:
    """Of a model of two weights with BatchNorm's buffers."""
    buffers = {"mean": vec(mean), "seen": torch.tensor(seen)}
    value = torch.tensor(loss, dtype=torch.float64)
    return Outcome(vec(progress, -1.0), [(vec(message),)], [], buffers, value, vec(0, 0))


def begun(cohort: int, sums: type[Sum] = PlainSum, skip_diverged: bool = False) -> RoundSums:
    like = outcome()
    return RoundSums(like.progress, like.message, like.buffers, cohort, sums, skip_diverged)


def summed(*outcomes: tuple[Outcome, float]) -> RoundSums:
    """Of outcomes and their weights; those that are not finite are left out."""
    total = begun(len(outcomes), skip_diverged=True)
    for position, (one, weight) in enumerate(outcomes):
        total.add(one, weight, position)
    return total


@pytest.mark.parametrize("sums", [PlainSum, ExactSum])
@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("what", ["progress", "loss", "message", "mean"])
def test_what_is_not_finite_diverged_except_a_loss_that_no_term_evaluated(
    what: str, value: float, sums: type[Sum]
) -> None:
    total = begun(2, sums)
    assert bool(total.add(outcome(), 1.0, 0))
    unasked = what == "loss" and value != value
    assert bool(total.add(outcome(**{what: value}), 1.0, 1)) == unasked
    assert [*total.status().diverged] == ([] if unasked else [1])


@pytest.mark.parametrize("what", ["progress", "message", "mean"])
def test_exact_sums_hold_nothing_above_their_limit(what: str) -> None:
    large: dict[str, Any] = {what: 2 * ExactSum(torch.float64, 1).limit}
    assert bool(begun(1).add(outcome(**large), 1.0, 0))
    assert not bool(begun(1, ExactSum).add(outcome(**large), 1.0, 0))


def means(total: RoundSums) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Progress, message, statistics and the number of batches seen."""
    (progress, _), ((message,),), buffers, _ = total.means()
    return progress, message, buffers["mean"], buffers["seen"]


def test_means_leave_out_a_skipped_client_and_its_weight() -> None:
    """Two clients with weights 0.5 and 1; messages are averaged without weights."""
    first, second = outcome(1.0, 2.0, 3.0, 4.0, 5), outcome(2.0, 4.0, 7.0, 8.0, 8)
    total = summed((first, 0.5), (second, 1.0), (outcome(nan), 1.5))
    progress, message, mean, seen = means(total)
    close(progress, (0.5 * 1 + 1.0 * 2) / 1.5, -1)
    close(message, (3 + 7) / 2)
    close(mean, (0.5 * 4 + 1.0 * 8) / 1.5)
    assert seen == (0.5 * 5 + 1.0 * 8) / 1.5
    loss, squared = total.means()[-1]
    assert float(loss) == (2 + 4) / 2
    assert float(squared) == (0.5 * (1 + 1) + 1.0 * (4 + 1)) / 1.5


def test_a_mean_of_whole_numbers_is_rounded_not_cut() -> None:
    seen = means(summed((outcome(seen=6), 0.25), (outcome(seen=7), 1.75)))[-1]
    assert (seen.dtype, int(seen)) == (torch.int64, 7)


@pytest.mark.parametrize(("left", "empty"), [([0.0, 0.0], True), ([0.0, 0.5], False), ([], True)])
def test_clients_without_weight_leave_nothing_to_average(left: list[float], empty: bool) -> None:
    total = summed((outcome(nan), 1.0), *((outcome(), weight) for weight in left))
    assert total.status().empty == empty
