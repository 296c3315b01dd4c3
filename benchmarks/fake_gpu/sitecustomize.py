"""A fake GPU, for a PyTorch without CUDA: `device="cuda"` with the CPU's kernels.

    pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu
    export PYTHONPATH=benchmarks/fake_gpu
    python -m pytest tests/test_cuda.py -k "not compiled and not GRU"
    python recipes/digits.py --accelerator cuda

Every Python process with this folder on its path has it; a C++ compiler is needed once. It was
tried with torch 2.13.0+cpu, and with torchvision without its own operations.

As on a GPU, tensors of two devices do not mix, CUDA graphs repeat calls at fixed addresses, and
what waits for the device is known. It knows nothing of a GPU's kernels, such as those by cuDNN and
Triton, of their order on several streams, of pinned memory, and of speed.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TORCH = Path(find_spec("torch").submodule_search_locations[0])  # type: ignore[union-attr, index]
SOURCE = Path(__file__).with_name("fake_cuda.cpp")
BUILT = Path(tempfile.gettempdir(), f"fake_gpu_{SOURCE.stat().st_mtime_ns}.so")


def built() -> ctypes.CDLL:
    """The library, loaded before torch, which asks once whether there is a GPU."""
    if not BUILT.exists():
        includes = [f"-I{TORCH / 'include' / path}" for path in ("", "torch/csrc/api/include")]
        own = BUILT.with_suffix(f".{os.getpid()}")
        flags = "-shared", "-fPIC", "-std=c++20", "-O1", f"-L{TORCH / 'lib'}"
        subprocess.run(
            ["g++", *flags, *includes, SOURCE, "-o", own, "-ltorch_cpu", "-lc10"], check=True
        )
        own.rename(BUILT)
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(TORCH / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(BUILT))


class Stream:
    """A stream has an order, and nothing else: each operation ends before the next begins."""

    _ids = count(1)

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None):
        self.cuda_stream = next(self._ids) if stream_id is None else stream_id

    def wait_stream(self, other: "Stream") -> None:
        """Nothing."""

    wait_event = synchronize = wait_stream

    def record_event(self, event: "Event") -> "Event":
        """An event of now."""
        event.record(self)
        return event


class Event:
    """A moment."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False):
        self.time = 0.0

    def record(self, stream: Any = None) -> None:
        """Set the moment."""
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing."""

    def query(self) -> bool:
        """Whether it has come."""
        return True

    def elapsed_time(self, later: "Event") -> float:
        """Milliseconds until a later one."""
        return 1e3 * (later.time - self.time)


class CUDAGraph:
    """Recorded calls."""

    _ids = count(1)

    def __init__(self) -> None:
        self.id = next(self._ids)

    def replay(self) -> None:
        """Repeat the calls at their addresses."""
        LIBRARY.replay(self.id)

    def __del__(self) -> None:
        LIBRARY.forget(self.id)


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """A context in which operations belong to a stream."""
    if stream is None:
        yield
        return
    before = LIBRARY.exchange_stream(stream.cuda_stream)
    try:
        yield
    finally:
        LIBRARY.exchange_stream(before)


@contextmanager
def capturing(graph: CUDAGraph, pool: Any, stream: Stream, **_: Any) -> Iterator[None]:
    """A context that records the calls on a stream."""
    with on_stream(stream):
        LIBRARY.begin_capture(graph.id)
        try:
            yield
        finally:
            LIBRARY.end_capture()


def _always(answer: Any, *_: Any, **__: Any) -> Any:
    return answer


def plug_in() -> None:
    """Let torch and Lightning find the device."""
    import torch
    from lightning.fabric.accelerators import cuda as of_lightning

    LIBRARY.plug_in()
    nothing = ("_lazy_init", "set_device", "synchronize", "empty_cache", "manual_seed")
    answers = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "get_device_name": "a fake GPU",
        "get_device_capability": (9, 0),
        "get_device_properties": SimpleNamespace(name="a fake GPU", total_memory=2**36),
        "mem_get_info": (2**36, 2**36),
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "graph_pool_handle": (0, 1),
    }
    answers |= dict.fromkeys((*nothing, "reset_peak_memory_stats", "set_rng_state"))
    for name, answer in answers.items():
        setattr(torch.cuda, name, partial(_always, answer))
    modes = {"default": 0, "warn": 1, "error": 2}
    given = {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "stream": on_stream,
        "graph": capturing,
        "current_stream": lambda _=None: Stream(stream_id=LIBRARY.stream()),
        "get_rng_state": lambda _=None: torch.get_rng_state(),
        "get_sync_debug_mode": LIBRARY.get_sync_debug_mode,
        "set_sync_debug_mode": lambda mode: LIBRARY.set_sync_debug_mode(modes.get(mode, mode)),
    }
    for name, value in given.items():
        setattr(torch.cuda, name, value)
    torch.Tensor.pin_memory = torch.Tensor.clone  # type: ignore[method-assign]
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign, assignment]
    of_host = torch.UntypedStorage.clone

    def clone(storage: Any) -> Any:
        if storage.device.type == "cpu":
            return of_host(storage)
        of_bytes = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
        return of_bytes.clone().untyped_storage()

    torch.UntypedStorage.clone = clone  # type: ignore[method-assign]
    for kind in ("flash", "mem_efficient", "cudnn"):  # attention has the kernel of no device then
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    of_lightning.num_cuda_devices = lambda: 1
    of_lightning.CUDAAccelerator.is_available = staticmethod(lambda: True)
    of_lightning._check_cuda_matmul_precision = lambda _: None


if Path(sys.argv[0]).name != "pip":
    LIBRARY = built()
    for function in ("exchange_stream", "stream"):
        getattr(LIBRARY, function).restype = ctypes.c_int64
        getattr(LIBRARY, function).argtypes = [ctypes.c_int64][: function == "exchange_stream"]
    plug_in()
