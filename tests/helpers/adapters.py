"""LoRA layers with the names of peft, which tests do without."""

from collections import OrderedDict
from typing import Any

import torch
from problems import classifier, federation
from torch import Tensor, nn

from fl_lightning import Algorithm, Federation
from fl_lightning.core.vector import copy

RANK, SCALING = 4, 0.5


class LoRALinear(nn.Module):
    """A frozen linear layer with an adapter; B is not 0, so that A moves in the first step."""

    def __init__(self, base: nn.Linear, transposed: bool = False, rank: int = RANK):
        super().__init__()
        self.base_layer, self.fan_in_fan_out = base.requires_grad_(False), transposed
        self.scaling = {"default": SCALING}
        outputs, inputs = base.weight.shape
        A, B = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        self.lora_A, self.lora_B = nn.ModuleDict({"default": A}), nn.ModuleDict({"default": B})
        if transposed:
            base.weight = nn.Parameter(base.weight.T.contiguous(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        W, bias = self.base_layer.weight, self.base_layer.bias
        adapted: Tensor = self.lora_B["default"](self.lora_A["default"](x))
        return x @ (W if self.fan_in_fan_out else W.T) + bias + SCALING * adapted

    def whole(self) -> Tensor:
        """`W + s B A`, (outputs, inputs)."""
        W = self.base_layer.weight
        product = self.lora_B["default"].weight @ self.lora_A["default"].weight
        return (W.T if self.fan_in_fan_out else W) + SCALING * product


def adapted(dtype: torch.dtype = torch.float64, rank: int = RANK) -> nn.Module:
    """A classifier of two such layers; the second holds its base transposed, as GPT-2's do."""
    plain: Any = classifier(norm=False, dropout=0.25)
    layers = [
        ("inner", LoRALinear(plain.inner, rank=rank)),
        ("tanh", nn.Tanh()),
        ("drop", plain.drop),
        ("outer", LoRALinear(plain.outer, transposed=True, rank=rank)),
    ]
    return nn.Sequential(OrderedDict(layers)).to(dtype)


def adapted_federation(algorithm: Algorithm, **options: Any) -> Federation:
    return federation(algorithm, module=options.pop("module", None) or adapted(), **options)


def frozen_weights(run: Federation) -> list[Tensor]:
    return [p.clone() for p in run.server.frozen.values()]


def whole_weights(
    run: Federation, w: Tensor | None = None, bases: list[Tensor] | None = None
) -> list[Tensor]:
    """`W + s B A` of each layer, of the global model or at other adapters and frozen weights."""
    run.layout.load(run.module, run.w.detach() if w is None else w)
    layers: Any = run.module
    frozen, now = [*run.server.frozen.values()], frozen_weights(run)
    copy(frozen, bases or now)
    whole = [layer.whole().detach().clone() for layer in (layers.inner, layers.outer)]
    copy(frozen, now)
    return whole
