"""A client store with small states, and a number that all states of a row are made of."""

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_lightning.federation.client_store import ClientStore

CPU, ROW, PLENTY = torch.device("cpu"), 32, 1 << 20

STATES = [
    {"h_i": torch.zeros(3), "count": torch.zeros(())},
    {},
    {"c_i": torch.zeros(2, dtype=torch.float64)},
]


def new_store(folder: Path, memory: int | None = PLENTY, **options: Any) -> ClientStore:
    return ClientStore(folder, 5, STATES, memory, **options)


def states(value: float) -> list[dict[str, Tensor]]:
    h = torch.full((3,), value)
    c = torch.full((2,), -value, dtype=torch.float64)
    return [{"h_i": h, "count": h.sum(), "e": h}, {"e": h}, {"c_i": c}]


def write(store: ClientStore, value: float, *clients: int) -> None:
    for client in clients:
        store.write(client, states(value))


def keep(store: ClientStore, value: float, *clients: int) -> None:
    write(store, value, *clients)
    store.commit(clients)


def kept(store: ClientStore, client: int) -> float:
    """The number that all states of the client's row are made of."""
    found = store.read(client, CPU)
    value = float(found[0]["h_i"][0])
    for term, expected in zip(found, states(value), strict=True):
        assert term.keys() == {*expected} - {"e"}
        assert all(state.dtype == expected[name].dtype for name, state in term.items())
        assert all(state.equal(expected[name]) for name, state in term.items())
    return value


def row_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("client-rows")}
