"""What the chosen functions make, any of which may be a user's: data, partition, model and algorithm, checked."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import nn

from fl_lightning.algorithms import modifiers
from fl_lightning.cli.parser import Chosen
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.randomness import derived_seed
from fl_lightning.data import DeviceDataset, Partition


def build_data(source: Chosen, root: Path) -> tuple[DeviceDataset, DeviceDataset]:
    """The training and the test set of a source, which may read files in `root`.

    Raises:
        ValueError: If they are none, of two kinds, empty, or not finite.
    """
    pair = source(root=root) if source.wants("root") else source()
    if not (
        isinstance(pair, tuple)
        and len(pair) == 2
        and all(isinstance(part, DeviceDataset) for part in pair)
    ):
        raise ValueError(
            f"{source.name} must return a training and a test DeviceDataset, but returned {_short(pair)}"
        )
    train, test = pair
    _check_pair(train, test, source.name)
    return train, test


def _check_pair(train: DeviceDataset, test: DeviceDataset, name: str) -> None:
    """Raises ValueError unless training and test set are of one kind, with samples, all of them finite.

    Args:
        train: The training set.
        test: The test set.
        name: Their source.
    """
    for kind, data in (("training", train), ("test", test)):
        if not len(data):
            raise ValueError(f"{name} has no {kind} samples: give it at least one")
        bad = (
            0
            if data.x.dtype == torch.uint8
            else int((~data.x.reshape(len(data), -1).isfinite().all(1)).sum())
        )
        if bad:
            raise ValueError(
                f"{bad} of {len(data)} {kind} samples of {name} are not finite: leave them out"
            )
    both = [(data.classes, data.shape, data.x.dtype) for data in (train, test)]
    if both[0] != both[1]:
        told = [
            f"{len(classes)} classes and samples of shape {shape} of {dtype}"
            for classes, shape, dtype in both
        ]
        raise ValueError(
            f"{name} has a training set of {told[0]}, and a test set of {told[1]}: give both the same"
        )


def build_partition(
    scheme: Chosen, train: DeviceDataset, source: str, clients: int, seed: int
) -> Partition:
    """The training set over the clients.

    Raises:
        ValueError: If it is no partition of these samples over so many clients, or needs domains
            and the source, named here, has none.
    """
    domains = {"domains": train.domains} if scheme.wants("domains") else {}
    if domains and train.domains is None:
        raise ValueError(f"{source} has no domains to split by: choose another --partition")
    partition = scheme(train.y, clients, seed, **domains)
    if not isinstance(partition, Partition):
        raise ValueError(
            f"{scheme.name} must return a Partition, as Partition.from_owners and Partition.from_lists make it, but "
            f"returned {_short(partition)}"
        )
    if len(partition) != clients:
        raise ValueError(
            f"{scheme.name} splits over {len(partition)} clients, but --clients is {clients}: make them equal"
        )
    if len(partition.indices) and (highest := int(partition.indices.max())) >= len(train):
        raise ValueError(
            f"{scheme.name} hands out sample {highest}, but there are {len(train)}, counted from 0"
        )
    return partition


def build_model(factory: Chosen, train: DeviceDataset, seed: int) -> nn.Module:
    """The model for samples of this data set, with weights drawn from the run's seed.

    Raises:
        ValueError: If it is none.
    """
    shape = {"classes": len(train.classes), "channels": train.shape[0], "size": train.shape[-1]}
    shape["inputs"] = torch.Size(train.shape).numel()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "model"))
        model = factory(**{name: size for name, size in shape.items() if factory.wants(name)})
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"{factory.name} must return a torch.nn.Module, but returned {_short(model)}"
        )
    return model


def build_algorithm(chosen: Mapping[str, Chosen]) -> Algorithm:
    """The algorithm with what is added to it.

    Raises:
        ValueError: If it is none, or what is added does not go with it.
    """
    made = chosen["algorithm"]()
    if not isinstance(made, Algorithm):
        raise ValueError(
            f"{chosen['algorithm'].name} must return an Algorithm, but returned {_short(made)}"
        )
    for part in modifiers.PARTS:
        made = chosen[part]().to(made)
    return made


def _short(value: Any) -> str:
    return shorten(repr(value), 80, placeholder=" ...")
