"""The sums of a round in one vector, so that one all-reduce adds up all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fl_lightning.executors import Outcome
from fl_lightning.executors.visit import Buffers


@dataclass(frozen=True)
class Verdict:
    """What the ranks agree on with the sums of a round.

    Attributes:
        stop: Whether any rank wants to end the run after this round.
        diverged: Positions in the cohort of clients whose outcome is not finite.
        empty: Whether no weight is left to average with.
    """

    stop: bool
    diverged: list[int]
    empty: bool


class Tally:
    """Running sums `[weight * progress | message | weight * buffers | scalars | diverged]`.

    The scalars are the loss, the weighted squared distance, the weight, the number of clients, and how many ranks ask
    to stop; `diverged` has a number for each client of the cohort.

    Args:
        w: A vector like the model.
        message: Messages as `Algorithm.report` returns them, one a term; only their structure and shapes matter.
        buffers: The module's buffers.
        cohort: How many clients take part, on all ranks.
        finite_only: Leave out outcomes that are not finite.
    """

    def __init__(self, w: Tensor, message: list[Any], buffers: Buffers, cohort: int, finite_only: bool = False):
        leaves, self._structure = tree_flatten(message)
        self._like = [w, *leaves, *buffers.values()]
        self._names, self._cohort, self._finite_only = list(buffers), cohort, finite_only
        self._messages = len(leaves)
        sizes = [*(t.numel() for t in self._like), 5, cohort]
        self.total = w.new_zeros(sum(sizes))
        *self._parts, self._scalars, self._diverged = self.total.split(sizes)

    def add(self, outcome: Outcome, weight: float, position: int) -> Tensor:
        """Add the outcome of the client at this position of the cohort.

        Returns:
            Whether it is finite, 0-dim and on the device: nobody waits for it here.
        """
        message = tree_flatten(outcome.message)[0]
        tensors = [outcome.progress, *message, *(outcome.buffers[name] for name in self._names)]
        loss, progress = outcome.loss.to(outcome.progress), outcome.progress
        squared = weight * progress.dot(progress)  # overflows where the model's length would
        finite = _all_finite([*tensors, squared]) & ~loss.isinf()  # a loss that no term asked for is nan
        self._diverged[position] += ~finite
        scalars = [loss, squared, progress.new_full((), weight), progress.new_ones(())]
        if self._finite_only:
            tensors, scalars = ([torch.where(finite, t, 0) for t in ts] for ts in (tensors, scalars))
        alphas = [weight] + [1.0] * self._messages + [weight] * len(self._names)
        for part, tensor, alpha in zip(self._parts, tensors, alphas, strict=True):
            part.add_(tensor.reshape(-1), alpha=alpha) if tensor.is_floating_point() else part.add_(
                alpha * tensor.reshape(-1)
            )
        self._scalars[:4] += torch.stack(scalars)
        return finite

    def ask_to_stop(self) -> None:
        """Let this rank's wish to end the run after this round count."""
        self._scalars[4] += 1

    def verdict(self) -> Verdict:
        """What all ranks agree on, once the sums are complete. Waits for the device."""
        _, _, weight, count, votes, *diverged = torch.cat([self._scalars, self._diverged]).tolist()
        return Verdict(votes > 0, [k for k, n in enumerate(diverged) if n], not (count > 0 and weight > 0))

    def means(self) -> tuple[Tensor, list[Any], dict[str, Tensor], Sequence[Tensor]]:
        """What the sums mean, once they are complete.

        Returns:
            The weighted mean progress, the mean messages, the weighted mean buffers (integers rounded), and the mean
            loss and weighted mean squared length of a client's progress.
        """
        loss, squared, weight, count, _ = self._scalars
        weight = torch.where(count == self._cohort, count, weight)  # the weights of a whole cohort are 1 on average
        shares = [weight] + [count] * self._messages + [weight] * len(self._names)
        parts = [(p / n).view(t.shape) for p, n, t in zip(self._parts, shares, self._like, strict=True)]
        progress, message, buffers = parts[0], parts[1 : 1 + self._messages], parts[1 + self._messages :]
        averaged = {
            name: mean.to(like.dtype) if like.is_floating_point() else mean.round().to(like.dtype)
            for name, mean, like in zip(self._names, buffers, self._like[1 + self._messages :], strict=True)
        }
        return progress, tree_unflatten(message, self._structure), averaged, (loss / count, squared / weight)


def _all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Whether all numbers are finite: a sum is finite only if every number is, and takes one pass over memory."""
    return torch.stack([t.sum().isfinite() for t in tensors if t.is_floating_point()]).all()
