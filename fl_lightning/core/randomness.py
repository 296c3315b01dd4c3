"""Random numbers that depend on what they are for, and on nothing else.

Everything random in a simulation is drawn from a generator named by (seed, purpose, round, client,
...), and the global generators are left as they were found. So a result does not change with the
number of ranks, with how many clients train at once, or with a restart in between.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch


def derived_seed(seed: int, purpose: str, *ids: int) -> int:
    """A 63-bit seed for `purpose`, e.g. `derived_seed(0, "order", round, client)`. Equal arguments, equal seed."""
    name = ":".join([str(seed), purpose, *map(str, ids)])
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """A fresh CPU generator for `purpose`; draws are made on the CPU so that they are the same on every device."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *ids))


@contextmanager
def seeded_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Let whatever a model draws from torch's own generators depend on this seed alone, and leave them as they were."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(
            seed
        )  # torch.manual_seed looks for GPUs, each time for a fifth of a step
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield
