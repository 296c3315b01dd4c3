"""A model as one flat vector, and vector algebra that the methods share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl_lightning.errors import UserError, nearest

Part = str | Callable[[str, Any], bool]
"""Some parameters: "head", "body", "norm", a word in their names, or a function of name and layout.

"norm" are the parameters of normalization layers.
"""


@dataclass(frozen=True)
class LoRALayer:
    """A frozen weight W to which a layer of peft adds the product of two matrices, `s B A`.

    Attributes:
        A: Name of the parameter A, (r, inputs).
        B: Name of the parameter B, (outputs, r).
        base: Name of the parameter W.
        scaling: The factor s.
        transposed: Whether the base holds W^T, (inputs, outputs), as GPT-2's layers do.
    """

    A: str
    B: str
    base: str
    scaling: float
    transposed: bool

    def product(self, named: Mapping[str, Tensor]) -> Tensor:
        """`s B A` of named parameters in the base's shape: (outputs, inputs), or transposed."""
        A, B = named[self.A], named[self.B]
        product = self.scaling * (B.flatten(1) @ A.flatten(1))
        return product.T if self.transposed else product.unflatten(1, A.shape[1:])


def lora_layers(module: nn.Module) -> list[LoRALayer]:
    """The LoRA layers of a model: modules with `base_layer`, `lora_A`, `lora_B` and `scaling`.

    Those are peft's for linear layers and convolutions. Embeddings, convolutions in groups, and
    variants that do more than add `s B A` (DoRA) are left out.
    """
    return [
        LoRALayer(
            f"{name}.lora_A.{adapter}.weight",
            f"{name}.lora_B.{adapter}.weight",
            f"{name}.base_layer.weight",
            float(layer.scaling[adapter]),
            bool(getattr(layer, "fan_in_fan_out", False)),
        )
        for name, layer in module.named_modules()
        if hasattr(layer, "base_layer") and hasattr(layer, "scaling")
        if getattr(layer.base_layer, "groups", 1) == 1
        for adapter in getattr(layer, "lora_A", ())
        if adapter not in getattr(layer, "lora_variant", ())
    ]


