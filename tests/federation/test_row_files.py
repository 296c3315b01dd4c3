"""Rows of clients' states in the machine's memory: no more than they may take."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
import torch

from fl_lightning.federation.client_store import ClientStore

CPU, ROW = torch.device("cpu"), 1 << 18
"""The device, and bytes of a row."""


def in_memory(folder: Path) -> int:
    """Bytes of all files of a folder that the system has in its memory."""
    libc, count = ctypes.CDLL(None, use_errno=True), 0
    for path in folder.iterdir():
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
            here = ctypes.c_char.from_buffer(mapped)
            assert libc.mincore(ctypes.byref(here), ctypes.c_size_t(len(mapped)), pages) == 0, (
                ctypes.get_errno()
            )
            del here
            count += sum(page & 1 for page in pages)
    return count * mmap.PAGESIZE


def visited(store: ClientStore, rounds: int, folder: Path) -> int:
    """Let all clients be visited in every round, ten at a time; the most that was in memory."""
    most = 0
    for round in range(rounds):
        for cohort in torch.arange(store.num_clients).split(10):
            for client in cohort.tolist():
                old = (
                    store.read(client, CPU)[0]["h"]
                    if store.has(client)
                    else torch.full((ROW // 4,), float(client))
                )
                assert float(old[-1]) == client + round
                store.write(client, [{"h": old + 1}])
            store.commit(cohort.tolist())
            most = max(most, in_memory(folder))
        store.retain()
    return most


@pytest.fixture
def drops(tmp_path: Path) -> Path:
    """A folder on a disk; what lies in a memory file system cannot leave memory."""
    (probe := tmp_path / "probe").mkdir()
    with (probe / "file").open("wb") as file:
        file.write(bytes(1 << 20))
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if in_memory(probe):
        pytest.skip("the temporary folder keeps its files in memory")
    return tmp_path / "rows"


def test_rows_in_memory_stay_within_their_bound(drops: Path) -> None:
    memory, begin = 4 << 20, [{"h": torch.zeros(ROW // 4)}]
    bounded = ClientStore(drops, 100, begin, memory)
    assert visited(bounded, 3, drops) <= memory
    assert bounded.disk_bytes() >= 10 * memory
    assert (
        visited(ClientStore(drops.with_name("free"), 100, begin), 2, drops.with_name("free"))
        > 10 * memory
    )


def test_two_ranks_of_a_machine_share_the_bound(drops: Path) -> None:
    """Each with its half of it, reading what the other wrote."""
    memory = 4 << 20
    ranks = [ClientStore(drops, 40, [{"h": torch.zeros(ROW // 4)}], memory, 2) for _ in range(2)]
    for round in range(4):
        for client in range(40):
            if round:
                assert (
                    float(ranks[(client + round) % 2].read(client, CPU)[0]["h"][-1])
                    == client + round - 1
                )
            ranks[(client + round) % 2].write(
                client, [{"h": torch.full((ROW // 4,), float(client + round))}]
            )
            ranks[(client + round) % 2].wait_for_writes()
            assert in_memory(drops) <= memory
        for store in ranks:
            store.commit(range(40))
            store.retain()


def test_rows_that_fit_are_never_dropped(drops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: int) -> None:
        raise AssertionError("a row was dropped")

    monkeypatch.setattr(os, "fdatasync", never)
    store = ClientStore(drops, 10, [{"h": torch.zeros(ROW // 4)}], 20 * (ROW + 4096))
    assert visited(store, 3, drops) >= 10 * ROW


def test_what_an_earlier_process_left_in_memory_is_dropped(drops: Path) -> None:
    begin = [{"h": torch.zeros(ROW // 4)}]
    visited(ClientStore(drops, 20, begin), 1, drops)
    assert in_memory(drops) >= 20 * ROW
    ClientStore(drops, 20, begin, 4 << 20)
    assert in_memory(drops) == 0


def test_a_bound_below_one_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"1,000 bytes for each rank.*a client's row takes 266,240"
    ):
        ClientStore(tmp_path, 5, [{"h": torch.zeros(ROW // 4)}], 1000)
    assert ClientStore(tmp_path, 5, [{}], 1000).row == 0  # nothing is kept: nothing to bound
