"""Rows of the client store that move to and from their files while clients train."""

import gc
import os
import threading
from errno import EIO, ENOSPC
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from client_rows import keep, kept, new_store, row_threads, states, write
from problems import STACKED, federation, hard

from fl_lightning import SequentialExecutor, algorithms
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.row_files import RowFiles

TIMEOUT_S = 30.0


@pytest.fixture
def store(tmp_path):
    return new_store(tmp_path)


@pytest.fixture
def gate(monkeypatch):
    """A disk that takes as many rows as it is released for."""
    gate, pwrite = threading.Semaphore(0), os.pwrite

    def late(*args):
        assert gate.acquire(timeout=TIMEOUT_S)
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", late)
    yield gate
    gate.release(100)


def test_the_program_continues_while_rows_are_written(store, tmp_path, gate):
    """States may change meanwhile; here it then waits for all rows but the last."""
    changing = states(1.0)
    for client in (0, 1, 4):
        store.write(client, changing)
    for state in (*changing[0].values(), *changing[2].values()):
        state.zero_()
    assert not any(file.stat().st_size for file in tmp_path.iterdir())
    gate.release(2)
    store.wait_for_writes(but=1)
    assert (tmp_path / "0.rows").stat().st_size == 2 * store.row
    gate.release()
    store.commit([0, 1, 4])
    assert [kept(store, client) for client in (0, 1, 4)] == [1.0] * 3


@pytest.mark.parametrize("before", [[], [0]], ids=["", "read before"])
@pytest.mark.parametrize("after", [[], [0]], ids=["", "read ahead"])
def test_a_read_sees_the_writes_before_it(before, after, store, gate):
    """No checkpoint retains the row, so it has one slot."""
    gate.release()
    keep(store, 1.0, 0)
    store.prefetch(before)
    write(store, 2.0, 0)
    store.prefetch(after)
    gate.release()
    assert kept(store, 0) == 2.0


@pytest.mark.parametrize(
    ("wait", "clients"),
    [("commit", [[0, 1]]), ("flush", []), ("retain", []), ("disk_bytes", [])],
)
def test_a_failed_write_is_raised_by_every_call_that_waits(wait, clients, store, monkeypatch):
    full = OSError(ENOSPC, os.strerror(ENOSPC))
    keep(store, 1.0, 0, 1)
    store.retain()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Mock(side_effect=full))
        write(store, 2.0, 0, 1)
        with pytest.raises(OSError, match=r"No space left on device.*1\.rows"):
            getattr(store, wait)(*clients)
    assert (kept(store, 0), kept(store, 1)) == (1.0, 1.0)


@pytest.mark.parametrize("restored", [False, True])
def test_the_first_failure_is_raised_once_and_never_after_a_restore(restored, store, monkeypatch):
    keep(store, 1.0, 3)
    store.retain()

    def refuse(files: RowFiles, slot: int, client: int, row: Any) -> None:
        raise OSError(EIO, f"row {client}")

    with monkeypatch.context() as patch:
        patch.setattr(RowFiles, "write", refuse)
        write(store, 2.0, 3, 0, 4)
        if restored:
            store.restore(store.slot, store.retained)
        else:
            with pytest.raises(OSError, match="row 3"):
                store.wait_for_writes()
    store.wait_for_writes()
    keep(store, 3.0, 3)
    assert kept(store, 3) == 3.0


def test_the_thread_ends_with_its_store(tmp_path):
    others = row_threads()
    s = new_store(tmp_path)
    write(s, 1.0, 0)
    (thread,) = row_threads() - others
    del s
    gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_the_thread_works_for_the_gpu_that_rows_come_from(device, tmp_path, monkeypatch):
    """CUDA calls of a new thread would take memory of GPU 0, which is another rank's."""
    set_device = Mock()
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    h = Mock(shape=torch.Size([4]), dtype=torch.float32, device=torch.device(device))
    s = ClientStore(tmp_path, 5, [{"h": h}])
    assert not set_device.called
    s._thread.submit(int).result(TIMEOUT_S)
    assert set_device.mock_calls == ([call(torch.device(device))] if device != "cpu" else [])


def test_rows_are_moved_while_other_clients_train(monkeypatch):
    """No visit ends before the next row is read; no row is written before the next visit begins."""
    order = [0, 2, 1, 5, 4]  # the longest first
    run = federation(hard(algorithms.scaffold()), sampler=lambda *_: sorted(order))
    run.train_round()
    was_read, begun = ({client: threading.Event() for client in order} for _ in range(2))
    after = dict(pairwise(order))
    read, visit, write = RowFiles.read, SequentialExecutor._visit, RowFiles.write

    def reading(files: RowFiles, slot: int, client: int, *rest: Any) -> Any:
        row = read(files, slot, client, *rest)
        was_read[client].set()
        return row

    def training(executor, received, each):
        begun[each.client].set()
        assert each.client not in after or was_read[after[each.client]].wait(TIMEOUT_S)
        return visit(executor, received, each)

    def writing(files: RowFiles, slot: int, client: int, row: Any) -> None:
        assert client not in after or begun[after[client]].wait(TIMEOUT_S)
        write(files, slot, client, row)

    monkeypatch.setattr(RowFiles, "read", reading)
    monkeypatch.setattr(SequentialExecutor, "_visit", training)
    monkeypatch.setattr(RowFiles, "write", writing)
    run.train_round()


@pytest.mark.parametrize("client", [0, 4])
@pytest.mark.parametrize(("name", "code"), [("read", EIO), ("write", ENOSPC)])
@pytest.mark.parametrize("width", [1, 2])
def test_a_round_with_a_disk_error_does_not_count(client, name, code, width, monkeypatch):
    """In the round's first group or its last."""
    executor = partial(STACKED, width=2) if width > 1 else SequentialExecutor
    options = {"sampler": lambda *_: [0, 2, 3, 4], "executor": executor}
    run = federation(hard(algorithms.scaffold()), **options)
    run.train_round()
    before, function = run.w.detach().clone(), getattr(RowFiles, name)

    def refuse(files: RowFiles, slot: int, whose: int, row: Any) -> Any:
        if whose == client:
            raise OSError(code, os.strerror(code))
        return function(files, slot, whose, row)

    monkeypatch.setattr(RowFiles, name, refuse)
    with pytest.raises(OSError, match=os.strerror(code)):
        run.train_round()
    assert run.round == 1
    assert run.w.equal(before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("begun", ["cpu", "cuda"])
def test_rows_that_are_still_being_computed_are_written_whole(begun, tmp_path):
    """And prefetched while others are computed, through pinned memory and without waiting."""
    size, device, clients = 1 << 22, torch.device("cuda"), range(4)
    s = ClientStore(tmp_path, len(clients), [{"h": torch.zeros(size, device=begun)}])
    a, one = torch.eye(4096, device=device), torch.ones(size, device=device)
    for _ in range(6):
        for client in clients:
            s.prefetch([client, client + 1][: len(clients) - client])
            h = s.read(client, device)[0]["h"] if s.has(client) else one * client
            for _ in range(20):
                a = a @ a
            h = h + one * a[0, 0]
            s.write(client, [{"h": h}])
            h.zero_()  # in the order of the device, so after the copy
            s.wait_for_writes(but=1)
        s.commit(clients)
        s.retain()
    for client in clients:
        assert bool((s.read(client, device)[0]["h"] == client + 6).all())
