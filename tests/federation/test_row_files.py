"""Rows in the system's memory stay within their bound."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
import torch

from fl_lightning.federation.client_store import ClientStore

CPU, ROW = torch.device("cpu"), 1 << 18

MEMORY, STATES = 4 << 20, [{"h": torch.zeros(ROW // 4 - 4)}]
"""A bound of 15 rows, with the pages at their ends."""


def in_memory(folder: Path) -> int:
    """Bytes of all files of a folder that the system has in its memory."""
    libc, count = ctypes.CDLL(None, use_errno=True), 0
    for path in folder.iterdir():
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
            here = ctypes.c_char.from_buffer(mapped)
            assert libc.mincore(ctypes.byref(here), ctypes.c_size_t(len(mapped)), pages) == 0
            del here
            count += sum(page & 1 for page in pages)
    return count * mmap.PAGESIZE


def states(value: float) -> list[dict[str, torch.Tensor]]:
    return [{"h": torch.full((ROW // 4 - 4,), value)}]


def kept(store: ClientStore, client: int) -> float:
    return float(store.read(client, CPU)[0]["h"][-1])


def visit_all(store: ClientStore, rounds: int, folder: Path) -> int:
    """Visit all clients in every round, ten at a time; return the most that was in memory."""
    most = 0
    for round in range(rounds):
        for cohort in torch.arange(store.num_clients).split(10):
            for client in cohort.tolist():
                assert round == 0 or kept(store, client) == client + round
                store.write(client, states(client + round + 1.0))
            store.commit(cohort.tolist())
            most = max(most, in_memory(folder))
        store.retain()
    return most


@pytest.fixture
def drops(tmp_path):
    """A folder on a disk; what lies in a memory file system cannot leave memory."""
    (probe := tmp_path / "probe").mkdir()
    with (probe / "file").open("wb") as file:
        file.write(bytes(1 << 20))
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if in_memory(probe):
        pytest.skip("the temporary folder keeps its files in memory")
    return tmp_path / "rows"


def test_rows_in_memory_stay_within_their_bound(drops):
    bounded = ClientStore(drops, 60, STATES, MEMORY)
    assert visit_all(bounded, 3, drops) <= MEMORY
    assert bounded.disk_bytes() >= 7 * MEMORY
    free = drops.with_name("free")
    assert visit_all(ClientStore(free, 60, STATES), 2, free) > 7 * MEMORY


def test_two_ranks_of_a_machine_share_the_bound(drops):
    """Each has half of it, and reads what the other wrote."""
    ranks = [ClientStore(drops, 20, STATES, MEMORY // 2, 2) for _ in range(2)]
    for round in range(4):
        for client in range(20):
            store = ranks[(client + round) % 2]
            assert round == 0 or kept(store, client) == client + round - 1
            store.write(client, states(float(client + round)))
            store.wait_for_writes()
            assert in_memory(drops) <= MEMORY // 2
        for store in ranks:
            store.commit(range(20))
            store.retain()


def test_rows_that_fit_are_never_dropped(drops, monkeypatch):
    def never(_: int) -> None:
        raise AssertionError("a row was dropped")

    monkeypatch.setattr(os, "fdatasync", never)
    store = ClientStore(drops, 10, STATES, 20 * (ROW + 4096))
    assert visit_all(store, 3, drops) >= 10 * ROW


def test_rows_that_an_earlier_process_left_in_memory_are_dropped(drops):
    visit_all(ClientStore(drops, 20, STATES), 1, drops)
    assert in_memory(drops) >= 20 * ROW
    ClientStore(drops, 20, STATES, MEMORY)
    assert in_memory(drops) == 0


def test_a_bound_below_one_row_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"1,000 bytes .*266,240"):
        ClientStore(tmp_path, 5, STATES, 1000)
    assert ClientStore(tmp_path, 5, [{}], 1000).row == 0  # nothing is kept: nothing to bound
