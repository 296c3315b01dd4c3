"""One local step of one client, and of several at once, as a function of tensors."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer
from torch.utils._pytree import tree_map

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.oracle import BatchOracle, ForwardPass, Request, objective
from fl_lightning.core.term import States
from fl_lightning.core.term_checks import AT_ONCE
from fl_lightning.errors import ModelError, TermError, first_sentence
from fl_lightning.executors.compile.program import Program
from fl_lightning.executors.executor import Buffers, Executor
from fl_lightning.executors.network import FunctionalModel

Public = dict[str, Any]
"""What all clients of a step share: the round's facts, `common`, and the server's states, `shared`."""


class LocalStep:
    """A local step of several clients at once, plain or compiled; all arguments but the last have a row for each.

    Args:
        executor: Whose model, loss and autocast it is.
        algorithm: What a step is.
        mode: Of `torch.compile`.

    Attributes:
        direction: `(w, own, states, buffers, received, x, y, public)` to the direction, the states,
            the buffers after the first evaluation and the task's loss there.
        compiled_direction: The same as a compiled program.
        compiled_descent: A step of SGD too: the weights after it instead of the direction, with
            `public["lr"]` and the weight decay `public["decay"]`, 0-dim.
    """

    def __init__(self, executor: Executor, algorithm: Algorithm, mode: str = "default"):
        self.executor, self.algorithm = executor, algorithm
        self._norms: Callable[[], AbstractContextManager[None]] = (
            partial(_full_batchnorm, executor.module) if executor.width > 1 else nullcontext
        )
        self.direction = _of_each(self._direction)
        self.compiled_direction = Program(self.direction, mode)
        self.compiled_descent = Program(_of_each(self._descent), mode)

    def _direction(
        self,
        w: Tensor,
        own: dict[str, Tensor],
        states: list[States],
        buffers: Buffers,
        received: Buffers,
        x: Tensor,
        y: Tensor,
        public: Public,
    ) -> tuple[Tensor, list[States], Buffers, Tensor]:
        executor, layout = self.executor, self.executor.layout
        first: list[tuple[Buffers, Tensor]] = []

        def evaluate(w: Tensor, question: Request) -> Tensor:
            def value(parts: list[Tensor]) -> tuple[Tensor, tuple[Buffers, Tensor]]:
                moved = {
                    name: b.clone() for name, b in buffers.items()
                }  # inside grad, or BatchNorm may not write
                weights = dict(zip(layout.names, parts, strict=True))
                network = FunctionalModel(executor.module, layout, received, weights, moved)
                with executor.autocast(), self._norms():
                    b = ForwardPass(network, *question.batch(x, y), question.layers)
                    total, task = objective(b, (executor.task, *question.losses))
                return total, (moved, task)

            with _blame_model():
                if question.loss_only:
                    return value(layout.split(w))[0]
                gradients, (_, aside) = grad_and_value(value, has_aux=True)(layout.split(w))
            first.append(aside)
            return layout.flatten(gradients)

        facts = {**public["common"], **own}
        g, states = self.algorithm.gradient(
            BatchOracle(evaluate), w, facts, states, public["shared"]
        )
        after, task = first[0] if first else (buffers, w.new_full((), torch.nan))
        return g, states, after, task

    def _descent(self, w: Tensor, *rest: Any) -> tuple[Any, ...]:
        g, *others = self._direction(w, *rest)
        lr, decay = rest[-1]["lr"], rest[-1]["decay"]
        return w - lr * (g + decay * w), *others


def weight_decay(optimizer: Optimizer) -> float | None:
    """The weight decay of an SGD that does nothing but descend, as `compiled_descent` does; None of any other."""
    if type(optimizer) is not SGD or len(optimizer.param_groups) > 1:
        return None
    group = optimizer.param_groups[0]
    return None if group["momentum"] or group["maximize"] else float(group["weight_decay"])


def _of_each(one: Callable[..., Any]) -> Callable[..., Any]:
    """From a function of one client to that of several."""

    def each(*arguments: Any) -> Any:
        *own, public = arguments
        if len(own[0]) > 1:
            return vmap(one, in_dims=(*[0] * len(own), None), randomness="error")(*arguments)
        alone = one(*tree_map(lambda t: t[0], own), public)
        return tree_map(lambda t: t[None], alone)

    return each


@contextmanager
def _full_batchnorm(module: nn.Module) -> Iterator[None]:
    """Let BatchNorm see numbers in the type of its own: under vmap it takes no others, and autocast leaves it bf16."""

    def convert(norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        own = next(chain(norm.parameters(), norm.buffers()), inputs[0])
        return (inputs[0].to(own.dtype),)

    norms = [child for child in module.modules() if isinstance(child, _BatchNorm)]
    hooks = [norm.register_forward_pre_hook(convert) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _blame_model() -> Iterator[None]:
    try:
        yield
    except (TermError, ModelError):
        raise
    except GuardOnDataDependentSymNode as error:
        raise ModelError(
            "this model or its loss decides by the value of a tensor, which cannot be compiled: train it without "
            "--compile"
        ) from error
    except RuntimeError as error:
        if not any(said in str(error) for said in AT_ONCE):
            raise
        raise ModelError(
            f"this model or its loss cannot run for several clients at once: {first_sentence(error)}. Train it with "
            "the sequential executor and without --compile (Dropout is fine as nn.Dropout; branches on values are not)"
        ) from error
