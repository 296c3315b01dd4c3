"""LoRA: terms for models whose layers add a product `s B A` of small matrices to a frozen weight.

The mean of B times the mean of A is not the mean of the products; each term has another answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import PositiveInt
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View
from fl_lightning.core.vector import Layout
from fl_lightning.terms.sending import count_sent
from fl_lightning.terms.server import weighted


@dataclass(frozen=True)
class ExactAggregation(Term):
    """FedEx-LoRA: the base moves by `s (mean(B_i A_i) - mean(B) mean(A))`, what the adapters lack.

    The means are by the aggregation weights. Place it after terms that change the mean update; the
    server's optimizer must apply that as it is.
    """

    roles = frozenset({"server"})
    needs_lora = True

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        named, received = v.layout.named(w), v.layout.named(v.anchor)
        moves = (layer.product(named) - layer.product(received) for layer in v.layout.lora)
        return v.weight, *(v.weight * move for move in moves)

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        weight, *moves = mean
        before, after = v.layout.named(v.anchor), v.layout.named(v.anchor + delta)
        for layer, move in zip(v.layout.lora, moves, strict=True):
            lacking = layer.product(before) - layer.product(after)
            v.move(layer.base, weighted((move, weight)) + lacking)
        return delta


@dataclass(frozen=True)
class Stacking(ExactAggregation):
    """FLoRA: the base takes the mean of the products, and the adapters begin anew.

    A is drawn as peft draws it, uniformly up to 1 / sqrt(inputs), and B is 0.
    """

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        new = v.layout.named(v.anchor + delta)
        for layer in v.layout.lora:
            bound = new[layer.A][0].numel() ** -0.5
            new[layer.A] = torch.empty_like(new[layer.A]).uniform_(-bound, bound)
            new[layer.B] = torch.zeros_like(new[layer.B])
        return super().update(v.layout.flatten(new.values()) - v.anchor, mean, v)


@dataclass(frozen=True)
class AlternateRounds(Term):
    """RoLoRA: A rests in the first round, B in the second, and so on in turn.

    A part that rests keeps the received weights, and is not sent.
    """

    roles = frozenset({"select"})
    needs_lora = True

    def _active(self, like: Tensor, v: View) -> Tensor:
        A, B = (v.layout.mask(part, like) for part in ("lora_A", "lora_B"))
        odd = v.round % 2
        return 1 - (1 - odd) * A - odd * B

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        active = self._active(w, v)  # the local optimizer's decay may have moved the others
        return active * oracle(v.origin + active * (w - v.origin))

    def send(self, delta: Tensor, v: View) -> Tensor:
        active = self._active(delta, v)
        count_sent(active.sum(), v)
        return active * delta


def within_rank(rank: Any, like: Tensor, layout: Layout) -> Tensor:
    """A vector of zeros for what is beyond a rank in each A and B, ones elsewhere."""
    parts = layout.named(torch.ones_like(like))
    for layer in layout.lora:
        A, B = parts[layer.A], parts[layer.B]
        own = (torch.arange(len(A), device=like.device) < rank).to(like)
        parts[layer.A] = A * own.view(-1, *(1 for _ in A.shape[1:]))
        parts[layer.B] = B * own.view(-1, *(1 for _ in B.shape[2:]))
    return layout.flatten(parts.values())


def product_norm(w: Tensor, layout: Layout) -> Tensor:
    """The norm of all products s B A together."""
    named = layout.named(w)
    norms = [layer.product(named).norm() for layer in layout.lora]
    return torch.stack([w.new_zeros(()), *norms]).norm()


@dataclass(frozen=True)
class UnequalRanks(Term):
    """HetLoRA: client i trains the first r_i rows of A and columns of B.

    The others are 0 for it, when it trains and in the mean of the clients' models. Place it after
    terms that change the gradient.

    Attributes:
        ranks: The clients' ranks, in turn: client i has `ranks[i % len(ranks)]`.
        by_norm: Weigh clients by the norm of their products s B A, too.
    """

    ranks: tuple[PositiveInt, ...] = (2, 4, 8)
    by_norm: bool = True
    roles = frozenset({"start", "select"})
    needs_lora = True

    def _own(self, like: Tensor, v: View) -> Tensor:
        turn = v.client % len(self.ranks)
        rank = sum(rank * (turn == i) for i, rank in enumerate(self.ranks))  # waits for no GPU
        return within_rank(rank, like, v.layout)

    def start(self, w: Tensor, v: View) -> Tensor:
        return w * self._own(w, v)

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) * self._own(w, v)  # terms such as LESAM add to zeros

    def send(self, delta: Tensor, v: View) -> Tensor:
        count_sent(self._own(delta, v).sum(), v)
        if self.by_norm:
            v.weight = v.weight * product_norm(v.origin + delta, v.layout)
        return delta

    def report(self, w: Tensor, v: View) -> Any:
        return v.weight * (v.origin - v.anchor), v.weight

    def update(self, delta: Tensor, mean: Sequence[Tensor], v: View) -> Tensor:
        return delta + weighted(mean)

    def summary_lines(self, first: View, last: View) -> Iterator[str]:
        if len({*self.ranks}) > 1:
            yield f"the upload is of rank {self.ranks[0]}; comm/uplink_mb is of all ranks"
