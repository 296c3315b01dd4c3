"""Federations after their rounds with measures, and what plain PyTorch finds of their models."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from lightning.fabric import Fabric
from problems import classifier, federation
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import Algorithm, Federation


def measured(
    *callbacks: Any,
    algorithm: Algorithm | None = None,
    fabric: Fabric | None = None,
    **options: Any,
) -> tuple[Federation, list[dict[str, float]]]:
    run, logged = federation(algorithm or Algorithm(), fabric=fabric, **options), list[Any]()
    keeps = SimpleNamespace(on_round_logged=lambda metrics: logged.append(dict(metrics)))
    run.fabric._callbacks = [*callbacks, keeps]
    try:
        run.fit()
    finally:
        run.fabric._callbacks = []
    return run, logged


def outputs(run: Federation, w: Tensor, x: Tensor) -> Tensor:
    return torch.func.functional_call(run.load_global(), run.layout.named(w), (x,))


def global_loss(run: Federation, w: Tensor) -> Tensor:
    data = run.clients.dataset
    return F.cross_entropy(outputs(run, w, data.x), data.y)


plain = partial(classifier, norm=False, dropout=0.0)
