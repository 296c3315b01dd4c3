"""The same runs by fl_lightning."""

from functools import cache, partial

import numpy as np
import torch
from lightning.fabric import Fabric
from problem import SIZES, Case, Net, tensors, weights
from torch.optim import SGD

import fl_lightning as fl


@cache
def _fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def path(case: Case, **options: float) -> np.ndarray:
    """The weights after each round, (rounds, 83); `options` are further ones of the method."""
    x, y = (torch.cat(part) for part in zip(*tensors(), strict=True))
    owners = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    clients = fl.ClientData(
        fl.DeviceDataset(x, y, classes=("a", "b", "c")),
        fl.Partition.from_owners(owners, len(SIZES)),
        batch_size=case.batch_size,
        epochs=case.epochs,
        shuffle=False,
    )
    algorithm = getattr(fl.algorithms, case.method)(**case.coefficients() | options).replace(
        weight=fl.by_size if case.by_size else fl.uniform,
        server=partial(SGD, lr=case.server_lr),
        local=partial(SGD, lr=0.1),
    )
    federation = fl.Federation(
        _fabric(),
        Net(),
        algorithm,
        clients,
        rounds=case.rounds,
        sampler=lambda num_clients, seed, round: case.cohort(round),
    )
    found = []
    for _ in range(case.rounds):
        federation.train_round()
        federation.load_global()
        found.append(weights(federation.module))
    return np.array(found)
