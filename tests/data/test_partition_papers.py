"""The papers' splits over clients, test sets of each client, validation parts, and files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_lightning import DeviceDataset
from fl_lightning.data import (
    Partition,
    hold_out,
    hold_out_of_clients,
    matched_test_split,
    own_test_split,
    schemes,
)


def labels(counts: list[int], seed: int = 0) -> Tensor:
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_lda_stops_at_the_cap_and_lifts_everyone_to_ten(alpha: float):
    y = labels([500] * 10)
    counts = schemes.dirichlet(y, 50, 3, alpha=alpha, min_size=0).histogram(y, 10)
    before = counts.cumsum(1) - counts
    assert (counts[before >= 100] == 0).all()  # who holds 5000 / 50 gets nothing more
    assert counts.sum(1).min() < 10
    lifted = schemes.dirichlet(y, 50, 3, alpha=alpha, min_size=10)
    assert lifted.sizes.min() == 10
    assert lifted.sizes.sum() == 5000


def test_shards_by_class_are_pure_runs_of_the_class():
    y = labels([30, 60, 90])
    partition = schemes.shards(y, 3, 1, by_class=True)  # 2 shards a class, of 15, 30 and 45
    assert torch.equal(partition.indices.sort().values, torch.arange(180))
    halves = [(y == label).nonzero().flatten().view(2, -1).tolist() for label in range(3)]
    owned = []
    for part in partition:
        held = set(part.tolist())
        whole = [(c, k) for c in range(3) for k in range(2) if held >= set(halves[c][k])]
        assert len(whole) == 2
        assert len(held) == sum(15 * (label + 1) for label, _ in whole)
        owned += whole
    assert len(set(owned)) == 6


def test_shards_by_class_are_mcmahans_where_classes_are_equal_and_hold_all_where_nothing_divides():
    y = labels([60] * 10)
    assert schemes.shards(y, 20, 4, by_class=True).digest == schemes.shards(y, 20, 4).digest
    # 8 shards of 3 classes: the largest classes are cut into 3, that of 30 into 2
    y = labels([0, 30, 90, 61])
    partition = schemes.shards(y, 4, 4, per_client=2, by_class=True)
    assert torch.equal(partition.indices.sort().values, torch.arange(181))
    assert ((partition.histogram(y, 4) > 0).sum(1) <= 2).all()
    possible = {a + b for a in (15, 30, 20, 21) for b in (15, 30, 20, 21)}
    assert set(partition.sizes.tolist()) <= possible
    for clients, per_client in ((2, 1), (80, 2)):
        with pytest.raises(ValueError, match="cannot be cut from 3 classes of 30 to 90"):
            schemes.shards(y, clients, 0, per_client=per_client, by_class=True)


@pytest.mark.parametrize(
    "split",
    [schemes.iid, lambda *arguments, **sigma: schemes.label_prior(*arguments, alpha=0.3, **sigma)],
)
def test_sizes_are_log_normal_with_sigma_and_equal_without(split):
    y = labels([2000] * 10)
    assert split(y, 400, 0, sigma=0.0).digest == split(y, 400, 0).digest
    assert split(y, 400, 0).sizes.tolist() == [50] * 400
    partition = split(y, 400, 0, sigma=0.3)
    assert torch.equal(partition.indices.sort().values, torch.arange(20_000))
    assert partition.sizes.double().log().std().item() == pytest.approx(0.3, abs=0.04)
    wild = split(y, 400, 0, sigma=20.0)
    assert (int(wild.sizes.min()), int(wild.sizes.sum())) == (1, 20_000)


def test_stratified_iid_clients_hold_the_same_of_every_class():
    y = labels([50] * 20)
    for clients in (10, 50):
        partition = schemes.iid(y, clients, 0, stratified=True)
        assert torch.equal(partition.indices.sort().values, torch.arange(1000))
        assert (partition.histogram(y, 20) == 50 // clients).all()
    counts = schemes.iid(y, 10, 0, stratified=True, sigma=0.5).histogram(y, 20)
    share = counts.sum(1, keepdim=True) / 20
    assert share.max() > 1.5 * share.min()
    assert (counts - share).abs().max() < 2


def test_matched_test_sets_have_the_proportions_of_training():
    y = labels([100, 100, 30])
    counts = torch.tensor([[10, 30, 0], [1, 1, 1], [0, 0, 7], [250, 0, 750]])
    split = matched_test_split(y, counts, size=100, seed=0)
    # a quarter and three quarters; a third each, but only 30 of the last; all of the last; 25, 75
    assert split.histogram(y, 3).tolist() == [[25, 75, 0], [33, 33, 30], [0, 0, 30], [25, 0, 30]]
    for part in split:
        assert len(part.unique()) == len(part)
    assert set(split[0].tolist()) & set(split[1].tolist())  # clients share images
    again, other = (matched_test_split(y, counts, 100, seed).digest for seed in (0, 1))
    assert again == split.digest != other


def test_shares_that_are_whole_numbers_are_not_lost_to_rounding():
    y = labels([300, 300])
    counts = torch.tensor([[k, 300 - k] for k in range(301)])
    assert torch.equal(matched_test_split(y, counts, size=300).histogram(y, 2), counts)


def test_every_client_gets_a_test_image():
    y = labels([5, 5, 0, 5])
    counts = torch.tensor([[3, 4, 3, 0], [1, 0, 9, 2], [0, 0, 8, 0], [0, 0, 0, 0]])
    # the class held most of those that there are; a client without any of them gets the first
    expected = [[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert matched_test_split(y, counts, size=2).histogram(y, 4).tolist() == expected


def test_aligned_images_are_drawn_evenly_and_for_each_client_by_itself():
    y = labels([4, 4])
    split = matched_test_split(y, torch.tensor([[1, 1]]).expand(3000, 2), size=4)
    assert split.sizes.tolist() == [4] * 3000
    assert (split.indices.bincount() / 1500 - 1).abs().max() < 0.06
    pairs = split.indices.view(3000, 4)
    assert len(pairs.unique(dim=0)) == 36  # any two of four, twice


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
        given = {"domains": torch.tensor(owners), "domain_names": ("ann", "bob", "cem")}
        return DeviceDataset(torch.zeros(len(owners), 1), torch.zeros(len(owners)), **given)

    train, test = samples(0, 1, 0, 2), samples(2, 0, 2)
    own = own_test_split(train, test, Partition.from_lists([[0, 2], [], [1], [3]]))
    assert own is not None
    assert [own[k].tolist() for k in range(4)] == [[1], [], [], [0, 2]]
    mixed = own_test_split(train, test, Partition.from_lists([[0, 1], [3]]))
    assert mixed is not None
    assert mixed.sizes.tolist() == [0, 2]
    assert own_test_split(train, test, Partition.from_lists([[1]])) is None
    assert own_test_split(train, DeviceDataset(test.x, test.y), own) is None


def test_saved_partitions_come_back_and_damage_is_noticed(tmp_path: Path):
    partition = schemes.dirichlet(torch.arange(2003) % 10, 20, 0)
    path = partition.save(tmp_path / "splits")
    assert partition.digest in path.name
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    again = Partition.load(path)
    assert again.digest == partition.digest
    assert torch.equal(again[3], partition[3])

    with np.load(path) as file:
        content = dict(file)
    whole = path.read_bytes()
    damaged = [whole[:1000], whole[:1500] + bytes([whole[1500] ^ 1]) + whole[1501:]]
    for name in ("indices", "offsets"):  # another split than the digest names
        other = content[name].copy()
        other[1] += 1
        np.savez(path, **{**content, name: other})
        damaged.append(path.read_bytes())
    for bad in damaged:
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="damaged"):
            Partition.load(path)
    with pytest.raises(ValueError, match="nothing"):
        Partition.load(tmp_path / "nothing.npz")


def test_a_saved_split_of_other_clients_or_samples_is_refused(tmp_path: Path, refused):
    lists = [[0, 5], [2]], [[1], [2], [3], [4], [5], [1437]]
    for split, words in zip(lists, ("over 2 clients", "sample 1437"), strict=True):
        path = Partition.from_lists(split).save(tmp_path)
        assert words in refused("--partition", "from_file", "--partition.file", str(path))
