"""Dropout with masks that are a function of a key: they depend on the client, not on the executor.

`nn.Dropout` draws from a global generator: its masks depend on which clients trained before on this
rank, and `vmap` draws one block for all clients. Here a mask is a hash of (key, position). The key
is a buffer, set at the start of a visit from (seed, round, client); `vmap` handles it like any
other buffer.
"""

import torch
from torch import Tensor, nn

_LCG = 6364136223846793005, 1442695040888963407  # Knuth's 64-bit congruential generator
_LOWBIAS32 = (16, 0x7FEB352D), (15, -0x7B935975)  # Wellons' hash, in signed integers


class KeyedDropout(nn.Module):
    """`nn.Dropout` with its own key; elementwise, inverted scaling.

    Args:
        p: Probability with which an element is set to zero.
    """

    key: Tensor

    def __init__(self, p: float):
        super().__init__()
        self.p = p
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Zero elements of `x` in training. Every call advances the key."""
        if not self.training or self.p == 0:
            return x
        self.key.copy_(self.key * _LCG[0] + _LCG[1])
        kept = _uniform_bits(self.key, x.numel()) >= round(self.p * 2**31)
        return x * kept.view(x.shape) / (1 - self.p) if self.p < 1 else torch.zeros_like(x)

    def extra_repr(self) -> str:
        """The argument, for `print(module)`."""
        return f"p={self.p}"


def _uniform_bits(key: Tensor, count: int) -> Tensor:
    """`count` integers in [0, 2^31) from a 64-bit key: hashes of a counter."""
    stride, offset = (key >> 32).to(torch.int32) | 1, (key >> 9).to(torch.int32)
    z = torch.arange(count, dtype=torch.int32, device=key.device) * stride + offset
    for shift, factor in _LOWBIAS32:
        z = (z ^ ((z >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return (z ^ (z >> 16)) & 0x7FFFFFFF


def use_keys(module: nn.Module) -> list[str]:
    """Replace every `nn.Dropout` inside `module` by a `KeyedDropout` on the module's device.

    Returns:
        The names of the key buffers.
    """
    device = next(module.parameters()).device
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # a module used twice is listed twice
            if type(child) is nn.Dropout:
                setattr(parent, name, KeyedDropout(child.p).to(device).train(child.training))
    return [f"{name}.key" for name, m in module.named_modules() if isinstance(m, KeyedDropout)]
