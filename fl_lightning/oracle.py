"""The gradient oracle: `w -> gradient at w` on the current mini-batch, and the losses it can be asked about."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Forward = Callable[[Tensor], Any]
"""Runs the model on inputs, at some fixed weights."""


class Pass:
    """One forward pass of one mini-batch: what a loss may look at.

    Attributes:
        x: Inputs.
        y: Targets.
        out: What the model returned.
        seen: `seen[name] = (input, output)` of each submodule that the loss asked to observe.
        loss: The loss so far: the task's, then with each earlier `oracle.of`; a new loss may add to it or replace it.
    """

    def __init__(
        self,
        module: nn.Module,
        forward: Forward,
        at: Callable[[Tensor], Forward],
        x: Tensor,
        y: Tensor,
        taps: tuple[str, ...],
    ):
        self.x, self.y = x, y
        self.loss: Tensor = x.new_zeros(())
        self._elsewhere = module, at, taps
        with _tapped(module, taps) as self.seen:
            self.out = forward(x)

    def at(self, w: Tensor) -> "Pass":
        """The same batch through the same network with weights `w`: no gradient, running statistics as received."""
        module, at, taps = self._elsewhere
        with torch.no_grad():
            return Pass(module, at(w), at, self.x, self.y, taps)


Loss = Callable[[Pass], Tensor]
"""A loss of one forward pass; returns a 0-dim tensor."""


class Oracle(Protocol):
    """`oracle(w)` is the gradient at `w`; `oracle.of(loss)` is the oracle of another loss on the same batch."""

    def __call__(self, w: Tensor) -> Tensor:
        """The gradient at `w`, a vector like `w`. It cannot be differentiated again."""
        ...

    def of(self, loss: Loss, *taps: str) -> "Oracle":
        """The oracle of `loss`, which may read `b.loss`; `taps` names the submodules it wants to observe."""
        ...


class Evaluations:
    """The innermost oracle: asks `evaluate(w, losses, taps)` for every gradient."""

    def __init__(
        self,
        evaluate: Callable[[Tensor, tuple[Loss, ...], tuple[str, ...]], Tensor],
        losses: tuple[Loss, ...] = (),
        taps: tuple[str, ...] = (),
    ):
        self.evaluate, self.losses, self.taps = evaluate, losses, taps

    def __call__(self, w: Tensor) -> Tensor:
        """The gradient at `w`."""
        return self.evaluate(w, self.losses, self.taps)

    def of(self, loss: Loss, *taps: str) -> "Evaluations":
        """The oracle of another loss on the same batch."""
        return Evaluations(self.evaluate, (*self.losses, loss), (*self.taps, *taps))


def objective(b: Pass, losses: tuple[Loss, ...]) -> tuple[Tensor, Tensor]:
    """Evaluate the task's loss, then each further loss in turn.

    Returns:
        The value to differentiate, and the task's own (the first) loss.
    """
    values = []
    for loss in losses:
        b.loss = loss(b)
        values.append(b.loss)
    return values[-1], values[0]


@contextmanager
def _tapped(module: nn.Module, names: tuple[str, ...]) -> Iterator[dict[str, tuple[Any, Any]]]:
    """Record input and output of submodules during one forward pass; no change to the model, works under vmap."""
    seen: dict[str, tuple[Any, Any]] = {}

    def record(name: str) -> Callable[..., None]:
        return lambda _module, inputs, output: seen.__setitem__(name, (inputs[0], output))

    hooks = [module.get_submodule(name).register_forward_hook(record(name)) for name in names]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
