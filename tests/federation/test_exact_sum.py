"""Exact sums: the same bits in any order, and the numbers that they cannot hold."""

import math

import pytest
import torch
from problems import classification, everything, federation, hard
from torch import Tensor

from fl_lightning import Algorithm, DivergenceError
from fl_lightning.federation.exact_sum import BLOCK, ExactSum, PlainSum, Sum


def addends(count: int, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[float]]:
    """Vectors whose numbers have sizes from 2^-40 to 2^20, with weights that are 1 on average."""
    g = torch.Generator().manual_seed(0)
    sizes = 2.0 ** torch.randint(-40, 20, (count, 500), generator=g)
    numbers = torch.randn(count, 500, generator=g, dtype=torch.float64) * sizes
    weights = torch.rand(count, generator=g, dtype=torch.float64)
    return list(numbers.to(dtype)), (weights / weights.mean()).tolist()


def added(sums: type[Sum], groups: list[list[int]], dtype: torch.dtype = torch.float32) -> Tensor:
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
def test_exact_sums_are_the_same_bits_in_any_order_and_grouping(dtype: torch.dtype) -> None:
    exact, plain = (
        [added(sums, order, dtype) for order in ORDERS] for sums in (ExactSum, PlainSum)
    )
    assert all(value.equal(exact[0]) for value in exact)
    assert not all(value.equal(plain[0]) for value in plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_exact_sum_is_right_up_to_its_resolution(dtype: torch.dtype) -> None:
    numbers, weights = addends(12, dtype)
    weighted = [x.double() * weight for x, weight in zip(numbers, weights, strict=True)]
    columns = torch.stack(weighted).T.tolist()
    expected = torch.tensor([math.fsum(column) for column in columns], dtype=torch.float64)
    resolution, found = ExactSum(dtype, 12).resolution, added(ExactSum, ORDERS[0], dtype)
    assert resolution == 2.0**-71
    torch.testing.assert_close(found, expected, rtol=2.0**-52, atol=12 * resolution)


@pytest.mark.parametrize("count", [1, 2, 10, 1000, 100_000])
def test_the_largest_numbers_of_all_clients_fit(count: int) -> None:
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


def test_vectors_longer_than_a_block_are_added_up() -> None:
    total, x = ExactSum(torch.float32, 2), torch.randn(BLOCK + 3)
    limbs = torch.zeros(2, len(x), dtype=torch.float64)
    total.add(limbs, x, 2.0)
    assert total.value(limbs).equal(2 * x.double())


def test_numbers_that_exact_sums_cannot_hold_count_as_diverged() -> None:
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
