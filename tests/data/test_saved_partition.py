"""Partitions in files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fl_lightning.data import Partition, schemes


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
