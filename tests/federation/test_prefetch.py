"""Rows that are read and written while clients train: their order and their failures."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from errno import EIO, ENOSPC
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from problems import STACKED, federation, hard

from fl_lightning import algorithms
from fl_lightning.executors import SequentialExecutor
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.row_files import RowFiles

CPU, TIMEOUT_S = torch.device("cpu"), 30.0


def store(folder: Path) -> ClientStore:
    return ClientStore(folder, 5, [{"h": torch.zeros(4)}])


def write(store: ClientStore, value: float, *clients: int) -> None:
    for client in clients:
        store.write(client, [{"h": torch.full((4,), value)}])


def kept(store: ClientStore, client: int) -> float:
    first, *others = store.read(client, CPU)[0]["h"].tolist()
    assert others == [first] * 3
    return float(first)


def row_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("client-rows")}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """A disk that takes as many rows as it is released for."""
    gate, pwrite = threading.Semaphore(0), os.pwrite

    def late(*args: Any) -> int:
        assert gate.acquire(timeout=TIMEOUT_S)
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", late)
    yield gate
    gate.release(100)


def test_the_program_continues_while_rows_are_written(
    tmp_path: Path, gate: threading.Semaphore
) -> None:
    """States may change meanwhile; here it then waits for all rows but the last."""
    s, h = store(tmp_path), torch.ones(4)
    for client in (0, 1, 4):
        s.write(client, [{"h": h}])
    h.zero_()
    assert not any(file.stat().st_size for file in tmp_path.iterdir())
    gate.release(2)
    s.wait_for_writes(but=1)
    assert (tmp_path / "0.rows").stat().st_size == 2 * s.row
    gate.release()
    s.commit([0, 1, 4])
    assert [kept(s, client) for client in (0, 1, 4)] == [1.0] * 3


@pytest.mark.parametrize("before", [[], [0]], ids=["", "read before"])
@pytest.mark.parametrize("after", [[], [0]], ids=["", "read ahead"])
def test_a_read_sees_the_writes_before_it(
    before: list[int], after: list[int], tmp_path: Path, gate: threading.Semaphore
) -> None:
    """No checkpoint retains the row, so it has one slot."""
    gate.release()
    s = store(tmp_path)
    write(s, 1.0, 0)
    s.commit([0])
    s.prefetch(before)
    write(s, 2.0, 0)
    s.prefetch(after)
    gate.release()
    assert kept(s, 0) == 2.0


def full(*_: Any) -> Any:
    raise OSError(ENOSPC, os.strerror(ENOSPC))


WAITING: dict[str, Callable[[ClientStore], Any]] = {
    "wait_for_writes": ClientStore.wait_for_writes,
    "commit": partial(ClientStore.commit, clients=[0, 1]),
    "flush": ClientStore.flush,
    "retain": ClientStore.retain,
    "disk_bytes": ClientStore.disk_bytes,
}


@pytest.mark.parametrize("wait", WAITING.values(), ids=WAITING)
def test_a_failed_write_is_raised_by_every_call_that_waits(
    wait: Callable[[ClientStore], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = store(tmp_path)
    write(s, 1.0, 0, 1)
    s.commit([0, 1])
    s.retain()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        write(s, 2.0, 0, 1)
        with pytest.raises(OSError, match=r"No space left on device.*1\.rows"):
            wait(s)
    assert (kept(s, 0), kept(s, 1)) == (1.0, 1.0)


@pytest.mark.parametrize("restored", [False, True])
def test_the_first_failure_is_raised_once_and_never_after_a_restore(
    restored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = store(tmp_path)
    write(s, 1.0, 3)
    s.commit([3])
    s.retain()

    def refuse(files: RowFiles, slot: int, client: int, row: Any) -> None:
        raise OSError(EIO, f"row {client}")

    with monkeypatch.context() as patch:
        patch.setattr(RowFiles, "write", refuse)
        write(s, 2.0, 3, 0, 4)
        if restored:
            s.restore(s.slot, s.retained)
        else:
            with pytest.raises(OSError, match="row 3"):
                s.wait_for_writes()
    s.wait_for_writes()
    write(s, 3.0, 3)
    s.commit([3])
    assert kept(s, 3) == 3.0


def test_the_thread_ends_with_its_store(tmp_path: Path) -> None:
    others = row_threads()
    s = store(tmp_path)
    write(s, 1.0, 0)
    (thread,) = row_threads() - others
    del s
    gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_the_thread_works_for_the_gpu_that_rows_come_from(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA calls of a new thread would take memory of GPU 0, which is another rank's."""
    chosen: list[tuple[str, torch.device]] = []

    def set_device(gpu: torch.device) -> None:
        chosen.append((threading.current_thread().name, gpu))

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    h = Mock(shape=torch.Size([4]), dtype=torch.float32, device=torch.device(device))
    states: Any = [{"h": h}]
    s = ClientStore(tmp_path, 5, states)
    s._thread.submit(int).result(TIMEOUT_S)
    assert chosen == ([("client-rows_0", torch.device(device))] if device != "cpu" else [])


def test_an_algorithm_without_client_states_starts_no_thread() -> None:
    others = row_threads()
    run = federation(hard(algorithms.fedsam()))
    run.train_round()
    run.store.flush()
    assert not row_threads() - others


class Events:
    """Events of several threads."""

    def __init__(self) -> None:
        self.all, self.changed = set[Any](), threading.Condition()

    def set(self, event: Any) -> None:
        with self.changed:
            self.all.add(event)
            self.changed.notify_all()

    def wait(self, event: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: event in self.all, TIMEOUT_S), f"no {event}"


def test_rows_are_moved_while_other_clients_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """No visit ends before the next row is read; no row is written before the next visit begins."""
    run = federation(hard(algorithms.scaffold()), sampler=lambda *_: [0, 1, 2, 4, 5])
    run.train_round()
    after, events = dict(pairwise([0, 2, 1, 5, 4])), Events()  # the longest first
    read, visit, write = RowFiles.read, SequentialExecutor._visit, RowFiles.write

    def reading(files: RowFiles, slot: int, client: int, *rest: Any) -> Any:
        row = read(files, slot, client, *rest)
        events.set(("read", client))
        return row

    def training(executor: Any, algorithm: Any, facts: Any, each: Any, *rest: Any) -> Any:
        events.set(("begun", each.client))
        if each.client in after:
            events.wait(("read", after[each.client]))
        return visit(executor, algorithm, facts, each, *rest)

    def writing(files: RowFiles, slot: int, client: int, row: Any) -> None:
        if client in after:
            events.wait(("begun", after[client]))
        write(files, slot, client, row)

    monkeypatch.setattr(RowFiles, "read", reading)
    monkeypatch.setattr(SequentialExecutor, "_visit", training)
    monkeypatch.setattr(RowFiles, "write", writing)
    run.train_round()


@pytest.mark.parametrize("client", [0, 4])
@pytest.mark.parametrize(("name", "code"), [("read", EIO), ("write", ENOSPC)])
@pytest.mark.parametrize("width", [1, 2])
def test_a_disk_error_names_its_clients_and_the_round_does_not_count(
    client: int, name: str, code: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the round's first group or its last, and no client that trains meanwhile."""
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
    with pytest.raises(OSError, match=os.strerror(code)) as error:
        run.train_round()
    group = "0, 2" if client == 0 else "3, 4"
    named = f"client {client}" if width == 1 else f"clients {group}"
    assert error.value.__notes__ == [f"in round 2 of 3, {named}"]
    assert run.round == 1
    assert run.w.equal(before)
