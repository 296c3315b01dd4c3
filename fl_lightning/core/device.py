"""What is sent to the device without waiting for it, and when it is waited for."""

import time

import torch
from torch import Tensor


def to_device_async(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor, from the CPU, on the device; nobody waits for what a GPU was given before.

    An ordinary copy to a GPU waits until all that is queued there is done, and the queue then runs
    empty. PyTorch gives pinned memory out again only once the copies from it are done.
    """
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def synchronized_time(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
