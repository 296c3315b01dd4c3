"""Client sampling, and the assignment of clients to ranks."""

from collections import Counter
from functools import partial
from itertools import combinations, permutations

import pytest
import torch

from fl_lightning.federation.sampling import (
    BernoulliSampling,
    SizeWeightedSampling,
    UniformSampling,
    assign_to_ranks,
    largest_cohort,
)

SIZES = torch.arange(1.0, 51.0)


@pytest.mark.parametrize(
    "sampler", [UniformSampling(0.3), BernoulliSampling(0.3), SizeWeightedSampling(0.3, SIZES)]
)
def test_a_cohort_is_a_function_of_seed_and_round(sampler):
    draw = sampler(50, 7, 3)
    torch.manual_seed(99)
    sampler(50, 7, 2)
    assert sampler(50, 7, 3) == draw == sorted(set(draw))
    assert sampler(50, 7, 4) != draw
    assert sampler(50, 8, 3) != draw


@pytest.mark.parametrize(
    ("fraction", "clients", "size"),
    [(0.1, 100, 10), (0.25, 10, 3), (0.001, 10, 1), (1.0, 7, 7), (0.35, 10, 4)],
)
def test_a_fixed_size_is_rounded_and_at_least_one(fraction, clients, size):
    sizes = torch.arange(1.0, clients + 1)
    for sampler in (UniformSampling(fraction), SizeWeightedSampling(fraction, sizes)):
        assert len({*sampler(clients, 0, 0)}) == size


def test_all_clients_take_part_equally_often():
    counts = torch.zeros(20)
    for round in range(1000):
        counts[UniformSampling(0.25)(20, 0, round)] += 1
    assert counts.sum() == 5000
    assert (counts - 250).abs().max() < 5 * (1000 * 0.25 * 0.75) ** 0.5


def test_bernoulli_cohorts_have_the_fraction_on_average():
    sizes = [len(BernoulliSampling(0.2)(100, 0, round)) for round in range(500)]
    assert abs(sum(sizes) / 500 - 20) < 5 * (100 * 0.2 * 0.8 / 500) ** 0.5
    assert len(set(sizes)) > 10


def test_bernoulli_is_never_empty():
    assert all(BernoulliSampling(0.01)(3, 0, round) for round in range(200))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
def test_a_fraction_outside_0_to_1_is_refused(fraction):
    weighted = partial(SizeWeightedSampling, sizes=SIZES)
    for kind in (UniformSampling, BernoulliSampling, weighted):
        with pytest.raises(ValueError, match=f"at most 1, not {fraction}"):
            kind(fraction)


def law(sizes: list[int], count: int) -> dict[tuple[int, ...], float]:
    """The probability of every cohort of clients drawn one by one in proportion to size."""
    cohorts = dict.fromkeys(combinations(range(len(sizes)), count), 0.0)
    for order in permutations(range(len(sizes)), count):
        probability, left = 1.0, sum(sizes)
        for client in order:
            probability *= sizes[client] / left
            left -= sizes[client]
        cohorts[tuple(sorted(order))] += probability
    return cohorts


@pytest.mark.parametrize("sizes", [[1, 2, 3, 3, 4, 5, 6], [9, 1, 2, 8]], ids=["even", "uneven"])
def test_weighted_cohorts_follow_their_exact_law(sizes):
    rounds, exact = 4000, law(sizes, 2)
    draw = SizeWeightedSampling(2 / len(sizes), torch.tensor(sizes))
    drawn = Counter(tuple(draw(len(sizes), 0, round)) for round in range(rounds))
    assert drawn.keys() <= exact.keys()
    for cohort, p in exact.items():
        assert abs(drawn[cohort] - rounds * p) < 4 * (rounds * p * (1 - p)) ** 0.5
    assert max(exact.values()) > 5 * min(exact.values())  # a uniform draw would not pass


@pytest.mark.parametrize(("sizes", "count"), [([1, 2, 3, 3, 4, 5, 6], 3), ([9, 1, 2, 8], 4)])
def test_weighted_clients_know_their_probability_to_take_part(sizes, count):
    exact = torch.zeros(len(sizes), dtype=torch.float64)
    for cohort, p in law(sizes, count).items():
        exact[list(cohort)] += p
    known = SizeWeightedSampling(count / len(sizes), torch.tensor(sizes)).probabilities
    assert float(known.sum()) == pytest.approx(count, rel=1e-12)
    assert (known - exact).abs().max() < 0.02


def test_sizes_must_be_those_of_the_clients():
    with pytest.raises(ValueError, match="sizes of 50 clients, but there are 49"):
        SizeWeightedSampling(0.3, SIZES)(49, 0, 0)


def test_few_of_many_are_drawn_uniformly():
    """With more than a hundred times the cohort, not by a permutation of all clients."""
    parts = torch.zeros(10)
    for round in range(1000):
        cohort = UniformSampling(1e-4)(100_000, 0, round)
        assert len(set(cohort)) == 10
        assert cohort == sorted(cohort)
        parts += torch.tensor(cohort).div(10_000, rounding_mode="floor").bincount(minlength=10)
    assert (parts - 1000).abs().max() < 4 * 1000**0.5


def test_repeats_do_not_shorten_a_cohort_of_few_among_many(monkeypatch):
    draws = iter([torch.tensor([7, 3, 7]), torch.tensor([3, 3, 9]), torch.tensor([1, 2, 4])])
    monkeypatch.setattr(torch, "randint", lambda *_, **__: next(draws))
    assert UniformSampling(3e-5)(100_000, 0, 0) == [3, 7, 9]


@pytest.mark.parametrize(
    ("sampler", "clients", "most"),
    [
        (UniformSampling(0.1), 50, 5),
        (SizeWeightedSampling(0.1, SIZES), 50, 5),
        (BernoulliSampling(0.1), 10_000, 1201),
        (BernoulliSampling(0.5), 8, 8),
        (lambda num_clients, seed, round: [0], 9, 9),
    ],
)
def test_no_cohort_is_larger_than_its_bound(sampler, clients, most):
    assert largest_cohort(sampler, clients) == most
    assert max(len(sampler(clients, 0, round)) for round in range(50)) <= most


def test_work_is_assigned_evenly_and_completely():
    work = torch.randint(1, 100, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    for ranks in (1, 2, 3, 8):
        shares = assign_to_ranks(work, ranks)
        assert sorted(i for share in shares for i in share) == list(range(40))
        loads = [sum(work[i] for i in share) for share in shares]
        assert max(loads) - min(loads) <= max(work)  # no rank waits longer than for one client
        assert max(loads) <= 4 / 3 * max(sum(work) / ranks, max(work))
        assert assign_to_ranks(work, ranks) == shares


def test_the_longest_come_first_and_ties_go_to_the_first_rank():
    assert assign_to_ranks([1, 5, 3, 3], 2) == [[1, 0], [2, 3]]
    assert assign_to_ranks([2, 2, 2, 2], 2) == [[0, 2], [1, 3]]
    assert assign_to_ranks([4, 9], 4) == [[1], [0], [], []]
