"""Divergence: which numbers of a round are no longer finite, and the errors that name them."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.core.term import States, Term
from fl_lightning.errors import DivergenceError

OnDivergence = Literal["stop", "skip-client", "continue"]
"""Stop the run, leave the client out of the round, or ignore it."""

FiniteFlags = Sequence[Mapping[str, bool]]
"""Which states are finite, one dictionary a term."""


def client_diverged(
    found: Mapping[int, int], position: str, terms: Sequence[Term], settings: str
) -> DivergenceError:
    """The error that names the clients and the part of each that is not finite.

    `found` is by client the index of the part: the training, each client state, each message.
    """
    states = [f"the state {name!r} that {_name(t)} keeps" for t in terms for name in t.client]
    parts = ["the training", *states, *(f"what {_name(t)}.report returned" for t in terms)]
    named = []
    for part in sorted(set(found.values())):
        clients = [client for client in found if found[client] == part]
        shown = ", ".join(map(str, clients[:5])) + ", ..." * (len(clients) > 5)
        named.append(
            f"{parts[part]} {'for' if part else 'of'} client{'s' * (len(clients) > 1)} {shown}"
        )
    though = "" if 0 in found.values() else ", though the training was"
    fix = "; or choose on_divergence skip-client"
    return _diverged(position, ", and ".join(named), though, settings, fix)


def server_diverged(
    part: int, position: str, terms: Sequence[Term], settings: str
) -> DivergenceError:
    """The error that names the part of the server's step that is not finite.

    `part` is its index: the mean update after the terms, each server state, the model.
    """
    states = [f"the server's state {name!r} of {_name(t)}" for t in terms for name in t.server]
    parts = ["what the terms made of the mean update", *states, "the model"]
    though = ", though what the clients sent was" if part < len(parts) - 1 else ""
    return _diverged(position, parts[part], though, settings)


def _diverged(
    position: str, what: str, though: str, settings: str, fix: str = ""
) -> DivergenceError:
    first = "look there for a division by zero, or " if though else ""
    return DivergenceError(
        f"{position}: {what} is no longer finite{though} ({settings}): {first}lower the learning "
        f"rate or the method's coefficients, or clip{fix}"
    )


def _name(term: Term) -> str:
    return type(term).__name__


def all_finite(tensor: Tensor) -> Tensor:
    """Whether all numbers are finite, 0-dim; one pass over memory."""
    least, most = extremes(tensor)
    return (least > -inf) & (most < inf)  # false for nan


def extremes(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest number, each 0-dim; 0 if there is none."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    least, most = tensor.aminmax() if tensor.numel() else (tensor.new_zeros(()),) * 2
    return least, most


def finite(states: Sequence[States]) -> FiniteFlags:
    """Which initial states are finite; the others are infinite on purpose."""
    return [{name: bool(all_finite(state)) for name, state in term.items()} for term in states]


def watched(initially: FiniteFlags, states: Sequence[States]) -> list[Tensor]:
    """Each state in the order of `initially`; 0 in the place of one that was not finite."""
    return [
        term[name] if finite else term[name].new_zeros(())
        for names, term in zip(initially, states, strict=True)
        for name, finite in names.items()
    ]
