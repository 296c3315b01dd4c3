"""Whether vectors and states are finite, as numbers on the device for which nobody waits."""

from collections.abc import Mapping, Sequence
from math import inf

import torch
from torch import Tensor

from fl_lightning.core.term import States

Finite = Sequence[Mapping[str, bool]]
"""Which states begin as finite numbers, one dictionary a term."""


def all_below(tensor: Tensor, limit: float = inf) -> Tensor:
    """Whether all numbers are finite and below `limit` in size, 0-dim; one pass over memory."""
    if not tensor.numel() or tensor.is_complex():
        return tensor.isfinite().all()
    least, most = tensor.aminmax()
    return (least > -limit) & (most < limit)  # false for nan


def finite(states: Sequence[States]) -> Finite:
    """Which states, one dictionary a term, are finite: those that begin otherwise do so on purpose."""
    return [{name: bool(all_below(state)) for name, state in of_term.items()} for of_term in states]


def stay_finite(began: Finite, states: Sequence[States]) -> list[Tensor]:
    """Whether each state, in the order in which `began` names them, is finite if it was, 0-dim."""
    every = zip(began, states, strict=True)
    return [
        all_below(of_term[name]) if watched else of_term[name].new_ones((), dtype=torch.bool)
        for names, of_term in every
        for name, watched in names.items()
    ]
