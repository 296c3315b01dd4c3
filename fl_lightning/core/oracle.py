"""The gradient oracle: `w -> gradient at w` on the current mini-batch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.losses import scores_of
from fl_lightning.core.network import FunctionalModel
from fl_lightning.errors import ModelError


class Activations(dict[str, tuple[Any, Any]]):
    """`(input, output)` of each submodule that was observed, by name."""

    def __init__(self, layers: tuple[str, ...]):
        super().__init__()
        self.layers = layers

    def __missing__(self, name: str) -> tuple[Any, Any]:
        if name in self.layers:
            raise ModelError(
                f"b.activations[{name!r}] is empty, because the model's forward does not call it"
            )
        named = ", ".join(map(repr, self.layers)) or "none"
        raise ModelError(
            f"b.activations[{name!r}] is not recorded: name the submodule after the loss, as in "
            f"oracle.of(loss, {name!r}); named so far: {named}"
        )


class ForwardPass:
    """One forward pass of one mini-batch, as a loss sees it.

    Attributes:
        x: Inputs: a tensor, or a tuple or dictionary of tensors.
        y: Targets, likewise.
        answer: What the model returned.
        out: The scores in it: the answer itself, or its `logits`.
        activations: `activations[name] = (input, output)` of each submodule that the loss asked to
            observe.
        loss: The loss so far: the task's, then with each earlier `oracle.of`; a new loss may add to
            it or replace it.
    """

    def __init__(self, network: FunctionalModel, x: Any, y: Any, layers: tuple[str, ...]):
        self.x, self.y = x, y
        self.earlier: Sequence[Loss] = ()
        self._network, self._layers = network, layers
        with record_activations(network.module, layers) as self.activations:
            self.answer = network.forward(x)
        self.out = scores_of(self.answer)

    @cached_property
    def loss(self) -> Tensor:
        """The loss so far: set by `objective`; computed when read, of a pass at other weights."""
        if not self.earlier:
            return next(iter(self._network.weights.values())).new_zeros(())
        with torch.no_grad():
            return objective(self, self.earlier)[0]

    def at(self, w: Tensor) -> "ForwardPass":
        """The same batch through the network with weights `w`: evaluation mode, no gradient.

        BatchNorm uses the received statistics, and dropout is off, as in the teachers of FedSOL,
        FedNTD and MOON. `loss` is the loss so far at `w`, computed if it is read.
        """
        with torch.no_grad():
            there = ForwardPass(self._network.at(w), self.x, self.y, self._layers)
        there.earlier = self.earlier
        return there

    def with_head_offset(self, e: Tensor, detached: bool = False) -> "ForwardPass":
        """The same features through the head alone, its weights displaced by the vector `e`.

        The head must have been observed. `loss` is the loss so far of the displaced head.

        Args:
            e: The displacement; its values for the body are ignored.
            detached: The gradient of `out` is with respect to `e` alone; `loss` stays that of this
                pass.

        Raises:
            ModelError: If the head is not the model's last step, has dropout or keeps statistics.
        """
        head = self._network.head
        features, out = self.activations[head]
        module = self._network.module.get_submodule(head)
        drops = any(isinstance(part, _DropoutNd) for part in module.modules())
        if out is not self.answer or drops or [*module.buffers()]:
            raise ModelError(
                f"the head {head!r} cannot be displaced alone, since it has buffers or dropout, or "
                "a further step or the model's own loss follows: set the model's attribute "
                "`head`, or perturb all or the body"
            )
        displaced = object.__new__(ForwardPass)
        displaced.__dict__.update(self.__dict__, activations=copy(self.activations))
        displaced.out = self._network.with_head_offset(
            features.detach() if detached else features, e, detached
        )
        displaced.answer = displaced.out
        displaced.activations[head] = features, displaced.out
        if detached:
            displaced.loss = self.loss
        else:
            objective(displaced, self.earlier)
        return displaced


Loss = Callable[[ForwardPass], Tensor]
"""A loss of one forward pass; returns a 0-dim tensor."""


class Oracle(Protocol):
    """`oracle(w)` is the gradient at `w`; `of` and `part` make other oracles from it."""

    def __call__(self, w: Tensor) -> Tensor:
        """The gradient at `w`, a vector like `w`. It cannot be differentiated again."""

    def loss(self, w: Tensor) -> Tensor:
        """The loss at `w` on this batch, 0-dim, for one further forward pass.

        No gradient flows through it, dropout draws the masks of the gradient, and running
        statistics move in a step without gradients alone. It does not include what inner terms do
        to the gradient.
        """

    def of(self, loss: Loss, *layers: str) -> "Oracle":
        """The oracle of `loss` on the same batch; `layers` are submodules to record."""

    def part(self, index: int, count: int) -> "Oracle":
        """The same oracle on one of `count` interleaved parts of the batch, none of them empty."""


@dataclass(eq=False)
class WrappedOracle:
    """An oracle around another one; a subclass says what the gradient is."""

    inner: Oracle

    def __call__(self, w: Tensor) -> Tensor:
        raise NotImplementedError

    def loss(self, w: Tensor) -> Tensor:
        return self.inner.loss(w)

    def of(self, loss: Loss, *layers: str) -> Oracle:
        return replace(self, inner=self.inner.of(loss, *layers))

    def part(self, index: int, count: int) -> Oracle:
        return replace(self, inner=self.inner.part(index, count))


@dataclass(frozen=True)
class Request:
    """The parts of a question to an oracle besides the weights.

    Attributes:
        losses: Further losses after the task's.
        layers: Submodules whose activations they read.
        index, count: Part `index` of `count` parts of the batch.
        loss_only: Whether to answer with the loss, not its gradient.
    """

    losses: tuple[Loss, ...] = ()
    layers: tuple[str, ...] = ()
    index: int = 0
    count: int = 1
    loss_only: bool = False

    def batch(self, x: Any, y: Any) -> tuple[Any, Any]:
        """The part of a batch; parts share samples where it is smaller than `count`."""
        if self.count == 1:
            return x, y
        index = self.index % min(self.count, len(tree_leaves(y)[0]))
        x, y = tree_map(lambda t: t[index :: self.count], (x, y))
        return x, y


TASK_LOSS = Request()
"""The task's loss on the whole batch, as of an ordinary closure."""


