"""Aggregation: the sums of a round in one vector, so that one all-reduce adds up all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fl_lightning.core.device import to_device_async
from fl_lightning.core.network import change, changed
from fl_lightning.errors import TermError
from fl_lightning.executors import ClientResult
from fl_lightning.executors.executor import Buffers
from fl_lightning.federation.divergence import OnDivergence, extremes
from fl_lightning.federation.exact_sum import PlainSum

COLUMNS = "loss", "weight", "squared", "bits", "counts", "diverged"
"""What a round's sums hold of each client."""

PENDING = 100
"""Results whose rows are filled in together, at most."""

DISTANCES = "client/drift", "client/distance", "client/pair_distance", "server/update_norm"
"""The mean squared distance between a client's last model and the new global one, its mean distance
from the received one, the root mean square distance of two clients' models, and the length of the
server's step."""


@dataclass(frozen=True)
class RoundStatus:
    """What the ranks agree on with the sums of a round.

    Attributes:
        stop: Whether any rank asks to end the run after this round.
        preempted: Whether any rank asks so for a run that is to be resumed.
        diverged: By position in the cohort, the part that is not finite (see `client_diverged`).
        counts: Whether the round counts. It does not if a diverged client stops the run, if there
            is no client, and no noise, or if all weights are 0 and no term has assigned them.
        bits: The size of what the cohort sent, without messages and buffers.
    """

    stop: bool
    preempted: bool
    diverged: dict[int, int]
    counts: bool
    bits: float


