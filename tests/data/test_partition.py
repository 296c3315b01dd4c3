from collections.abc import Iterable
from functools import partial

import pytest
import torch
from torch import Tensor

from fl_lightning.core.randomness import generator
from fl_lightning.data import Partition, schemes
from fl_lightning.data.partition_draws import draw_classes, random_classes, resize


def labels(n: int = 2003, classes: int = 10) -> Tensor:
    """Unequal class counts, so that nothing divides evenly."""
    g = torch.Generator().manual_seed(0)
    return (classes * torch.rand(n, generator=g).square()).long()


def rng() -> torch.Generator:
    return generator(0, "test")


def covers_exactly(partition: Partition, n: int) -> bool:
    return torch.equal(partition.indices.sort().values, torch.arange(n))


@pytest.mark.parametrize(
    ("clients", "alpha", "min_size"),
    [(7, 0.001, 0), (7, 0.001, 10), (100, 0.1, 20), (60, 100.0, 1), (1, 0.5, 10)],
)
@pytest.mark.parametrize("balanced", [False, True])
def test_dirichlet_covers_exactly_with_a_minimum_size(
    clients: int, alpha: float, min_size: int, balanced: bool
):
    y = labels()
    partition = schemes.dirichlet(y, clients, 1, alpha=alpha, min_size=min_size, balanced=balanced)
    assert len(partition) == clients
    assert covers_exactly(partition, len(y))
    assert partition.sizes.min() >= min_size
    if balanced:
        assert partition.sizes.max() - partition.sizes.min() <= 1


@pytest.mark.parametrize("clients", [1, 7, 100, 2003])
@pytest.mark.parametrize(
    "prior", [{"alpha": 0.001}, {"alpha": 100.0}, {"classes": 1}, {"classes": 3}]
)
def test_label_prior_without_reuse_cover_exactly_in_equal_sizes(clients: int, prior: dict):
    """Also when the classes of all clients are exhausted."""
    partition = schemes.label_prior(labels(), clients, 1, **prior)
    assert covers_exactly(partition, 2003)
    assert partition.sizes.max() - partition.sizes.min() <= 1


def test_label_prior_repeat_samples_only_when_asked_to():
    y = labels()
    reused = schemes.label_prior(y, 50, 1, classes=3, reuse=True)
    assert len(reused.indices) == len(y)
    assert len(reused.indices.unique()) < len(y)
    assert (reused.histogram(y, 10) > 0).sum(1).max() <= 3
    # whole passes: within a class, no sample is held two times more often than another
    held = reused.indices.bincount(minlength=len(y))
    for label in range(10):
        assert held[y == label].max() - held[y == label].min() <= 1


def test_label_prior_follow_the_prior_while_samples_last():
    y = torch.arange(10).repeat(5000)
    counts = schemes.label_prior(y, 10, 0, alpha=1000.0).histogram(y, 10)
    assert (counts - 500).abs().max() < 120


@pytest.mark.parametrize(("clients", "classes"), [(5, 2), (7, 3), (100, 2), (100, 6), (10, 10)])
def test_pathological_clients_hold_exactly_so_many_classes_and_every_class_is_held(
    clients: int, classes: int
):
    y = labels()
    partition = schemes.pathological(y, clients, 1, classes=classes)
    counts = partition.histogram(y, 10)
    assert covers_exactly(partition, len(y))
    assert ((counts > 0).sum(1) == classes).all()
    for column in counts.T:
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1


def test_pathological_respects_rare_classes():
    y = torch.tensor([0] * 500 + [1] * 500 + [2] * 3)
    counts = schemes.pathological(y, 20, 0, classes=2).histogram(y, 3)
    assert ((counts > 0).sum(1) == 2).all()
    assert (counts[:, 2] > 0).sum() == 3


def test_pathological_mixes_which_classes_meet():
    y = torch.arange(10).repeat(500)
    holds = (schemes.pathological(y, 200, 0, classes=2).histogram(y, 10) > 0).double()
    pairs = (holds.T @ holds).fill_diagonal_(1)
    assert pairs.min() >= 1  # all 45 pairs of classes occur


@pytest.mark.parametrize("clients", [1, 7, 100])
def test_shards_and_iid_cover_exactly(clients: int):
    y = labels()
    shards = schemes.shards(y, clients, 1, per_client=2)
    iid = schemes.iid(y, clients, 1)
    assert covers_exactly(shards, len(y))
    assert covers_exactly(iid, len(y))
    assert iid.sizes.max() - iid.sizes.min() <= 1


