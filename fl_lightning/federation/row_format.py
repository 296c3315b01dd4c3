"""Row format: the states of a client as one row of bytes."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from fl_lightning.core.term import States
from fl_lightning.federation.row_files import CHECKSUM_BYTES

ALIGNMENT = 16
"""Bytes: every state of a row begins at a multiple of it, for any dtype."""


class RowFormat:
    """The places of a client's states in its row.

    Args:
        states: States of one client, one dictionary a term: names, shapes and dtypes.

    Attributes:
        terms: The slice, shape and dtype of each state, one dictionary a term.
        bytes: Bytes of a row with its checksum; 0 if the algorithm keeps nothing.
    """

    def __init__(self, states: Sequence[States]):
        self.bytes = 0
        self.terms = list[dict[str, tuple[slice, torch.Size, torch.dtype]]]()
        for term in states:
            self.terms.append({})
            for name, state in term.items():
                length = prod(state.shape) * state.dtype.itemsize
                part = slice(self.bytes, self.bytes + length)
                self.terms[-1][name] = part, state.shape, state.dtype
                self.bytes += -(-length // ALIGNMENT) * ALIGNMENT
        self.bytes += CHECKSUM_BYTES if self.bytes else 0

    def views(self, row: Tensor) -> list[States]:
        """The states in a row, (bytes,) uint8, as views."""
        return [
            {name: row[part].view(dtype).view(shape) for name, (part, shape, dtype) in term.items()}
            for term in self.terms
        ]