class RoundSums:
    """Running sums `[weight * progress | message | weight * change of buffers]`, and clients' rows.

    Where clients start elsewhere than at w^t, `weight * (u_i - w^t)` comes after the progress.
    Buffers that no client changes, such as masks of infinities or large integers, stay exact.

    A row holds the client's loss, its weight, the weighted `||u_i - w^t||^2`, the bits that it
    sent, whether it counts, and what diverged. One rank alone fills it in, so adding up the ranks
    is exact. The same holds for the update of each client, where the server combines these.

    Args:
        w: The model w^t that clients receive.
        message: The messages of any client, for their structure and shapes.
        buffers: The buffers that clients receive.
        cohort: Number of clients, on all ranks.
        sum_type: How progress, messages and buffers are added up.
        on_divergence: What to do with results that are not finite (see `Federation`).
        starts_elsewhere: Whether clients start elsewhere than at w^t.
        logs: Number of scalars that terms log.
        own_weights: Whether terms assign weights, which then are not 1 on average.
        combines: Whether the server combines the updates, so that each is kept.
        noisy: Whether a cohort of no client counts, too: the server adds noise to its sum.
    """

    def __init__(
        self,
        w: Tensor,
        message: list[Any],
        buffers: Buffers,
        cohort: int,
        sum_type: type[PlainSum] = PlainSum,
        on_divergence: OnDivergence = "stop",
        starts_elsewhere: bool = False,
        logs: int = 0,
        own_weights: bool = False,
        combines: bool = False,
        noisy: bool = False,
    ):
        self._own_weights, self._combines, self._noisy = own_weights, combines, noisy
        leaves, self._structure = tree_flatten(message)
        self._vectors, self._last = 1 + starts_elsewhere, 1 + starts_elsewhere + len(leaves)
        self._received, changes = buffers, [change(b, b) for b in buffers.values()]
        self._like = [*[w] * self._vectors, *leaves, *changes]
        self._cohort, self._skips = cohort, on_divergence == "skip-client"
        self._stops = on_divergence == "stop"
        self._weighted = [True] * self._vectors + [False] * len(leaves) + [True] * len(buffers)
        self._sum = sum_type(w.dtype, cohort)
        self._sizes = [t.numel() for t in self._like]
        sizes = [self._sum.limbs * sum(self._sizes), len(COLUMNS) * cohort, logs * cohort, 2]
        sizes.append(combines * cohort * w.numel())
        self._total = torch.zeros(sum(sizes), dtype=self._sum.dtype, device=w.device)
        limbs, rows, logged, self._votes, updates = self._total.split(sizes)
        self._updates = updates.view(cohort, combines * w.numel())
        self._logs, self._table = logged.view(cohort, logs), rows.view(cohort, len(COLUMNS))
        self._limbs = limbs.view(self._sum.limbs, -1)
        self._of_each = self._limbs.split(self._sizes, dim=1)
        self._pending = list[tuple[int, float | Tensor, list[Tensor]]]()

    @torch.no_grad()  # a user-defined message may have a graph
    def add(
        self,
        result: ClientResult,
        weight: float | Tensor,
        position: int,
        states: Sequence[Tensor] = (),
        logs: Sequence[Tensor] = (),
    ) -> None:
        """Add the result of the client at this position of the cohort.

        `states` are the client's that must be finite; `logs` is what its terms have logged.

        Raises:
            TermError: If its message has another structure than the others.
        """
        message, structure = tree_flatten(result.message)
        like = self._like[self._vectors : self._last]
        shapes, others = ([tuple(t.shape) for t in leaves] for leaves in (message, like))
        if (structure, shapes) != (self._structure, others):
            raise TermError(
                f"`report` returned messages of shapes {others} and {shapes}: let all clients and "
                "rounds have one structure, filled up with zeros, since messages are averaged"
            )
        vectors = [result.sent.update]
        if self._vectors > 1:
            vectors.append(result.sent.update + (result.origin - self._like[0]))
        moved = vectors[-1]
        buffers = [change(result.buffers[name], b) for name, b in self._received.items()]
        tensors = [*vectors, *message, *buffers]
        limited = self._sum.limit < inf  # otherwise progress is finite where its square is
        checked = [
            [*vectors, *buffers] if limited else buffers,
            *([state] for state in states),
            *map(tree_leaves, result.message),
        ]
        self._parts, of_states = len(checked), range(1, 1 + len(states))
        each = [(part, t) for part, group in enumerate(checked) for t in group]
        self._checks = [(part, inf if part in of_states else self._sum.limit) for part, _ in each]
        least, most = zip(*(extremes(t) for _, t in each), strict=True) if each else ((), ())
        squared = moved.dot(moved)  # overflows where the model's length would
        numbers = [result.loss, squared, result.sent.bits, *least, *most, *logs]
        self._pending.append((position, weight, numbers))
        if self._skips:
            good = self.is_finite(position)
            tensors = [torch.where(good, t, 0) for t in tensors]
        if self._combines:
            self._updates[position] = tensors[0]
        if isinstance(weight, Tensor):  # as finite as the row
            weight = torch.where(weight.isfinite(), weight, 0)
        for limbs, tensor, weighted in zip(self._of_each, tensors, self._weighted, strict=True):
            # of this size: a single number would be added to each place
            self._sum.add(limbs, tensor.reshape(limbs.shape[1]), weight if weighted else 1.0)
        if len(self._pending) == PENDING:
            self._settle()

    def is_finite(self, position: int) -> Tensor:
        """Whether a result is finite and below the limit of the sums, 0-dim on the device."""
        return self._rows[position, COLUMNS.index("diverged")] == 0

    @torch.no_grad()
    def _settle(self) -> None:
        """Fill in the rows of results since the last call, of all at once."""
        if not self._pending:
            return
        positions, weights, rows = zip(*self._pending, strict=True)
        self._pending.clear()
        w, checks = self._like[0], len(self._checks)
        numbers = torch.stack([x for row in rows for x in row]).view(len(rows), -1)
        index = to_device_async(torch.tensor(positions), w.device)
        if isinstance(weights[0], Tensor):
            weight = torch.stack(weights)
        else:
            weight = to_device_async(torch.tensor(weights, dtype=w.dtype), w.device)
        loss, squared, bits = numbers[:, :3].to(w).unbind(1)
        squared, one = weight * squared, torch.ones_like(weight)
        trained = squared.isfinite() & ~loss.isinf()  # nan: no term evaluated the loss
        first = torch.where(trained, self._parts, 0)  # the first part that is not finite
        if checks:
            of_all = to_device_async(torch.tensor(self._checks, dtype=w.dtype), w.device)
            part, limit = of_all.unbind(1)
            least, most = numbers[:, 3 : 3 + 2 * checks].split(checks, 1)
            below = (least > -limit) & (most < limit)  # false for nan
            first = torch.minimum(first, torch.where(below, self._parts, part).amin(1))
        diverged = (first + 1) % (self._parts + 1)
        table = torch.stack([loss, weight, squared, bits, one, diverged.to(w)], 1)
        if self._skips:
            table[:, :-1] = torch.where(diverged[:, None] == 0, table[:, :-1], 0)
        self._table.index_copy_(0, index, table.to(self._table))
        self._logs.index_copy_(0, index, numbers[:, 3 + 2 * checks :].to(self._logs))

    @property
    def total(self) -> Tensor:
        """The vector that the ranks have to add up."""
        self._settle()
        return self._total

    @property
    def _rows(self) -> Tensor:
        self._settle()
        return self._table

    def request_stop(self, preempted: bool) -> None:
        """Ask to end the run after this round, and whether it is to be resumed."""
        self._votes[: 1 + preempted] += 1

    def read(self, more: Sequence[Tensor] = ()) -> tuple[RoundStatus, list[float]]:
        """What all ranks agree on, once the sums are complete, and more 0-dim numbers.

        It waits for the device, once.

        Raises:
            TermError: If a term has assigned a negative weight.
        """
        own = self._rows.flatten(), self._votes
        table = torch.cat([*own, torch.stack([*more]).to(self._votes)] if more else own).tolist()
        *rows, stop, preempted = table[: len(table) - len(more)]
        of = {name: rows[k :: len(COLUMNS)] for k, name in enumerate(COLUMNS)}
        if (least := min(of["weight"], default=0.0)) < 0:
            raise TermError(
                f"a term assigns v.weight = {least:.3g} in `send`: a weight in the mean is at "
                "least 0, as clamp(min=0) makes it"
            )
        found = {k: round(part) - 1 for k, part in enumerate(of["diverged"]) if part}
        weight = sum(of["weight"])
        averages = weight > 0 or (weight == 0 and self._own_weights)  # terms may weigh all by 0
        trained = any(of["counts"]) and averages if self._cohort else self._noisy
        counts = trained and not (self._stops and found)
        status = RoundStatus(stop > 0, preempted > 0, found, counts, sum(of["bits"]))
        return status, table[len(table) - len(more) :]

    def participants(self) -> int:
        """The number of clients that count; where some may be skipped, it waits for the device."""
        return self._cohort - (len(self.read()[0].diverged) if self._skips else 0)

    @property
    def updates(self) -> Tensor | None:
        """The updates of the clients that count, (M, d), where the server combines them."""
        return self.counting(self._updates.to(self._like[0])) if self._combines else None

    def counting(self, each: Tensor) -> Tensor:
        """The rows of the clients that count, of a tensor with a row for each of the cohort."""
        return each[self._rows[:, COLUMNS.index("counts")] > 0] if self._skips else each

    def logged(self) -> list[Tensor]:
        """The cohort's mean of each scalar that terms log, 0-dim; nan where no client has."""
        counts = self._rows[:, COLUMNS.index("counts"), None] > 0  # as a mask: it waits for no GPU
        return [*torch.where(counts, self._logs, nan).nanmean(0).to(self._like[0])]

    def distances(self, moved: Tensor, squared: Tensor, move: Tensor) -> list[Tensor]:
        """The values of `DISTANCES`, 0-dim, from the means and how far the server then moved.

        The distances of clients are 0 in a round without clients, or without any weight.
        """
        total = self._rows[:, 1].sum()
        # mean ||(u_i - w^t) - move||^2, expanded, since each u_i is gone
        drift = squared - 2 * moved.dot(move) + torch.where(total > 0, move.dot(move), 0)
        total = torch.where(total > 0, total, 1)
        weight = self._rows[:, 1] / total
        of_client = self._rows[:, 2] / total  # weight * ||u_i - w^t||^2
        mean = (weight * of_client).sqrt().sum()
        spread = 2 * (of_client.sum() - moved.dot(moved)).clamp(min=0)
        pairs = 1 - weight.square().sum()
        rms = torch.where(pairs > 1e-9, spread / pairs, 0).sqrt()
        return [drift.clamp(min=0), mean.to(moved), rms.to(moved), move.norm()]

    def means(self) -> tuple[list[Tensor], list[Any], dict[str, Tensor], Sequence[Tensor]]:
        """The means, once the sums are complete.

        Returns:
            The weighted means of the progress and of u_i - w^t, the mean messages, the weighted
            mean buffers (integers rounded), the mean loss and weighted mean `||u_i - w^t||^2`.
        """
        loss, weight, squared, _, count, _ = self._rows.sum(0)
        if not self._own_weights:
            whole = count == self._cohort  # whose weights are 1 on average
            weight = torch.where(whole, count, weight)
        weight, clients = (torch.where(n > 0, n, 1) for n in (weight, count))  # of no client: 0
        totals = self._sum.value(self._limbs).split(self._sizes)
        means = [
            (total / (weight if weighted else clients)).to(self._like[0]).view(like.shape)
            for total, weighted, like in zip(totals, self._weighted, self._like, strict=True)
        ]
        moves = [means[0], means[self._vectors - 1]]
        messages = tree_unflatten(means[self._vectors : self._last], self._structure)
        changes = zip(self._received.items(), means[self._last :], strict=True)
        averaged = {name: changed(buffer, by) for (name, buffer), by in changes}
        scalars = [(s / n).to(means[0]) for s, n in ((loss, count), (squared, weight))]
        return moves, messages, averaged, scalars
