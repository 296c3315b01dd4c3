"""The gradient oracle: `w -> gradient at w` on the current mini-batch, and the losses it can be asked about."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class ModelError(Exception):
    """The model, not a term, cannot be evaluated in the way that was asked for."""


class Network(Protocol):
    """The model at some weights, as a pass needs it."""

    module: nn.Module
    head: str

    def forward(self, x: Tensor) -> Any:
        """The model's output."""
        ...

    def at(self, w: Tensor) -> "Network":
        """The same model with weights `w`."""
        ...

    def top(self, features: Tensor, e: Tensor, fixed: bool) -> Tensor:
        """The head's output for its input `features`, its weights displaced by `e`; `fixed` weights get no gradient."""
        ...


class Pass:
    """One forward pass of one mini-batch: what a loss may look at.

    Attributes:
        x: Inputs.
        y: Targets.
        out: What the model returned.
        seen: `seen[name] = (input, output)` of each submodule that the loss asked to observe.
        loss: The loss so far: the task's, then with each earlier `oracle.of`; a new loss may add to it or replace it.
    """

    def __init__(self, network: Network, x: Tensor, y: Tensor, taps: tuple[str, ...]):
        self.x, self.y = x, y
        self.loss: Tensor = x.new_zeros(())
        self.earlier: Sequence[Loss] = ()
        self._network, self._taps = network, taps
        with tapped(network.module, taps) as self.seen:
            self.out = network.forward(x)

    def at(self, w: Tensor) -> "Pass":
        """The same batch through the same network with weights `w`: no gradient, running statistics as received."""
        with torch.no_grad():
            return Pass(self._network.at(w), self.x, self.y, self._taps)

    def top(self, e: Tensor, fixed: bool = False) -> "Pass":
        """The same features through the head alone, its weights displaced by `e`, a vector like the model.

        The head must have been observed. `loss` is the loss so far of the displaced head.

        Args:
            e: The displacement; what it holds for the body is ignored.
            fixed: The gradient of `out` is with respect to `e` alone; `loss` stays that of this pass.

        Raises:
            ModelError: If the model goes on after its head, or the head keeps statistics.
        """
        head = self._network.head
        features, out = self.seen[head]
        if out is not self.out or any(True for _ in self._network.module.get_submodule(head).buffers()):
            raise ModelError(
                f"the head {head!r} cannot be displaced alone, because it has buffers or is not the last thing that "
                "the model does: name another submodule in the model's attribute `head`, or perturb all or the body"
            )
        displaced = object.__new__(Pass)
        displaced.__dict__.update(self.__dict__, seen=dict(self.seen))
        displaced.out = self._network.top(features.detach() if fixed else features, e, fixed)
        displaced.seen[head] = features, displaced.out
        if not fixed:
            objective(displaced, self.earlier)
        return displaced


Loss = Callable[[Pass], Tensor]
"""A loss of one forward pass; returns a 0-dim tensor."""


class Oracle(Protocol):
    """`oracle(w)` is the gradient at `w`; `of` and `part` make other oracles of it."""

    def __call__(self, w: Tensor) -> Tensor:
        """The gradient at `w`, a vector like `w`. It cannot be differentiated again."""
        ...

    def of(self, loss: Loss, *taps: str) -> "Oracle":
        """The oracle of `loss` on the same batch, which may read `b.loss`; `taps` names submodules to observe."""
        ...

    def part(self, index: int, count: int) -> "Oracle":
        """The same oracle on one of `count` interleaved parts of the batch; a part is never empty."""
        ...


@dataclass(frozen=True)
class Question:
    """What an evaluation is asked for besides the weights.

    Attributes:
        losses: Further losses after the task's.
        taps: The submodules they observe.
        index, count: Which of how many parts of the batch.
    """

    losses: tuple[Loss, ...] = ()
    taps: tuple[str, ...] = ()
    index: int = 0
    count: int = 1

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The asked part of a batch, interleaved; where a batch is smaller than `count`, parts share samples."""
        if self.count == 1:
            return x, y
        index = self.index % max(1, min(self.count, len(y)))
        return x[index :: self.count], y[index :: self.count]


PLAIN = Question()
"""The task's loss on the whole batch: what any ordinary closure answers."""


class Evaluations:
    """The innermost oracle: asks `evaluate(w, question)` for every gradient."""

    def __init__(self, evaluate: Callable[[Tensor, Question], Tensor], question: Question = PLAIN):
        self.evaluate, self.question = evaluate, question

    def __call__(self, w: Tensor) -> Tensor:
        """The gradient at `w`."""
        return self.evaluate(w, self.question)

    def of(self, loss: Loss, *taps: str) -> "Evaluations":
        """The oracle of another loss on the same batch."""
        q = self.question
        return Evaluations(self.evaluate, replace(q, losses=(*q.losses, loss), taps=(*q.taps, *taps)))

    def part(self, index: int, count: int) -> "Evaluations":
        """The same oracle on a part of the batch, or of the part that this one sees."""
        q = self.question
        return Evaluations(self.evaluate, replace(q, index=q.index + index * q.count, count=q.count * count))


def objective(b: Pass, losses: Sequence[Loss]) -> tuple[Tensor, Tensor]:
    """Evaluate the task's loss, then each further loss in turn.

    Returns:
        The value to differentiate, and the task's own (the first) loss.

    Raises:
        ModelError: If a loss is not one number.
    """
    values = []
    for i, loss in enumerate(losses):
        b.earlier = losses[:i]
        b.loss = loss(b)
        if not isinstance(b.loss, Tensor) or b.loss.ndim:
            is_tensor, of_term = isinstance(b.loss, Tensor), getattr(loss, "__qualname__", loss)
            returned = f"a tensor of shape {tuple(b.loss.shape)}" if is_tensor else repr(b.loss)
            raise ModelError(
                f"{f'the loss {of_term}' if i else 'the loss of the task'} returned {returned}; a loss is one number, "
                "a 0-dim tensor such as the mean over the batch"
            )
        values.append(b.loss)
    return values[-1], values[0]


@contextmanager
def tapped(module: nn.Module, names: tuple[str, ...]) -> Iterator[dict[str, tuple[Any, Any]]]:
    """Record input and output of submodules during one forward pass; no change to the model, works under vmap."""
    seen: dict[str, tuple[Any, Any]] = {}

    def record(name: str) -> Callable[..., None]:
        return lambda _module, inputs, output: seen.__setitem__(name, (inputs[0], output))

    hooks = [_submodule(module, name).register_forward_hook(record(name)) for name in names]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _submodule(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        there = ", ".join(known for known, _ in module.named_modules() if known)
        raise ModelError(f"the model has no submodule {name!r} to look at; there are: {there}") from error
