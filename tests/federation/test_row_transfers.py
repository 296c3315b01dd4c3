"""Rows of the client store move to and from their files while clients train."""

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
from client_rows import PLENTY, new_store, row_threads, write
from problems import STACKED, federation, hard

from fl_lightning import SequentialExecutor, algorithms
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.row_files import Row, RowFiles

TIMEOUT_S = 30.0


def test_rows_are_moved_while_other_clients_train(monkeypatch):
    """No visit ends before the next row is read; no row is written before the next visit begins."""
    order = [0, 2, 1, 5, 4]  # the longest first
    run = federation(
        hard(algorithms.scaffold()), sampler=lambda *_: sorted(order), client_state_memory=0
    )
    run.train_round()
    was_read, begun = ({client: threading.Event() for client in order} for _ in range(2))
    after = dict(pairwise(order))
    read, visit, write = RowFiles.read, SequentialExecutor._visit, RowFiles.write

    def reading(files: RowFiles, slot: int, client: int, row: Row) -> Row:
        read(files, slot, client, row)
        was_read[client].set()
        return row

    def training(executor, received, each):
        begun[each.client].set()
        assert each.client not in after or was_read[after[each.client]].wait(TIMEOUT_S)
        return visit(executor, received, each)

    def writing(files: RowFiles, slot: int, client: int, row: Row) -> None:
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
    options = {"sampler": lambda *_: [0, 2, 3, 4], "executor": executor, "client_state_memory": 0}
    run = federation(hard(algorithms.scaffold()), **options)
    run.train_round()
    before, function = run.w.detach().clone(), getattr(RowFiles, name)

    def refuse(files: RowFiles, slot: int, whose: int, row: Row) -> Any:
        if whose == client:
            raise OSError(code, os.strerror(code))
        return function(files, slot, whose, row)

    monkeypatch.setattr(RowFiles, name, refuse)
    with pytest.raises(OSError, match=os.strerror(code)):
        run.train_round()
    assert run.round == 1
    assert run.w.equal(before)


def test_the_thread_ends_with_its_store(tmp_path):
    others = row_threads()
    store = new_store(tmp_path, 0)
    write(store, 1.0, 0)
    (thread,) = row_threads() - others
    del store
    gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_the_thread_works_for_the_gpu_that_rows_come_from(device, tmp_path, monkeypatch):
    """CUDA calls of a new thread would take memory of GPU 0, which is another rank's."""
    set_device = Mock()
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    h = Mock(nbytes=16, device=torch.device(device))
    store = ClientStore(tmp_path, 5, [{"h": h}], PLENTY)
    assert not set_device.called
    store._thread.submit(int).result(TIMEOUT_S)
    assert set_device.mock_calls == ([call(torch.device(device))] if device != "cpu" else [])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("memory", [0, 1 << 25, 1 << 30])
def test_rows_that_are_still_being_computed_are_kept_whole(memory, tmp_path):
    """And read ahead while others are computed, through pinned memory and without waiting."""
    size, device, clients = 1 << 22, torch.device("cuda"), range(4)
    store = ClientStore(tmp_path, len(clients), [{"h": torch.zeros(size, device=device)}], memory)
    a, one = torch.eye(4096, device=device), torch.ones(size, device=device)
    for _ in range(6):
        for client in clients:
            store.prefetch([client, client + 1][: len(clients) - client])
            h = store.read(client, device)[0]["h"] if store.has(client) else one * client
            for _ in range(20):
                a = a @ a
            h = h + one * a[0, 0]
            store.write(client, [{"h": h}])
            h.zero_()  # in the order of the device, so after the copy
            store.wait_for_writes(but=1)
        store.commit(clients)
        store.retain()
    for client in clients:
        assert bool((store.read(client, device)[0]["h"] == client + 6).all())