class BatchOracle:
    """The innermost oracle: calls `evaluate(w, request)` for each gradient and each loss."""

    def __init__(self, evaluate: Callable[[Tensor, Request], Tensor], request: Request = TASK_LOSS):
        self.evaluate, self.request = evaluate, request

    def __call__(self, w: Tensor) -> Tensor:
        return self.evaluate(w, self.request)

    def loss(self, w: Tensor) -> Tensor:
        return self.evaluate(w, replace(self.request, loss_only=True)).to(w)  # the model's dtype

    def of(self, loss: Loss, *layers: str) -> "BatchOracle":
        q = self.request
        return BatchOracle(
            self.evaluate, replace(q, losses=(*q.losses, loss), layers=(*q.layers, *layers))
        )

    def part(self, index: int, count: int) -> "BatchOracle":
        q = self.request  # which may be of a part itself
        return BatchOracle(
            self.evaluate, replace(q, index=q.index + index * q.count, count=q.count * count)
        )


def objective(b: ForwardPass, losses: Sequence[Loss]) -> tuple[Tensor, Tensor]:
    """Evaluate the task's loss, then each further loss in turn.

    Returns:
        The value to differentiate, and the task's own (the first) loss.
    """
    values = []
    b.earlier = ()
    for i, loss in enumerate(losses):
        b.loss = loss(b)
        values.append(b.loss)
        b.earlier = losses[: i + 1]
    return values[-1], values[0]


@contextmanager
def record_activations(module: nn.Module, names: tuple[str, ...]) -> Iterator[Activations]:
    """Record input and output of submodules during one forward pass, also under vmap."""
    activations = Activations(names)

    def record(name: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        activations[name] = next(iter((*args, *kwargs.values()))), output

    hooks = [
        _submodule(module, name).register_forward_hook(partial(record, name), with_kwargs=True)
        for name in names
    ]
    try:
        yield activations
    finally:
        for hook in hooks:
            hook.remove()


def _submodule(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        there = ", ".join(known for known, _ in module.named_modules() if known)
        raise ModelError(
            f"the model has no submodule {name!r} to record: choose among {there}"
        ) from error
