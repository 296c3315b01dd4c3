"""The sums of a round: what counts as finite, and exact sums."""

import math
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from problems import classification, everything, federation, hard, vec
from torch import Tensor

from fl_lightning import Algorithm, DivergenceError
from fl_lightning.core.algorithm import Sent
from fl_lightning.executors import ClientResult
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.divergence import OnDivergence
from fl_lightning.federation.exact_sum import BLOCK, ExactSum, PlainSum


def result(
    progress: float = 1.0, loss: float = 1.0, message: float = 1.0, mean: float = 1.0
) -> ClientResult:
    buffers = {"mean": vec(mean)}
    value = torch.tensor(loss, dtype=torch.float64)
    moved, one = vec(progress, -1.0), vec(1.0)[0]
    sent = Sent(moved, one, 128 * one)
    return ClientResult(moved, sent, [(vec(message),)], [], buffers, value, vec(0, 0), vec())


def begun(cohort: int, sums: type[PlainSum] = PlainSum, mode: OnDivergence = "stop") -> RoundSums:
    like = result()
    return RoundSums(like.progress, like.message, like.buffers, cohort, sums, mode)


@pytest.mark.parametrize("sums", [PlainSum, ExactSum])
@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("what", ["progress", "loss", "message", "mean"])
def test_what_is_not_finite_diverged_except_a_loss_that_no_term_evaluated(what, value, sums):
    total = begun(2, sums)
    total.add(result(), 1.0, 0)
    total.add(result(**{what: value}), 1.0, 1)
    unasked = what == "loss" and value != value
    assert [*total.read()[0].diverged] == ([] if unasked else [1])


@pytest.mark.parametrize("what", ["progress", "message", "mean"])
def test_exact_sums_hold_nothing_above_their_limit(what):
    large: dict[str, Any] = {what: 2 * ExactSum(torch.float64, 1).limit}
    for sums, fits in ((PlainSum, True), (ExactSum, False)):
        total = begun(1, sums)
        total.add(result(**large), 1.0, 0)
        assert bool(total.is_finite(0)) == fits


CONSTANTS = {
    "mask": torch.tensor([0.0, -inf]),
    "large": torch.tensor([123_456_789, 2**53 + 1]),
    "phase": torch.polar(torch.ones(3), torch.arange(3.0)),
    "flag": torch.tensor([True, False]),
    "byte": torch.tensor([255, 0], dtype=torch.uint8),
}


@pytest.mark.parametrize("sums", [PlainSum, ExactSum])
def test_buffers_that_no_client_changes_stay_exact(sums):
    one = replace(result(), buffers=CONSTANTS)
    total = RoundSums(one.progress, one.message, CONSTANTS, 2, sums)
    for k, weight in enumerate((0.3, 1.7)):
        total.add(one, weight, k)
        assert total.is_finite(k)
    for name, buffer in total.means()[2].items():
        assert (buffer.dtype, buffer.equal(CONSTANTS[name])) == (CONSTANTS[name].dtype, True), name


def test_buffers_of_all_kinds_are_averaged():
    before = {"phase": torch.tensor([1j]), "byte": torch.tensor([3], dtype=torch.uint8)}
    after = {"phase": torch.tensor([3 + 1j]), "byte": torch.tensor([1], dtype=torch.uint8)}
    one, other = (replace(result(), buffers=buffers) for buffers in (before, after))
    total = RoundSums(one.progress, one.message, before, 2)
    for k, client in enumerate((one, other)):
        total.add(client, 1.0, k)
    averaged = total.means()[2]
    assert averaged["phase"].tolist() == [1.5 + 1j]
    assert averaged["byte"].tolist() == [2]


@pytest.mark.parametrize(("left", "counts"), [([0.0, 0.0], False), ([0.0, 0.5], True), ([], False)])
def test_clients_without_weight_leave_nothing_to_average(left, counts):
    total = begun(1 + len(left), mode="skip-client")
    for position, weight in enumerate(left):
        total.add(result(), weight, position)
    total.add(result(nan), 1.0, len(left))
    assert total.read()[0].counts == counts


