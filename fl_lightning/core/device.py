"""Asynchronous copies to the device, its clock, and the bytes of tensors."""

import time

import torch
from torch import Tensor


def to_device_async(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a CPU tensor on the device, without waiting for a GPU's queue.

    An ordinary copy to a GPU waits until its queue is empty. PyTorch reuses pinned memory only
    after the copies from it are done.
    """
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


class Moment:
    """When a device has done what it was given until now. On a GPU only a difference waits for it.

    `later - earlier` is in seconds.
    """

    def __init__(self, device: torch.device):
        self._time, self._event = time.perf_counter(), None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record(torch.cuda.current_stream(device))

    def __sub__(self, earlier: "Moment") -> float:
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        self._event.synchronize()
        return earlier._event.elapsed_time(self._event) / 1000


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, also of bfloat16, which NumPy does not know; on a CPU its memory."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def on_gpu(tensor: Tensor) -> bool:
    """Whether fewer operations are faster. A CPU keeps PyTorch's own operations."""
    return tensor.is_cuda
