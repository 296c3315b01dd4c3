"""The model at given weights, as executors evaluate it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from fl_lightning.core.vector import Layout
from fl_lightning.executors.executor import Buffers


class FunctionalModel:
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
        self.module, self.layout, self.received, self.weights, self.moved = (
            module,
            layout,
            received,
            weights,
            moved,
        )
        self.head = layout.head

    def forward(self, x: Tensor) -> Any:
        """The model's output."""
        moved = (
            {name: b.clone() for name, b in self.received.items()}
            if self.moved is None
            else self.moved
        )
        return functional_call(self.module, (dict(self.weights), moved), (x,))

    def at(self, w: Tensor) -> "FunctionalModel":
        """The same model with weights `w`, its buffers as received."""
        return FunctionalModel(self.module, self.layout, self.received, self.layout.named(w))

    def with_head_offset(self, features: Tensor, e: Tensor, detached: bool) -> Tensor:
        """The head's output for its input `features`, its weights displaced by `e`."""
        prefix, weights = f"{self.head}." if self.head else "", self.weights
        displaced = {
            name.removeprefix(prefix): (weights[name].detach() if detached else weights[name])
            + part
            for name, part in self.layout.named(e).items()
            if name.startswith(prefix)
        }
        out: Tensor = functional_call(self.module.get_submodule(self.head), displaced, (features,))
        return out


def unaliased(tensor: Tensor, *others: Tensor) -> Tensor:
    """The tensor, or a copy if it lies where one of the others does, which a step is about to change in place."""
    here = tensor.untyped_storage().data_ptr()
    return (
        tensor.clone()
        if any(other.untyped_storage().data_ptr() == here for other in others)
        else tensor
    )
