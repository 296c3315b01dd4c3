"""Asynchronous copies to the device, and a clock that waits for it."""

import time

import torch
from torch import Tensor


def to_device_async(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a CPU tensor on the device, without waiting for a GPU's queue.

    An ordinary copy to a GPU waits until its queue is empty. PyTorch reuses pinned memory only
    after the copies from it are done.
    """
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def synchronized_time(device: torch.device) -> float:
    """Seconds on a clock, after the device has finished its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
