"""Random numbers that depend on what they are for, and on nothing else.

Everything random in a simulation is drawn from a generator named by (seed, purpose, round, client, ...), and the global
generators are left as they were found. So a result does not change with the number of ranks, with how many clients
train at once, or with a restart in between.
"""

from hashlib import blake2b

import torch


def derived_seed(seed: int, purpose: str, *ids: int) -> int:
    """A 63-bit seed for `purpose`, e.g. `derived_seed(0, "order", round, client)`. Equal arguments, equal seed."""
    name = ":".join([str(seed), purpose, *map(str, ids)])
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """A fresh CPU generator for `purpose`; draws are made on the CPU so that they are the same on every device."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *ids))
