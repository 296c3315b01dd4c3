"""LoRA layers of a model, as the package peft makes them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class LoRALayer:
    """A frozen weight W to which a layer adds the product of two smaller matrices, `s B A`.

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
