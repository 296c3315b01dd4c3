"""The sums of a round in one vector, so that one all-reduce adds up all ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fl_lightning.executors import Outcome
from fl_lightning.executors.visit import Buffers


class Tally:
    """Running sums `[weight * progress | message | weight * buffers | loss, squared distance, count]`.

    Args:
        w: A vector like the model.
        message: Messages as `Algorithm.report` returns them, one a term; only their structure and shapes matter.
        buffers: The module's buffers.
    """

    def __init__(self, w: Tensor, message: list[Any], buffers: Buffers):
        leaves, self._structure = tree_flatten(message)
        self._like = [w, *leaves, *buffers.values()]
        self._names = list(buffers)
        self._messages = len(leaves)
        self.total = w.new_zeros(sum(t.numel() for t in self._like) + 3)
        *self._parts, self._scalars = self.total.split([*(t.numel() for t in self._like), 3])

    def add(self, outcome: Outcome, weight: float) -> None:
        """Add one client's outcome."""
        message = tree_flatten(outcome.message)[0]
        buffers = [outcome.buffers[name] for name in self._names]
        tensors = [outcome.progress, *message, *buffers]
        alphas = [weight] + [1.0] * self._messages + [weight] * len(buffers)
        for part, tensor, alpha in zip(self._parts, tensors, alphas, strict=True):
            part.add_(tensor.reshape(-1), alpha=alpha) if tensor.is_floating_point() else part.add_(
                alpha * tensor.reshape(-1)
            )
        progress = outcome.progress
        self._scalars += torch.stack(
            [outcome.loss.to(progress), weight * progress.dot(progress), progress.new_ones(())]
        )

    def means(self) -> tuple[Tensor, list[Any], dict[str, Tensor], Sequence[Tensor]]:
        """What the sums mean, once they are complete.

        Returns:
            The weighted mean progress, the mean messages, the weighted mean buffers (integers rounded), and the mean
            loss and weighted mean squared length of a client's progress.
        """
        count = self._scalars[2]
        parts = [(p / count).view(t.shape) for p, t in zip(self._parts, self._like, strict=True)]
        progress, message, buffers = parts[0], parts[1 : 1 + self._messages], parts[1 + self._messages :]
        averaged = {
            name: mean.to(like.dtype) if like.is_floating_point() else mean.round().to(like.dtype)
            for name, mean, like in zip(self._names, buffers, self._like[1 + self._messages :], strict=True)
        }
        return progress, tree_unflatten(message, self._structure), averaged, (self._scalars[:2] / count).unbind()
