"""Random numbers that depend on their purpose alone.

A simulation draws from generators named by (seed, purpose, round, client, ...) and leaves the
global ones as they were. So a result does not depend on the number of ranks, on the number of
clients trained in parallel, or on a restart.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor


def derived_seed(seed: int, purpose: str, *ids: int) -> int:
    """A 63-bit seed for `purpose`, e.g. `derived_seed(0, "order", round, client)`."""
    name = ":".join([str(seed), purpose, *map(str, ids)])
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """A new CPU generator for `purpose`; draws on the CPU are the same for every device."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *ids))


LCG = 6364136223846793005, 1442695040888963407
"""Factor and increment of Knuth's 64-bit congruential generator."""

_LOWBIAS32 = (16, 0x7FEB352D), (15, -0x7B935975)  # Wellons' hash, in signed integers


def next_key(key: Tensor) -> Tensor:
    """The key after another one, int64: both are seeds of `uniform_bits`."""
    return key * LCG[0] + LCG[1]


def uniform_bits(key: Tensor, count: int) -> Tensor:
    """`count` integers in [0, 2^31) from a 64-bit key: hashes of a counter.

    They are the same on every device, under `vmap` and in compiled programs.
    """
    stride, offset = (key >> 32).to(torch.int32) | 1, (key >> 9).to(torch.int32)
    z = torch.arange(count, dtype=torch.int32, device=key.device) * stride + offset
    for shift, factor in _LOWBIAS32:
        z = (z ^ ((z >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return (z ^ (z >> 16)) & 0x7FFFFFFF


def generator_states(device: torch.device) -> tuple[Any, ...]:
    """The states of the global generators of torch, Python and numpy."""
    of_torch = [torch.get_rng_state()]
    if device.type == "cuda":
        of_torch.append(torch.cuda.get_rng_state(device))
    _, key, position, *_ = np.random.get_state()  # noqa: NPY002
    numbers = [*(state.numpy() for state in of_torch), np.asarray(key)]
    return random.getstate(), position, *(state.tobytes() for state in numbers)


_NUMPY = np.random.MT19937()  # swapped in, since copying the state of numpy's own takes longer


@contextmanager
def seeded_rng(seed: int, device: torch.device) -> Iterator[None]:
    """A context in which torch's, numpy's and Python's global generators are seeded.

    Afterwards they are as before. numpy's and Python's take 17 microseconds.
    """
    on_gpu = device.type == "cuda"
    of_python, of_numpy = random.getstate(), np.random.mtrand.get_bit_generator()
    with torch.random.fork_rng([device] if on_gpu else []):
        # torch.manual_seed looks for GPUs, each time for a fifth of a step
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed(seed)
        random.seed(seed)
        np.random.mtrand.set_bit_generator(_NUMPY)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.mtrand.set_bit_generator(of_numpy)
