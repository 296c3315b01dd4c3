"""One client after another, through the live module: any `nn.Module`, any local optimizer."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning.core.dropout import KEY, DropoutMasks, new_key
from fl_lightning.core.mixed_precision import gathered
from fl_lightning.core.network import FunctionalModel, call, class_name, unaliased
from fl_lightning.core.oracle import TASK_LOSS, ForwardPass, Oracle, Request, objective
from fl_lightning.core.randomness import seeded_rng
from fl_lightning.core.substitution import substituted
from fl_lightning.core.vector import Layout, copy
from fl_lightning.errors import ModelError
from fl_lightning.executors.executor import (
    Buffers,
    ClientResult,
    ClientTask,
    Executor,
    RoundInputs,
    Visit,
)
from fl_lightning.optim import GradientTransform, Transform


class SequentialExecutor(Executor):
    """Trains one client after another. See `Executor` for the arguments.

    The module's parameters become views of one flat parameter, which the local optimizer steps.
    """

    def __init__(self, module: nn.Module, layout: Layout, **options: Any):
        super().__init__(module, layout, **options)
        self.w = nn.Parameter(layout.read(module))
        self.parameters, self.casts = layout.parameters(module), list[Tensor]()
        self.point_to(self.w.detach())
        if self.cast_dtype:
            self.cast = self.w.detach().to(self.cast_dtype)
            self.casts = [part.detach().requires_grad_() for part in layout.split(self.cast)]
        self.frozen = [p for p in module.parameters() if not p.requires_grad]
        self.buffers, self.key = dict(module.named_buffers()), new_key(0)
        self.one = self.w.new_ones(())  # else autograd makes one for each gradient

    def point_to(self, vector: Tensor) -> None:
        """Make the module's parameters views of `vector`."""
        self.point = vector
        for p, part in zip(self.parameters, self.layout.split(vector.to(self.w)), strict=True):
            p.data = part

    def __call__(
        self, received: RoundInputs, tasks: Sequence[ClientTask]
    ) -> Iterable[ClientResult]:
        """Train the clients one after another, each when its result is requested."""
        self.begin_training()
        for task in tasks:
            with seeded_rng(task.seed, self.w.device), substituted(batched=False):
                result = self._visit(received, task)
            yield result

    def _visit(self, received: RoundInputs, task: ClientTask) -> ClientResult:
        visit = Visit(self, received, task)
        algorithm, facts, states = visit.algorithm, visit.facts, visit.states
        self.announce(facts)
        with torch.no_grad():
            self.w.copy_(facts["origin"])
        self.key = visit.buffers[KEY]
        copy([*self.buffers.values()], [visit.buffers[name] for name in self.buffers])

        def transform(oracle: Oracle, w: Tensor) -> Tensor:
            nonlocal states
            direction, states = algorithm.gradient(oracle, w, facts, states, received.states)
            states = [{name: unaliased(s, w) for name, s in term.items()} for term in states]
            kept = (state for term in states for state in term.values())
            return unaliased(direction, w, *kept)  # some optimizers change a gradient in place

        optimizer = _InPlace(algorithm.local([self.w]), transform, self)
        total, live = self.w.new_zeros(1), _Live(self, visit.buffers)
        for step, lr in enumerate(task.lrs):
            for group in optimizer.param_groups:
                group["lr"] = lr
            total = total + self._step(optimizer, *task.batches[step], live)
        if any(p.requires_grad for p in self.frozen):
            raise ModelError(
                f"{class_name(self.module)} makes a frozen parameter trainable in a step, but "
                "clients train what was trainable at the start: unfreeze it before"
            )
        self.w.grad = None
        after = {name: self.buffers[name].clone() for name in received.buffers}
        return visit.result(self.w.detach().clone(), states, after, total / len(task.lrs))

    def _step(self, optimizer: GradientTransform, x: Any, y: Any, live: "_Live") -> Tensor:
        """Take one local step; returns what is observed at its first evaluation.

        A loss alone counts as one in a step without gradients.
        """
        observed, at_losses = list[Tensor](), list[Tensor]()

        def closure(request: Request = TASK_LOSS) -> Tensor:
            if self.casts:
                with torch.no_grad():
                    self.cast.copy_(self.point)
            with self.autocast():
                b = ForwardPass(live, *request.batch(x, y), request.layers)
                value, task = objective(b, (self.task, *request.losses))
            if request.loss_only:
                at_losses.append(self.observed(b, task).detach())
                return value
            self.w.grad = None  # frees the memory that backward then takes
            self.w.grad = self._gradient(value)
            if not observed:
                observed.append(self.observed(b, task).detach())
            return value.detach()

        optimizer.step(closure)
        return (observed or at_losses or [self.w.new_full((1,), torch.nan)])[0]

    def _gradient(self, value: Tensor) -> Tensor:
        weights, casts, one = self.parameters, self.casts, self.one.to(value)
        if not value.requires_grad:  # a loss of pairs, of a batch without one
            return torch.zeros_like(self.w)
        if not casts:
            of_weights = torch.autograd.grad(value, weights, one, materialize_grads=True)
            return self.layout.flatten(of_weights)
        of_both = torch.autograd.grad(value, [*weights, *casts], one, allow_unused=True)
        return gathered(self.layout, of_both[: len(weights)], of_both[len(weights) :])


class _InPlace(GradientTransform):
    """Steps the executor's flat parameter itself, so that a step copies no weights.

    For a gradient elsewhere, the module's parameters temporarily become views of that vector.
    """

    def __init__(self, base: Optimizer, transform: Transform, executor: SequentialExecutor):
        super().__init__(base, transform, executor.buffers.values)
        self.executor = executor
        self._probed = True  # the executor's closure never adds to earlier gradients

    def _joined(self, gradients: Sequence[Tensor]) -> Tensor:
        return gradients[0]  # which the closure has made for this call alone

    def _gradients(self, params: Sequence[Tensor], direction: Tensor) -> Sequence[Tensor]:
        return [direction.to(params[0])]  # which `unaliased` has made new where that matters

    def _buffer_values(self) -> list[Tensor]:
        return [self.executor.key, *super()._buffer_values()]

    def _set_buffers(self, values: Sequence[Tensor]) -> None:
        self.executor.key, *buffers = values
        super()._set_buffers(buffers)

    def _read(self, params: Sequence[Tensor]) -> Tensor:
        return self.executor.w.detach()

    def _move(self, params: Sequence[Tensor], vector: Tensor) -> None:
        self.executor.point_to(vector)


class _Live(FunctionalModel):
    """The module as it is, its parameters and buffers live."""

    def __init__(self, executor: SequentialExecutor, received: Buffers):
        self.executor = executor
        weights = dict(zip(executor.layout.names, executor.parameters, strict=True))
        super().__init__(executor.module, executor.layout, received, weights, casts=executor.casts)

    def forward(self, x: Any) -> Any:
        """The model's output."""
        with DropoutMasks(self.executor.key) as masks, self.casting():
            out = call(self.module, x)
        self.executor.key = masks.key
        return out
