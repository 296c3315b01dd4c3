"""Training that leaves the finite numbers: what it is called, and what a run does about it."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.core.term import States, Term
from fl_lightning.errors import DivergenceError

OnDivergence = Literal["stop", "skip-client", "continue"]
"""Stop the run, leave the client out of the round, or go on as if nothing were."""

TRAINING, MODEL = "the training", "the model"


def client_diverged(
    where: str, found: Mapping[int, int], terms: Sequence[Term], how: str
) -> DivergenceError:
    """The exception that says what of which clients is not finite.

    Args:
        where: The round.
        found: By client, what it was: a position in the training, each state that a client keeps,
            and each message.
        terms: The algorithm's.
        how: Learning rate and algorithm.
    """
    states = [
        f"the state {name!r} that {_name(term)} keeps" for term in terms for name in term.client
    ]
    parts = [TRAINING, *states, *(f"what {_name(term)}.report returned" for term in terms)]
    whose = {
        part: [client for client in found if found[client] == part]
        for part in sorted(set(found.values()))
    }
    told = ", and ".join(
        f"{parts[part]} {'for' if part else 'of'} {_listed(whose[part])}" for part in whose
    )
    though = "" if 0 in whose else ", though the training was"
    return _diverged(
        where, told, though, how, "; on_divergence skip-client leaves such clients out"
    )


def server_diverged(where: str, part: int, terms: Sequence[Term], how: str) -> DivergenceError:
    """The exception that says what of the server's step is not finite.

    Args:
        where: The round.
        part: What it was: a position in the mean update as the terms left it, each server state,
            and the model.
        terms: The algorithm's.
        how: Learning rate and algorithm.
    """
    states = [
        f"the server's state {name!r} of {_name(term)}" for term in terms for name in term.server
    ]
    told = ["what the terms made of the mean update", *states, MODEL][part]
    return _diverged(
        where, told, "" if told == MODEL else ", though what the clients sent was", how
    )


def _diverged(where: str, told: str, though: str, how: str, skip: str = "") -> DivergenceError:
    lower = "ower the learning rate or the method's coefficients"
    mend = f"Look there for a division by zero, or l{lower}" if though else f"L{lower}, or clip"
    return DivergenceError(
        f"{where}: {told} is no longer finite{though} ({how}). {mend}{skip}. Checkpoints are as they were."
    )


def _name(term: Term) -> str:
    return type(term).__name__


def _listed(clients: Sequence[int]) -> str:
    """The first ones by number."""
    return f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients[:5]))}{', ...' * (len(clients) > 5)}"


FiniteFlags = Sequence[Mapping[str, bool]]
"""Which states begin as finite numbers, one dictionary a term."""


def all_below(tensor: Tensor, limit: float = inf) -> Tensor:
    """Whether all numbers are finite and below `limit` in size, 0-dim; one pass over memory."""
    if not tensor.numel() or tensor.is_complex():
        return tensor.isfinite().all()
    least, most = tensor.aminmax()
    return (least > -limit) & (most < limit)  # false for nan


def finite(states: Sequence[States]) -> FiniteFlags:
    """Which states, one dictionary a term, are finite: those that begin otherwise do so on purpose."""
    return [{name: bool(all_below(state)) for name, state in of_term.items()} for of_term in states]


def stay_finite(began: FiniteFlags, states: Sequence[States]) -> list[Tensor]:
    """Whether each state, in the order in which `began` names them, is finite if it was, 0-dim."""
    every = zip(began, states, strict=True)
    return [
        all_below(of_term[name]) if watched else of_term[name].new_ones((), dtype=torch.bool)
        for names, of_term in every
        for name, watched in names.items()
    ]