class Layout:
    """The places of a module's trainable parameters in the flat vector `w`.

    Frozen parameters (`requires_grad=False`), empty ones and buffers are not part of the vector.

    Args:
        module: The model. Its trainable parameters must share one dtype and one device.

    Attributes:
        names: Parameter names, in the order of the vector.
        shapes: Their shapes.
        sizes: Their numbers of elements.
        head: Name of the submodule that classifies: `module.head` if that is a name, else the last
            child with a parameter; of a child that holds all parameters, that child's head. The
            rest is the body. A model without children is all head, and its name is empty.
        network: Name of the submodule whose children are blocks: the child that holds all
            parameters, or again that child's; empty if it is the model itself.
        norms: Names of the normalization layers, whose class is named so.
        lora: The LoRA layers (see `lora_layers`).

    Example:
        >>> layout = Layout(nn.Linear(2, 1))
        >>> layout.names, layout.size
        (['weight', 'bias'], 3)
        >>> layout.mask("bias", like=torch.zeros(3))
        tensor([0., 0., 1.])

    Raises:
        UserError: If there is nothing to train, parameters have no shape yet, are complex, of half
            precision or differ in dtype or device, or `module.head` names no submodule.
    """

    def __init__(self, module: nn.Module):
        if lazy := [k for k, p in module.named_parameters() if is_lazy(p)]:
            raise UserError(
                f"the parameter {lazy[0]} has no shape yet: run the model once on some samples"
            )
        # a parameter of size 0 has no mean, norm or matrix of its own
        named = {k: p for k, p in module.named_parameters() if p.requires_grad and p.numel()}
        if not named:
            raise UserError("the model has no trainable parameter: set requires_grad=True on some")
        kinds = {(p.dtype, p.device) for p in named.values()}
        if len(kinds) > 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise UserError(
                f"trainable parameters must share one dtype and device, but the model has {found}: "
                "convert them; of complex ones let the parameter be torch.view_as_real(weight)"
            )
        ((dtype, _),) = kinds
        if dtype not in (torch.float32, torch.float64):
            raise UserError(
                f"trainable parameters are {dtype}, but the vector that clients step is float32 or "
                "float64: convert them, and give --precision bf16-mixed for speed"
            )
        self.names = list(named)
        self.shapes = [p.shape for p in named.values()]
        self.sizes = [p.numel() for p in named.values()]
        self.network, self.head = _network_and_head(module)
        self.norms = {name for name, m in module.named_modules() if "Norm" in type(m).__name__}
        self.lora = lora_layers(module)

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(self.sizes)

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The trainable parameters of `module`, in the order of the vector."""
        return [module.get_parameter(name) for name in self.names]

    def flatten(self, tensors: Iterable[Tensor]) -> Tensor:
        """One vector from tensors in the order of the vector."""
        return torch.cat([t.reshape(-1) for t in tensors])

    def split(self, w: Tensor) -> list[Tensor]:
        """Views of `w` in the parameters' shapes."""
        parts = zip(w.split(self.sizes), self.shapes, strict=True)
        return [part.view(shape) for part, shape in parts]

    def named(self, w: Tensor) -> dict[str, Tensor]:
        """Views of `w` by parameter name, as `torch.func.functional_call` takes them."""
        return dict(zip(self.names, self.split(w), strict=True))

    def map(self, function: Callable[..., Tensor], *vectors: Tensor) -> Tensor:
        """Apply `function` parameter by parameter to one or more vectors: for layer-wise rules."""
        parts = zip(*map(self.split, vectors), strict=True)
        return self.flatten(function(*part) for part in parts)

    def reduce(self, function: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        """One number a parameter, (parameters,): `function` of each part of a vector."""
        return torch.stack([function(part) for part in self.split(v)])

    def spread(self, numbers: Tensor) -> Tensor:
        """A vector from one number a parameter."""
        return torch.cat([x.expand(n) for x, n in zip(numbers, self.sizes, strict=True)])

    def has(self, part: Part, name: str) -> bool:
        """Whether the parameter or buffer of this name belongs to a part."""
        if callable(part):
            return part(name, self)
        if part == "norm":
            return name.rpartition(".")[0] in self.norms
        if part in ("head", "body"):
            return (part == "head") == name.startswith(f"{self.head}." if self.head else "")
        return part in name

    def of(self, part: Part) -> list[bool]:
        """Whether each parameter belongs to a part.

        Raises:
            UserError: If the part is a word, and no name has it.
        """
        own = [self.has(part, name) for name in self.names]
        if isinstance(part, str) and part not in ("head", "body", "norm") and not any(own):
            raise UserError(
                f"no trained parameter has {part!r} in its name{nearest(part, self.names)}"
            )
        return own

    def mask(self, part: Part, like: Tensor) -> Tensor:
        """A vector of ones for a part (see `of`), zeros elsewhere."""
        sizes = zip(self.of(part), self.sizes, strict=True)
        return torch.cat([like.new_full((size,), float(own)) for own, size in sizes])

    def take(self, part: Part, w: Tensor) -> Tensor:
        """The places of a part (see `of`) in a vector, one after another."""
        both = zip(w.split(self.sizes), self.of(part), strict=True)
        return self.flatten([w.new_zeros(0), *(x for x, own in both if own)])

    def put(self, part: Part, w: Tensor, values: Tensor) -> Tensor:
        """A vector with other values, as `take` gives them, in the places of a part (see `of`).

        Raises:
            UserError: If they are not as many as the part has places.
        """
        own = self.of(part)
        sizes = [size for size, chosen in zip(self.sizes, own, strict=True) if chosen]
        if values.shape != (sum(sizes),):
            shape = tuple(values.shape)
            raise UserError(
                f"values of shape {shape} cannot be put into a part of {sum(sizes)} places: give "
                "v.layout.take(part, values), if they are of the whole vector"
            )
        new, old = iter(values.split(sizes)), w.split(self.sizes)
        return torch.cat([next(new) if chosen else x for x, chosen in zip(old, own, strict=True)])

    def body_blocks(self) -> list[str]:
        """The children that hold parameters and nothing of the head, from the input on.

        A child with vectors alone, such as a normalization, takes the place of the one before it.
        """
        axes: dict[str, int] = {}
        prefix = f"{self.network}." if self.network else ""
        head = prefix + self.head.removeprefix(prefix).partition(".")[0]
        for name, shape in zip(self.names, self.shapes, strict=True):
            child, dot, _ = name.removeprefix(prefix).partition(".")
            if dot and (block := prefix + child) != head:
                axes[block] = max(axes.get(block, 0), len(shape))
        return [block for block, after in pairwise([*axes, head]) if axes.get(after, 2) > 1]

    @torch.no_grad()
    def read(self, module: nn.Module) -> Tensor:
        """The module's weights as a new vector."""
        return self.flatten(p.detach() for p in self.parameters(module)).clone()

    @torch.no_grad()
    def load(self, module: nn.Module, w: Tensor) -> None:
        """Copy `w` into the module's parameters."""
        copy(self.parameters(module), self.split(w))


def _network_and_head(module: nn.Module) -> tuple[str, str]:
    """The names of `Layout.network` and `Layout.head`."""
    declared = getattr(module, "head", None)
    if isinstance(declared, str):
        if declared not in dict(module.named_modules()):
            raise UserError(
                f"the model's attribute `head` is {declared!r}, but it has no such submodule"
            )
        return "", declared
    children = {name: child for name, child in module.named_children() if [*child.parameters()]}
    if len(children) != 1 or [*module.parameters(recurse=False)]:
        return "", [*children][-1] if children else ""
    ((name, child),) = children.items()
    network, head = _network_and_head(child)
    if not head:  # a single layer
        return "", name
    return f"{name}.{network}".rstrip("."), f"{name}.{head}"


def unit(v: Tensor, eps: float = 1e-12) -> Tensor:
    """`v / (||v|| + eps)`: one L2 norm over the whole vector; zero stays zero.

    Example:
        >>> unit(torch.tensor([3.0, 4.0]))
        tensor([0.6000, 0.8000])
    """
    return v / (v.norm() + eps)


@torch.no_grad()
def copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target; all of a type in one kernel."""
    kinds: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if type(target) not in (Tensor, nn.Parameter):  # the shards of FSDP know no such kernel
            target.copy_(source)
            continue
        kind = target.device, target.dtype, source.device, source.dtype
        into, out_of = kinds.setdefault(kind, ([], []))
        into.append(target)
        out_of.append(source)
    for into, out_of in kinds.values():
        torch._foreach_copy_(into, out_of)


def cloned(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each tensor."""
    copies = [torch.empty_like(t) for t in tensors]
    copy(copies, tensors)
    return copies
