"""What a card can do at best: copies, products, and convolutions of ten clients in four ways.

    python benchmarks/ceilings.py --accelerator cuda

A convolution of ten clients is ten dense ones, one with ten groups (what vmap makes of it), the
latter in channels_last, or patches and a batched product. Each is timed forward and backward, in
bf16; the dense ones one after another, so that branches may take less.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from contest import where
from torch import Tensor
from torch.nn import functional as F

LAYERS = {  # channels in and out, kernel, side of the image
    "lenet 1": (3, 64, 5, 32),
    "lenet 2": (64, 64, 5, 14),
    "resnet 1": (64, 64, 3, 8),
    "resnet 2": (128, 128, 3, 4),
    "resnet 3": (256, 256, 3, 2),
    "resnet 4": (512, 512, 3, 1),
    "resnet 3x3 stem": (64, 64, 3, 32),
}


def seconds(call: Callable[[], Any], device: torch.device, times: int) -> float:
    """Seconds of one call, the mean of several in a row after a warm-up."""
    for warm_up in (True, False):
        began = time.perf_counter()
        for _ in range(2 if warm_up else times):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / times


def convolutions(clients: int, batch: int, layer: tuple[int, ...], device: torch.device) -> Any:
    """A forward and backward pass of a layer for all clients, by the name of the way."""
    channels, out, kernel, side = layer
    pad = kernel // 2
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # slow on many a CPU
    x = torch.randn(clients, batch, channels, side, side, device=device, dtype=dtype)
    w = torch.randn(clients, out, channels, kernel, kernel, device=device, dtype=dtype)

    def both(forward: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Any]:
        def call() -> Any:
            x_, w_ = x.detach().requires_grad_(), w.detach().requires_grad_()
            y = forward(x_, w_)
            return torch.autograd.grad(y, (x_, w_), torch.ones_like(y))

        return call

    def dense(x: Tensor, w: Tensor) -> Tensor:
        pairs = zip(x, w, strict=True)
        return torch.stack([F.conv2d(x_, w_, padding=pad) for x_, w_ in pairs])

    def grouped(x: Tensor, w: Tensor, memory_format: Any = torch.contiguous_format) -> Tensor:
        wide = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=memory_format)
        kernels = w.flatten(0, 1).contiguous(memory_format=memory_format)
        return F.conv2d(wide, kernels, padding=pad, groups=clients)

    def product(x: Tensor, w: Tensor) -> Tensor:
        patches = F.unfold(x.flatten(0, 1), kernel, padding=pad).unflatten(0, (clients, batch))
        return w.flatten(2) @ patches.transpose(1, 2).flatten(2)

    def last(x: Tensor, w: Tensor) -> Tensor:
        return grouped(x, w, torch.channels_last)

    ways = {"dense": dense, "groups": grouped, "channels_last": last, "product": product}
    return {name: both(way) for name, way in ways.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--layers", default=",".join(LAYERS))
    options = parser.parse_args()
    device, times = torch.device(options.accelerator), options.times
    print(where())
    a = torch.zeros(options.megabytes * 2**18, device=device)
    b = torch.empty_like(a)
    rate = 2 * a.nbytes / seconds(lambda: b.copy_(a), device, times) / 1e12
    side = 8192 if options.megabytes >= 512 else 256
    m = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    flops = 2 * side**3 / seconds(lambda: m @ m, device, times) / 1e12
    print(f"copies {rate:.2f} TB/s (predicted 3.0), bf16 products {flops:.0f} TFLOP/s (790)")
    print(f"forward and backward of {options.clients} clients, batch {options.batch}, in us:")
    for name in options.layers.split(","):
        ways = convolutions(options.clients, options.batch, LAYERS[name], device)
        each = {way: 1e6 * seconds(call, device, times) for way, call in ways.items()}
        print(f"{name:17}" + "".join(f"{way} {us:9.0f}   " for way, us in each.items()), flush=True)


if __name__ == "__main__":
    main()
