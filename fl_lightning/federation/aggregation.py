"""The sums of a round in one vector, so that one all-reduce adds up all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from fl_lightning.executors import Outcome
from fl_lightning.executors.executor import Buffers
from fl_lightning.federation.divergence import all_below
from fl_lightning.federation.exact_sum import PlainSum, Sum


@dataclass(frozen=True)
class RoundStatus:
    """What the ranks agree on with the sums of a round.

    Attributes:
        stop: Whether any rank wants to end the run after this round.
        diverged: What of a client's outcome is not finite (see `client_diverged`), by its position
            in the cohort.
        empty: Whether no weight is left to average with.
    """

    stop: bool
    diverged: dict[int, int]
    empty: bool


class RoundSums:
    """Running sums `[weight * progress | message | weight * buffers]`, a row for each client, and who asks to stop.

    A client's row holds its loss, its weight, the weighted squared length of its progress, whether
    it counts and what of it diverged; as one rank alone fills it in, adding up the ranks moves no
    bit of it.

    Args:
        w: A vector like the model.
        message: Messages as `Algorithm.report` returns them, one a term; only their structure and
            shapes matter.
        buffers: The module's buffers.
        cohort: How many clients take part, on all ranks.
        sums: How progress, messages and buffers are added up.
        finite_only: Leave out outcomes that are not finite.

    Attributes:
        total: What the ranks have to add up, one vector.
    """

    def __init__(
        self,
        w: Tensor,
        message: list[Any],
        buffers: Buffers,
        cohort: int,
        sums: type[Sum] = PlainSum,
        finite_only: bool = False,
    ):
        leaves, self._structure = tree_flatten(message)
        self._like = [w, *leaves, *buffers.values()]
        self._names, self._cohort, self._finite_only = list(buffers), cohort, finite_only
        self._messages = len(leaves)
        self._sum = sums(w.dtype, cohort)
        self._sizes = [t.numel() for t in self._like]
        sizes = [self._sum.limbs * sum(self._sizes), len(COLUMNS) * cohort, 1]
        self.total = torch.zeros(sum(sizes), dtype=self._sum.dtype, device=w.device)
        limbs, rows, self._votes = self.total.split(sizes)
        self._limbs, self._rows = limbs.view(self._sum.limbs, -1), rows.view(cohort, -1)

    @torch.no_grad()  # a message of one's own may come with a graph
    def add(
        self, outcome: Outcome, weight: float, position: int, states: Sequence[Tensor] = ()
    ) -> Tensor:
        """Add the outcome of the client at this position of the cohort.

        Args:
            outcome: What its visit left.
            weight: Its aggregation weight.
            position: Where it stands in the cohort.
            states: Whether each state that the client keeps stays finite (see `stay_finite`).

        Returns:
            Whether it is finite, and below what can be added up: 0-dim and on the device, nobody
            waits for it here.
        """
        buffers = [outcome.buffers[name] for name in self._names]
        tensors = [outcome.progress, *tree_leaves(outcome.message), *buffers]
        loss, progress = outcome.loss.to(outcome.progress), outcome.progress
        squared = weight * progress.dot(progress)  # overflows where the model's length would
        trained = squared.isfinite() & ~loss.isinf()  # nan: no term asked for it
        for tensor in (
            [progress, *buffers] if self._sum.limit < inf else buffers
        ):  # it is finite where its square is
            trained &= all_below(tensor, self._sum.limit)
        parts = [trained, *states, *map(self._can_be_added, outcome.message)]
        well = torch.stack(parts)
        finite, first = well.all(), 1 + well.to(torch.int8).argmin()  # of equal ones the first
        diverged = torch.where(finite, 0, first).to(progress)
        row = torch.stack(
            [loss, progress.new_full((), weight), squared, progress.new_ones(()), diverged]
        )
        if self._finite_only:
            tensors, row[:-1] = (
                [torch.where(finite, t, 0) for t in tensors],
                torch.where(finite, row[:-1], 0),
            )
        alphas = [weight] + [1.0] * self._messages + [weight] * len(self._names)
        for part, tensor, alpha in zip(
            self._limbs.split(self._sizes, dim=1), tensors, alphas, strict=True
        ):
            self._sum.add(part, tensor.reshape(-1), alpha)
        self._rows[position] = row
        return finite

    def _can_be_added(self, message: Any) -> Tensor:
        well = [all_below(tensor, self._sum.limit) for tensor in tree_leaves(message)]
        return torch.stack(well).all() if well else self.total.new_ones((), dtype=torch.bool)

    def request_stop(self) -> None:
        """Let this rank's wish to end the run after this round count."""
        self._votes += 1

    def verdict(self) -> RoundStatus:
        """What all ranks agree on, once the sums are complete. Waits for the device."""
        *rows, votes = torch.cat([self._rows.flatten(), self._votes]).tolist()
        _, weights, _, counts, diverged = (rows[k :: len(COLUMNS)] for k in range(len(COLUMNS)))
        empty = not (sum(counts) > 0 and sum(weights) > 0)
        return RoundStatus(
            votes > 0, {k: round(part) - 1 for k, part in enumerate(diverged) if part}, empty
        )

    def means(self) -> tuple[Tensor, list[Any], dict[str, Tensor], Sequence[Tensor]]:
        """What the sums mean, once they are complete.

        Returns:
            The weighted mean progress, the mean messages, the weighted mean buffers (integers
            rounded), and the mean loss and weighted mean squared length of a client's progress.
        """
        loss, weight, squared, count, _ = self._rows.sum(0)
        weight = torch.where(
            count == self._cohort, count, weight
        )  # the weights of a whole cohort are 1 on average
        shares = [weight] + [count] * self._messages + [weight] * len(self._names)
        totals = self._sum.value(self._limbs).split(self._sizes)
        parts = [
            (t / n).to(self._like[0]).view(like.shape)
            for t, n, like in zip(totals, shares, self._like, strict=True)
        ]
        progress, message, buffers = (
            parts[0],
            parts[1 : 1 + self._messages],
            parts[1 + self._messages :],
        )
        averaged = {
            name: mean.to(like.dtype) if like.is_floating_point() else mean.round().to(like.dtype)
            for name, mean, like in zip(
                self._names, buffers, self._like[1 + self._messages :], strict=True
            )
        }
        scalars = [(s / n).to(progress) for s, n in ((loss, count), (squared, weight))]
        return progress, tree_unflatten(message, self._structure), averaged, scalars


COLUMNS = "loss", "weight", "squared", "counts", "diverged"
