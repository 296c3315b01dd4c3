"""The model at given weights, as losses and executors evaluate it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from typing import Any

import torch.func
from torch import Tensor, nn

from fl_lightning.core.device import bytes_of
from fl_lightning.core.dropout import KEY, DropoutMasks
from fl_lightning.core.mixed_precision import casts_of
from fl_lightning.core.vector import Layout
from fl_lightning.errors import UserError


def functional_call(module: nn.Module, tensors: Mapping[str, Tensor], x: Any) -> Any:
    """The module's output with other parameters and buffers, by their names in `named_*`."""
    args, kwargs = arguments(x)
    named = tied(module, tensors)
    return torch.func.functional_call(module, named, args, kwargs, tie_weights=False)


def call(module: nn.Module, x: Any) -> Any:
    """The module's output for inputs `x`."""
    args, kwargs = arguments(x)
    return module(*args, **kwargs)


def arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a module is called with inputs `x`: `module(x)`, `module(*x)` or `module(**x)`."""
    if isinstance(x, Tensor):
        return (x,), {}
    return ((), x) if isinstance(x, dict) else (tuple(x), {})


def class_name(module: nn.Module) -> str:
    """The name of the class that the user wrote, of a module that may stand in for it."""
    return type(getattr(module, "lightning_module", module)).__name__


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` has wrapped, whose names have no prefix, or the module."""
    return getattr(module, "_orig_mod", module)


def tied(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by every name of a parameter or buffer, for `functional_call(tie_weights=False)`.

    If `functional_call` ties names itself, it does not restore a submodule that has two names
    (https://github.com/pytorch/pytorch/issues/164759).
    """
    first, found = dict[Tensor, str](), dict[str, Tensor]()
    for prefix, part in module.named_modules():  # each part once
        for key, own in (*part._parameters.items(), *part._buffers.items()):
            name = f"{prefix}.{key}" if prefix else key
            if own is not None and first.setdefault(own, name) in tensors:
                found[name] = tensors[first[own]]
    return found


class FunctionalModel:
    """The model at some weights.

    Args:
        module: The model.
        layout: Its flat vector.
        received: The buffers as the visit received them; reference passes start from them.
        weights: The trainable weights by name.
        casts: Their casts in autocast's number type, in the same order; none if it casts itself.
        moved: The buffers that `forward` updates, and the key of dropout; None in a reference pass,
            which is evaluation.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        received: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        moved: dict[str, Tensor] | None = None,
        casts: Sequence[Tensor] = (),
    ):
        self.module, self.layout, self.head = module, layout, layout.head
        self.received, self.weights, self.moved, self.casts = received, weights, moved, casts

    def forward(self, x: Any) -> Any:
        """The model's output."""
        if self.moved is not None:
            with DropoutMasks(self.moved[KEY]) as masks, self.casting():
                out = functional_call(self.module, {**self.weights, **self.moved}, x)
            self.moved[KEY] = masks.key
            return out
        training, buffers = self.module.training, {k: b.clone() for k, b in self.received.items()}
        self.module.eval()
        try:
            return functional_call(self.module, {**self.weights, **buffers}, x)
        finally:
            self.module.train(training)

    def casting(self) -> AbstractContextManager[None]:
        """A context in which layers find the casts."""
        return casts_of([*self.weights.values()], self.casts) if self.casts else nullcontext()

    def at(self, w: Tensor) -> "FunctionalModel":
        """The same model with weights `w` in evaluation mode, its buffers as received."""
        return FunctionalModel(self.module, self.layout, self.received, self.layout.named(w))

    def with_head_offset(self, features: Tensor, e: Tensor, detached: bool) -> Tensor:
        """The head's output for its input `features`, its weights displaced by `e`."""
        prefix, displaced = f"{self.head}." if self.head else "", {}
        for name, part in self.layout.named(e).items():
            if name.startswith(prefix):
                weight = self.weights[name].detach() if detached else self.weights[name]
                displaced[name.removeprefix(prefix)] = weight + part
        return functional_call(self.module.get_submodule(self.head), displaced, features)


def digest(tensor: Tensor) -> str:
    """64 hexadecimal digits: SHA-256 of a tensor's dtype, shape and bytes."""
    content = sha256(repr((tensor.dtype, tuple(tensor.shape))).encode())
    content.update(bytes_of(tensor))
    return content.hexdigest()


def check_base(ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Raise a UserError unless frozen parameters have the digests that a checkpoint holds."""
    for name, content in theirs.items():
        if ours.get(name) != content:
            raise UserError(
                f"{name} is frozen and has other values than in the run, whose checkpoints hold "
                "only its digest: make the model with the same frozen weights"
            )


def unaliased(tensor: Tensor, *others: Tensor) -> Tensor:
    """The tensor, or a copy if it shares memory with one of the others."""
    here = tensor.untyped_storage().data_ptr()
    shared = any(other.untyped_storage().data_ptr() == here for other in others)
    return tensor.clone() if shared else tensor


def change(after: Tensor, before: Tensor) -> Tensor:
    """How far a buffer has moved, as real numbers; exactly 0 where it has not."""
    if after.is_complex():
        after, before = torch.view_as_real(after), torch.view_as_real(before)
    elif not after.is_floating_point():
        after, before = after.long(), before.long()
    return torch.where(after == before, 0, after - before)


def changed(before: Tensor, by: Tensor) -> Tensor:
    """The buffer after a mean change; integers are rounded."""
    if before.is_complex():
        return before + torch.view_as_complex(by.to(before.real.dtype).contiguous())
    if before.is_floating_point():
        return before + by.to(before.dtype)
    return (before.long() + by.round().long()).to(before.dtype)
