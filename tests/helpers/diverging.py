"""Runs of six clients, some of which diverge."""

from typing import Any

import torch
from problems import classification, everything, federation, hard
from torch import Tensor

from fl_lightning import Algorithm, ClientData, Federation

COHORT = [0, 1, 2, 4, 5]


def spoiled(*clients: int) -> ClientData:
    """The six clients, some with a sample that is no number."""
    data = classification()
    for client in clients:
        data.dataset.x[data.partition[client][-1]] = torch.nan
    return data


def begin(
    algorithm: Algorithm, *bad: int, on_divergence: Any = "skip-client", **options: Any
) -> Federation:
    options = {"sampler": lambda *_: COHORT, **options}
    return federation(
        hard(algorithm), clients=spoiled(*bad), on_divergence=on_divergence, **options
    )


def kept(run: Federation) -> dict[str, Tensor]:
    """A copy of everything, and the state of the server's optimizer."""
    (of_optimizer,) = run.server.optimizer.state_dict()["state"].values()
    return {name: value.clone() for name, value in {**everything(run), **of_optimizer}.items()}
