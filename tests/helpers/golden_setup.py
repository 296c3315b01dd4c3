"""What setups of recorded runs share: their form, their states, the choice of a method."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import Any

import torch
from problems import rows, server

from fl_lightning import Algorithm, Term, terms, zeros
from fl_lightning.core.algorithm import Rate
from fl_lightning.core.curves import OfRound
from fl_lightning.core.term import WrappedTerm
from fl_lightning.federation.federation import Federation

State = Callable[[Federation], torch.Tensor]


class UnknownAlgorithmError(Exception):
    """The method of this file is none of ours yet."""


@dataclass
class Setup:
    """One recorded run in our words.

    Attributes:
        algorithm: With its local optimizer.
        schedule: The factor on the local learning rate in each round, e.g. `exponential(1, 0.9)`.
        batch_size, epochs, steps: How a visit is cut into batches.
        states: What the file's arrays are in our states, after the last round.
        paths: The same after each round.
        most: Steps that end a visit early; None is no limit.
        rounds: Rounds of the run, of which fewer may be recorded; None is all that are.
    """

    algorithm: Algorithm
    schedule: OfRound
    batch_size: int
    epochs: int
    steps: int | None
    states: dict[str, State]
    paths: dict[str, State] = field(default_factory=dict)
    most: int | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class ServerStep(Term):
    """The server's step, taken before what later terms add to the update."""

    lr: float
    momentum: float
    server = {"b": zeros}

    def update(self, delta: torch.Tensor, mean: Any, v: Any) -> torch.Tensor:
        v.b = self.momentum * v.b + delta
        return self.lr * v.b


@dataclass(frozen=True)
class FirstClientsSteps(WrappedTerm):
    """A term in code that takes K of the first client, unrounded, for everyone's."""

    K: float

    def report(self, w: torch.Tensor, v: Any) -> Any:
        vars(v).update(lr_sum=v.lr_sum / v.steps * self.K, steps=self.K)
        return self.inner.report(w, v)


def by_first_client(algorithm: Algorithm, h: dict[str, Any]) -> Algorithm:
    """The algorithm as in FL-Simulator's code, which differs where K does."""
    epochs, batch, sizes = h["local_epochs"], h["batchsize"], h["sizes"]
    K = epochs * sizes[0] / batch
    if all(epochs * ceil(size / batch) == K for size in sizes):
        return algorithm
    kinds = terms.ControlVariate, terms.ClientMomentum, terms.WMSAM, terms.TOGA
    changed = (FirstClientsSteps(t, K) if isinstance(t, kinds) else t for t in algorithm.terms)
    return algorithm.replace(terms=[*changed])


def method_of(words: list[str], methods: dict[str, Any]) -> tuple[Any, set[str]]:
    for length in range(len(words), 0, -1):
        name = "_".join(words[:length])
        if name in methods:
            return methods[name], set(words[length:])
    raise UnknownAlgorithmError("-".join(words))


def adapted(
    algorithm: Algorithm, *outer: terms.Clip, local: Any, eps: float = 0.0, **changes: Any
) -> Algorithm:
    def at_eps(term: Any) -> Any:
        if isinstance(term, WrappedTerm):
            return replace(term, inner=at_eps(term.inner))
        return replace(term, eps=eps) if eps and "eps" in {f.name for f in fields(term)} else term

    algorithm = algorithm.replace(terms=[*map(at_eps, algorithm.terms)], **changes)
    return algorithm.with_outer_terms(*outer, local=local)


def per_epoch(factor: float, epochs: int) -> Rate:
    """A rate that falls by a factor after each epoch of a visit."""
    return lambda k, K: factor ** (epochs * k // K)


# states


def of_server(name: str, factor: float = 1.0) -> State:
    return lambda federation: factor * server(federation, name)


def of_clients(name: str, factor: float = 1.0) -> State:
    return lambda federation: factor * rows(federation, name)
