"""What goes into an executor and what comes out: visits and outcomes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_lightning.core.algorithm import Algorithm, Facts
from fl_lightning.core.device import send
from fl_lightning.core.oracle import Loss
from fl_lightning.core.term import States
from fl_lightning.core.vector import Layout
from fl_lightning.executors.dropout import use_keys

TaskLoss = Callable[[Any, Tensor], Tensor]
"""`loss(output, target)`, averaged over the batch."""

Buffers = Mapping[str, Tensor]
"""A module's buffers by name: BatchNorm's running statistics and the like."""


class Batches(Protocol):
    """The mini-batches of one visit, made on demand (see `fl_lightning.data.Batches`)."""

    @property
    def sizes(self) -> Sequence[int]:
        """Batch size of each step."""
        ...

    @property
    def epochs(self) -> Sequence[int]:
        """Epoch of each step, from 0."""
        ...

    def __len__(self) -> int:
        """Number of local steps."""
        ...

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one step, on the device."""
        ...


@dataclass(frozen=True)
class Visit:
    """One client's visit, before it trains.

    Attributes:
        client: Which one.
        facts: What is true of this client: steps, epochs, span, size, weight; 0-dim tensors.
        states: Its client and local states, one dictionary a term.
        batches: What it trains on, step by step.
        lrs: The local learning rate of each step.
        seed: Names its random numbers (dropout).
    """

    client: int
    facts: Facts
    states: list[States]
    batches: Batches
    lrs: Sequence[float]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a visit leaves.

    Attributes:
        progress: The client's last model minus where it started.
        message: What each term reports, one pytree of tensors a term.
        states: The client's states, one dictionary a term.
        buffers: The module's buffers after the last step.
        loss: The task's loss before each step, averaged over the steps; 0-dim.
    """

    progress: Tensor
    message: list[Any]
    states: list[States]
    buffers: Buffers
    loss: Tensor


class Weighted:
    """The model at some weights, as a `Pass` looks at it (see `fl_lightning.core.oracle.Network`).

    Args:
        module: The model.
        layout: Its flat vector.
        received: The buffers as the visit received them, where reference passes begin.
        weights: The trainable weights by name; those of the module where there are none.
        moved: The buffers that `forward` moves; copies of `received` if None.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        received: Buffers,
        weights: Mapping[str, Tensor] = MappingProxyType({}),
        moved: dict[str, Tensor] | None = None,
    ):
        self.module, self.layout, self.received, self.weights, self.moved = module, layout, received, weights, moved
        self.head = layout.head

    def forward(self, x: Tensor) -> Any:
        """The model's output."""
        moved = {name: b.clone() for name, b in self.received.items()} if self.moved is None else self.moved
        return functional_call(self.module, (dict(self.weights), moved), (x,))

    def at(self, w: Tensor) -> "Weighted":
        """The same model with weights `w`, its buffers as received."""
        return Weighted(self.module, self.layout, self.received, self.layout.named(w))

    def top(self, features: Tensor, e: Tensor, fixed: bool) -> Tensor:
        """The head's output for its input `features`, its weights displaced by `e`."""
        prefix, weights = f"{self.head}." if self.head else "", self.weights
        displaced = {
            name.removeprefix(prefix): (weights[name].detach() if fixed else weights[name]) + part
            for name, part in self.layout.named(e).items()
            if name.startswith(prefix)
        }
        out: Tensor = functional_call(self.module.get_submodule(self.head), displaced, (features,))
        return out


def apart(tensor: Tensor, *others: Tensor) -> Tensor:
    """The tensor, or a copy if it lies where one of the others does, which a step is about to change in place."""
    here = tensor.untyped_storage().data_ptr()
    return tensor.clone() if any(other.untyped_storage().data_ptr() == here for other in others) else tensor


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Let whatever a model draws from torch's own generators depend on this seed alone, and leave them as they were."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed looks for GPUs, each time for a fifth of a step
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield


class Executor:
    """Trains clients: the same terms, the same optimizer class, the same result, one by one or many at once.

    Args:
        module: The model; it is trained in place, on its device.
        layout: Its flat vector.
        loss: The task's loss of the model's output and the targets.
        autocast: Context of every forward pass, e.g. `fabric.autocast`.

    Attributes:
        width: How many clients a call takes at most.
    """

    width: int = 1

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: TaskLoss = nn.functional.cross_entropy,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ):
        self.module, self.layout, self.autocast = module, layout, autocast
        self.keys = use_keys(module)
        self.task: Loss = lambda b: loss(b.out, b.y)

    def __call__(
        self, algorithm: Algorithm, common: Facts, visits: Sequence[Visit], shared: Sequence[States], buffers: Buffers
    ) -> Iterable[Outcome]:
        """Train up to `width` clients.

        Args:
            algorithm: What a local step is.
            common: Facts true of every client (see `Federation.common_facts`).
            visits: The clients.
            shared: The server's states, one dictionary a term.
            buffers: The global buffers, where every client's begin.

        Returns:
            One outcome a visit, in order.
        """
        raise NotImplementedError

    def dropout_keys(self, seed: int) -> dict[str, Tensor]:
        """A key for each dropout layer, as buffers."""
        keys = torch.tensor([(seed + i) % 2**63 for i in range(len(self.keys))])
        return dict(zip(self.keys, send(keys, next(self.module.parameters()).device).unbind(), strict=True))