def addends(count: int, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[float]]:
    """Vectors whose numbers have sizes from 2^-40 to 2^20, with weights that are 1 on average."""
    g = torch.Generator().manual_seed(0)
    sizes = 2.0 ** torch.randint(-40, 20, (count, 500), generator=g)
    numbers = torch.randn(count, 500, generator=g, dtype=torch.float64) * sizes
    weights = torch.rand(count, generator=g, dtype=torch.float64)
    return list(numbers.to(dtype)), (weights / weights.mean()).tolist()


def added(
    sums: type[PlainSum], groups: list[list[int]], dtype: torch.dtype = torch.float32
) -> Tensor:
    """The sum of weighted vectors, each group on a rank of its own."""
    numbers, weights = addends(sum(map(len, groups)), dtype)
    total = sums(dtype, len(numbers))
    ranks = []
    for group in groups:
        limbs = torch.zeros(total.limbs, 500, dtype=total.dtype)
        for k in group:
            total.add(limbs, numbers[k], weights[k])
        ranks.append(limbs)
    return total.value(torch.stack(ranks).sum(0))


ORDERS = [
    [list(range(12))],
    [list(range(11, -1, -1))],
    [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]],
    [[11], [], list(range(11))],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exact_sums_are_the_same_bits_in_any_order_and_grouping(dtype):
    exact, plain = (
        [added(sums, order, dtype) for order in ORDERS] for sums in (ExactSum, PlainSum)
    )
    assert all(value.equal(exact[0]) for value in exact)
    assert not all(value.equal(plain[0]) for value in plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_exact_sum_is_right_up_to_its_resolution(dtype):
    numbers, weights = addends(12, dtype)
    weighted = [x.double() * weight for x, weight in zip(numbers, weights, strict=True)]
    columns = torch.stack(weighted).T.tolist()
    expected = torch.tensor([math.fsum(column) for column in columns], dtype=torch.float64)
    resolution, found = ExactSum(dtype, 12).resolution, added(ExactSum, ORDERS[0], dtype)
    assert resolution == 2.0**-71
    torch.testing.assert_close(found, expected, rtol=2.0**-52, atol=12 * resolution)


@pytest.mark.parametrize("count", [1, 2, 10, 1000, 100_000])
def test_the_largest_numbers_of_all_clients_fit(count):
    """Sums of both limbs stay so small that float64 holds every multiple of their steps."""
    total = ExactSum(torch.float64, count)
    limbs = torch.zeros(2, 1, dtype=torch.float64)
    largest = torch.full((1,), total.limit * (1 - 2.0**-53), dtype=torch.float64)
    for weight in (count / 2, count / 4, count / 4):  # the weight of all clients, on three
        total.add(limbs, largest, weight)
    (coarse,), (fine,) = limbs
    steps = coarse / (total.resolution * 2.0 ** (52 - (count - 1).bit_length()))
    assert steps == steps.round()
    assert abs(steps) <= 2**53
    assert abs(fine) / total.resolution <= 2**53
    assert coarse + fine == pytest.approx(count * total.limit)


def test_vectors_longer_than_a_block_are_added_up():
    total, x = ExactSum(torch.float32, 2), torch.randn(BLOCK + 3)
    limbs = torch.zeros(2, len(x), dtype=torch.float64)
    total.add(limbs, x, 2.0)
    assert total.value(limbs).equal(2 * x.double())


def test_numbers_that_exact_sums_cannot_hold_count_as_diverged():
    """Though finite: BatchNorm's statistics are as large as its inputs."""
    clients = classification()
    clients.dataset.x[clients.partition[4][-1]] = 1e12
    exact, plain = (
        federation(hard(Algorithm()), clients=clients, deterministic=mode) for mode in (True, False)
    )
    with pytest.raises(DivergenceError, match=r"client 4 .*sums of numbers below 16,777,216"):
        exact.train_round()
    plain.train_round()
    assert all(value.double().isfinite().all() for value in everything(plain).values())