def test_by_domain_gives_every_client_one_domain():
    domains = torch.tensor([0] * 40 + [3] * 25 + [1] * 35)  # domain 2 is held out
    partition = schemes.by_domain(torch.zeros(100, dtype=torch.int64), 6, 0, domains=domains)
    assert covers_exactly(partition, 100)
    assert [domains[part].unique().tolist() for part in partition] == [[0], [0], [1], [1], [3], [3]]
    of_array = schemes.by_domain(partition.indices * 0, 6, 0, domains=domains.numpy())
    assert of_array.digest == partition.digest
    assert partition.sizes.tolist() == [20, 20, 18, 17, 13, 12]


@pytest.mark.parametrize(
    "split",
    [
        schemes.iid,
        schemes.dirichlet,
        schemes.pathological,
        schemes.shards,
        partial(schemes.label_prior, alpha=0.1),
        partial(schemes.label_prior, classes=2, reuse=True),
        partial(schemes.label_prior, alpha=0.1, reuse=True, size=9),
        partial(schemes.by_domain, domains=labels() % 2),
    ],
)
def test_the_seed_alone_decides_the_split(split):
    y = labels()
    torch.manual_seed(0)
    first = split(y, 20, 5)
    state = torch.get_rng_state()
    again, other = split(y, 20, 5), split(y, 20, 6)
    assert first.digest == again.digest != other.digest
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y: schemes.iid(y, 3000, 0), "give 1 to 2003 clients"),
        (lambda y: schemes.dirichlet(y, 100, 0, min_size=21), "at most 20"),
        (lambda y: schemes.label_prior(y, 100, 0), "exactly one"),
        (lambda y: schemes.label_prior(y, 100, 0, classes=11), "1 to 10"),
        (lambda y: schemes.pathological(y, 3, 0, classes=2), "4 to 10"),
        (lambda y: schemes.shards(y, 2000, 0, per_client=2), "4000 shards"),
        (lambda y: schemes.label_prior(y, 0, 0, alpha=1.0, reuse=True, size=5), "0 clients"),
        (lambda y: schemes.label_prior(y, 2.5, 0, alpha=1.0, reuse=True, size=5), "2.5 clients"),
        (lambda y: schemes.label_prior(y, 3, 0, alpha=1.0, size=5), "without reuse"),
        (lambda y: schemes.by_domain(y, 3, 0, domains=y % 2), "multiple"),
    ],
)
def test_impossible_splits_are_refused(call, message: str):
    with pytest.raises(ValueError, match=message):
        call(labels())


@pytest.mark.parametrize(
    "split",
    [
        lambda y: schemes.dirichlet(y, 2, 0, alpha=1000.0, min_size=0),
        lambda y: schemes.label_prior(y, 2, 0, alpha=1.0, reuse=True, size=200),
        lambda y: Partition.from_owners(resize(y, torch.tensor([500, 500]), rng()), 2),
        lambda y: schemes.iid(y, 2, 0),
        lambda y: schemes.iid(y, 2, 0, stratified=True),
        lambda y: schemes.pathological(y, 2, 0, classes=1),
        lambda y: schemes.by_domain(y, 2, 0, domains=y),
    ],
)
def test_samples_of_a_class_are_split_independently_of_their_positions(split):
    """Of one class; files are often sorted by more than that, as by writer."""
    for samples in split(torch.zeros(1000, dtype=torch.int64)):
        assert 0.4 < (samples < 500).double().mean() < 0.6
        assert 0.4 < (samples % 2 == 0).double().mean() < 0.6


def test_classes_without_samples_are_not_drawn():
    holds = random_classes(2, 50, torch.tensor([0, 3, 0, 4, 5, 0]), rng())
    assert holds.sum(1).tolist() == [2] * 50
    assert (holds.sum(0) > 0).tolist() == [False, True, False, True, True, False]


def test_clients_whose_classes_are_exhausted_draw_in_proportion_to_what_is_left():
    log_prior = torch.tensor([[0.0, -torch.inf, -torch.inf], [0.0, -2.0, 0.0]], dtype=torch.float64)
    clients = torch.arange(2).repeat_interleave(4000)
    drawn = draw_classes(log_prior, torch.tensor([0, 30, 10]), clients, rng())
    lost, other = (row.bincount(minlength=3) / 4000 for row in drawn.view(2, 4000))
    assert lost[0] == other[0] == 0
    assert lost[1] == pytest.approx(0.75, abs=0.03)  # 4 standard deviations
    assert other[1] == pytest.approx(1 / (1 + torch.e**2), abs=0.03)


