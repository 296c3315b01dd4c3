"""How far the local steps of a visit would move a weight of constant gradient 1."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer


@lru_cache
def lr_sum(local: Callable[..., Optimizer], lrs: tuple[float, ...]) -> float:
    """See `Algorithm.lr_sum`; cached, since many visits have the same learning rates."""
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = local([w])
    if type(optimizer) is SGD:
        return _of_sgd(lrs, optimizer.param_groups[0])
    for lr in lrs:
        for group in optimizer.param_groups:
            group.update(lr=lr, weight_decay=0.0)
        w.grad = torch.ones_like(w)
        optimizer.step()
    return -w.item()


def _of_sgd(lrs: Sequence[float], group: Mapping[str, Any]) -> float:
    """The same for SGD, in numbers: steps on tensors took a tenth of a small model's round."""
    momentum, total, velocity = group["momentum"], 0.0, 0.0
    for step, lr in enumerate(lrs):
        velocity = momentum * velocity + 1 - group["dampening"] if step and momentum else 1.0
        total += lr * (1 + momentum * velocity if group["nesterov"] else velocity)
    return -total if group["maximize"] else total
