"""Validation parts: disjoint from what is trained on, or from the rest of the test set."""

import pytest
import torch

from fl_lightning import DeviceDataset, Partition
from fl_lightning.data import hold_out, hold_out_of_clients, own_test_split, schemes


def test_every_client_gives_its_share_and_keeps_the_rest() -> None:
    y = torch.arange(1000) % 10
    partition = schemes.dirichlet(y, 20, seed=0, alpha=0.3)
    kept, held = hold_out_of_clients(partition, 0.1, seed=3)
    for client in range(20):
        given = partition[client][torch.isin(partition[client], held)]
        assert len(given) == round(0.1 * len(partition[client]))
        assert sorted([*given.tolist(), *kept[client].tolist()]) == partition[client].tolist()
    again, other = (hold_out_of_clients(partition, 0.1, seed)[1] for seed in (3, 4))
    assert again.equal(held)
    assert not other.equal(held)


@pytest.mark.parametrize("fraction", [0.5, 0.999])
def test_no_client_is_emptied(fraction: float) -> None:
    kept, held = hold_out_of_clients(Partition.from_lists([[0], [1, 2], [3, 4, 5]]), fraction, 0)
    assert min(kept.sizes.tolist()) >= 1
    assert len(held) == (2 if fraction == 0.5 else 3) + (fraction == 0.5)


def test_no_client_is_emptied_by_what_others_give() -> None:
    partition = Partition.from_lists([[0, 1], [0], [1], [2, 3, 4, 5]])
    kept, held = hold_out_of_clients(partition, 0.5, seed=0)
    assert min(kept.sizes.tolist()) >= 1
    assert not torch.isin(kept.indices, held).any()
    assert len(held) == 2


def test_a_test_set_is_split() -> None:
    x = torch.arange(50.0)[:, None]
    y, domains = torch.arange(50) % 5, torch.arange(50) % 2
    data = DeviceDataset(x, y, tuple("abcde"), domains=domains, domain_names=("u", "v"))
    rest, part = hold_out(data, 0.2, seed=1)
    assert (len(rest), len(part)) == (40, 10)
    assert sorted([*rest.x.flatten().tolist(), *part.x.flatten().tolist()]) == x.flatten().tolist()
    for half in (rest, part):
        assert half.y.equal(half.x.flatten().long() % 5)
        assert half.domains is not None
        assert half.domains.equal(half.x.flatten().long() % 2)


def test_own_test_samples_have_the_owner_of_all_training_samples():
    def samples(*owners: int) -> DeviceDataset:
        domains, names = torch.tensor(owners), ("ann", "bob", "cem")
        return DeviceDataset(
            torch.zeros(len(owners), 1),
            torch.zeros(len(owners)),
            domains=domains,
            domain_names=names,
        )

    train, test = samples(0, 1, 0, 2), samples(2, 0, 2)
    own = own_test_split(train, test, Partition.from_lists([[0, 2], [], [1], [3]]))
    assert own is not None
    assert [own[k].tolist() for k in range(4)] == [[1], [], [], [0, 2]]
    mixed = own_test_split(train, test, Partition.from_lists([[0, 1], [3]]))
    assert mixed is not None
    assert mixed.sizes.tolist() == [0, 2]
    assert own_test_split(train, test, Partition.from_lists([[1]])) is None
    assert own_test_split(train, DeviceDataset(test.x, test.y), own) is None
