"""The interface of executors: tasks in, results out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm, Facts, Sent
from fl_lightning.core.curves import Coefficients
from fl_lightning.core.device import to_device_async
from fl_lightning.core.dropout import KEY, new_key
from fl_lightning.core.losses import TaskLoss, cross_entropy
from fl_lightning.core.mixed_precision import cast_dtype
from fl_lightning.core.oracle import ForwardPass, Loss
from fl_lightning.core.term import States
from fl_lightning.core.vector import Layout
from fl_lightning.data.client_data import Batches

Buffers = Mapping[str, Tensor]
"""A module's buffers by name, such as BatchNorm's running statistics."""


@dataclass(frozen=True)
class RoundInputs:
    """What all clients of a round receive.

    Attributes:
        algorithm: The method, the same in every round.
        facts: Facts that hold for every client of the round; `anchor` is the model.
        states: The server's states, one dictionary a term.
        buffers: The global buffers.
        group: The number of clients in the largest call of the round; 0 if it does not matter.
        coefficients: The numbers of the method's curves in the round.
    """

    algorithm: Algorithm
    facts: Facts
    states: Sequence[States]
    buffers: Buffers
    group: int = 0
    coefficients: Coefficients = field(default_factory=dict)


@dataclass(frozen=True)
class ClientTask:
    """One client's local training, before it begins.

    Attributes:
        client: The client's index.
        facts: Facts of this client (see `View`): its index, steps, epochs, lr_sum, size, weight,
            labels, and inclusion_probability where it differs between clients.
        states: Its client and local states, one dictionary a term.
        batches: Its mini-batches.
        lrs: The local learning rate of each step.
        seed: Seed of its random numbers (dropout).
        buffers: The buffers that it keeps for itself, in place of the global ones.
    """

    client: int
    facts: Facts
    states: list[States]
    batches: Batches
    lrs: Sequence[float]
    seed: int
    buffers: Buffers = field(default_factory=dict)


@dataclass(frozen=True)
class ClientResult:
    """The result of a task.

    Attributes:
        progress: The client's last model minus the model that it started from.
        sent: What the server receives of it.
        message: The report of each term, one pytree of tensors a term.
        states: The client's states, one dictionary a term.
        buffers: The module's buffers after the last step.
        loss: The task's loss before each step, averaged over the steps; 0-dim.
        origin: The model that the client started from.
        logs: What a module logs in its training step, averaged likewise; (k,).
    """

    progress: Tensor
    sent: Sent
    message: list[Any]
    states: list[States]
    buffers: Buffers
    loss: Tensor
    origin: Tensor
    logs: Tensor


class Visit:
    """One client's visit: the hooks before its first step and after its last one.

    Attributes:
        algorithm: The method of the round.
        facts: All facts of the visit; `origin` is where the client starts.
        states: The client's states after `start`.
        buffers: The buffers that it starts with, and the key of its dropout.
    """

    def __init__(self, executor: "Executor", received: RoundInputs, task: ClientTask):
        self._received = received
        self.algorithm = received.algorithm.with_coefficients(received.coefficients)
        facts = {**received.facts, **task.facts}
        self.buffers: Buffers = {
            **received.buffers,
            **task.buffers,
            **executor.dropout_key(task.seed),
        }
        origin, self.states = self.algorithm.start(
            facts["anchor"], facts, task.states, received.states
        )
        self.facts: Facts = {**facts, "origin": origin}

    def result(
        self, w: Tensor, states: list[States], buffers: Buffers, means: Tensor
    ) -> ClientResult:
        """The result, from the last weights, states and buffers, and the means of `observed`."""
        origin, server_states = self.facts["origin"], self._received.states
        progress = w - origin
        sent, message, states = self.algorithm.send(progress, w, self.facts, states, server_states)
        after = {name: buffers[name] for name in self._received.buffers}
        return ClientResult(progress, sent, message, states, after, means[0], origin, means[1:])


class Executor:
    """Trains clients. Terms, local optimizer and result are the same in every executor.

    Args:
        module: The model; it is trained in place, on its device.
        layout: Its flat vector.
        loss: The task's loss of the model's output and the targets.
        autocast: Context of every forward pass, e.g. `fabric.autocast`.

    Attributes:
        device: Where the model lies.
        width: The most clients that a call takes.
        parallel: Whether the hooks of a client run under `vmap`.
        compiled: The batch size whose steps are compiled; 0 compiles nothing.
        cast_dtype: The number type in which linear layers see the weights, None if it is their own:
            all weights of a pass are cast at once.
    """

    width: int = 1
    parallel: bool = False
    compiled: int = 0

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: TaskLoss = cross_entropy,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ):
        self.module, self.layout, self.loss, self.autocast = module, layout, loss, autocast
        weight = layout.parameters(module)[0]
        self.device, self.cast_dtype = weight.device, cast_dtype(weight, autocast)
        self.task: Loss = lambda b: loss(b.answer, b.y)

    def __call__(
        self, received: RoundInputs, tasks: Sequence[ClientTask]
    ) -> Iterable[ClientResult]:
        """Train up to `width` clients; yields one result a task, in order."""
        raise NotImplementedError

    @property
    def manner(self) -> str:
        """How clients train together, for the summary of a run; empty if they do not."""
        return ""

    def announce(self, facts: Facts) -> None:
        """Give the facts of a visit to a module that asks for them."""
        if receive := getattr(self.module, "receive_facts", None):
            receive(facts)

    def begin_training(self) -> None:
        """Put the module into training mode, unless it is: that takes a while in each submodule."""
        if not self.module.training:
            self.module.train()

    def observed(self, b: ForwardPass, task: Tensor) -> Tensor:
        """The task's loss and what the module logs in a forward pass, (1 + k,)."""
        logs = getattr(b.answer, "logs", None)
        return torch.stack([task, *logs.values()]) if logs else task[None]

    def try_model(self, x: Any, y: Any) -> None:
        """Raise a ModelError if the model cannot train on samples like these in this executor.

        Nothing changes.
        """

    def dropout_key(self, seed: int) -> dict[str, Tensor]:
        """The key of a visit's dropout, as a buffer."""
        return {KEY: to_device_async(new_key(seed), self.device)}