def test_small_clients_have_drawn_before_classes_are_exhausted():
    y = torch.arange(10).repeat(400)
    partition = schemes.label_prior(y, 40, 0, classes=2, sigma=1.0)
    held = (partition.histogram(y, 10) > 0).sum(1)[partition.sizes.argsort()]
    assert held[:20].max() == 2 < held[20:].max()


def test_clients_of_a_given_size_may_outnumber_the_samples():
    y = labels()
    split = partial(schemes.label_prior, y, 5000, 0, reuse=True, size=4)
    even, skewed = split(alpha=1000.0), split(alpha=0.01)
    for partition in (even, skewed):
        assert (partition.sizes == 4).all()
        assert len(partition.indices.unique()) == len(y)
    mean_classes = [(p.histogram(y, 10) > 0).sum(1).double().mean() for p in (even, skewed)]
    assert mean_classes[1] < 1.2 < 3 < mean_classes[0]
    assert split(alpha=1.0, sigma=0.5).sizes.min() >= 1


@pytest.mark.parametrize("clients", [[3, 0, 19], [7], [5, 5]])
def test_a_subset_of_clients_is_a_partition_of_its_own(clients: list[int]):
    y = labels()
    whole = schemes.dirichlet(y, 20, 0)
    some = whole.subset(torch.tensor(clients, dtype=torch.int64))
    assert [part.tolist() for part in some] == [whole[client].tolist() for client in clients]
    assert some.histogram(y, 10).equal(whole.histogram(y, 10)[clients])


@pytest.mark.parametrize(("self_balancing", "flower"), [(True, 0.384), (False, 0.341)])
def test_dirichlet_has_the_skew_of_flower_datasets(self_balancing: bool, flower: float):
    """Flower's mean total variation of 40 seeds at alpha 1, with a standard error of 0.003."""
    y = torch.arange(10).repeat(200)
    split = partial(schemes.dirichlet, y, 20, alpha=1.0, self_balancing=self_balancing)
    mixes = torch.cat([split(seed).histogram(y, 10).double() for seed in range(40)])
    distances = (mixes / mixes.sum(1, keepdim=True) - 0.1).abs().sum(1) / 2
    assert abs(distances.mean() - flower) < 0.01


@pytest.mark.parametrize(
    ("names", "shown", "rest"),
    [
        ("abcdefghij", 10, "... and 10 more clients"),
        ([f"automobile {k}" for k in range(10)], 10, "... and 10 more clients"),
        (map(str, range(62)), 18, "... and 10 more clients, 44 more classes"),
        ([f"a long name {k}" for k in range(345)], 10, "... and 10 more clients, 335 more classes"),
    ],
)
def test_a_description_shows_what_fits_80_columns(names: Iterable[str], shown: int, rest: str):
    y, classes = labels(), tuple(names)
    partition = schemes.pathological(y, 20, 0, classes=3)
    first, second, heading, *rows, last = partition.describe(y, classes).splitlines()
    assert first == f"20 clients, 2,003 samples; partition {partition.digest}"
    assert second.endswith("; mean number of classes 3.0")
    assert len(heading) == len(rows[0]) <= 80
    counts = partition.histogram(y, len(classes))[:10, :shown]
    assert [[*map(int, row.split())] for row in rows] == [
        [client, *row] for client, row in enumerate(counts.tolist())
    ]
    assert last == rest


def test_a_hundred_thousand_clients_are_feasible():
    y = labels(300_000)
    assert schemes.dirichlet(y, 100_000, 0, alpha=0.01, min_size=2).sizes.min() >= 2


def test_partition_by_hand():
    partition = Partition.from_lists([[4, 0], [], [1]])
    assert [part.tolist() for part in partition] == [[4, 0], [], [1]]
    counts = partition.histogram(torch.tensor([0, 1, 1, 1, 0]), 2)
    assert counts.tolist() == [[2, 0], [0, 0], [0, 1]]
    with pytest.raises(IndexError, match="client 3"):
        partition[3]
    with pytest.raises(ValueError, match="rise from 0"):
        Partition(torch.arange(3), torch.tensor([0, 2]))
