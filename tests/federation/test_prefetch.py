"""Rows that are read and written while clients train: in their order, and every failure told in time."""

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
from problems import federation, hard

from fl_lightning import StackedExecutor, algorithms
from fl_lightning.executors import SequentialExecutor
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.row_files import RowFiles

CPU, SECONDS = torch.device("cpu"), 30.0
"""The device, and how long to wait for what has to come."""


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
        assert gate.acquire(timeout=SECONDS)
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", late)
    yield gate
    gate.release(100)


def test_the_program_goes_on_while_rows_are_written(
    tmp_path: Path, gate: threading.Semaphore
) -> None:
    """As far as it wants to: here until all but the last are in the file."""
    s = store(tmp_path)
    write(s, 1.0, 0, 1, 4)
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
    """No checkpoint keeps the row, so it lies in one place."""
    gate.release()
    s = store(tmp_path)
    write(s, 1.0, 0)
    s.commit([0])
    s.prefetch(before)
    write(s, 2.0, 0)
    s.prefetch(after)
    gate.release()
    assert kept(s, 0) == 2.0


def test_states_may_change_while_their_row_is_written(
    tmp_path: Path, gate: threading.Semaphore
) -> None:
    s, h = store(tmp_path), torch.ones(4)
    s.write(0, [{"h": h}])
    h.zero_()
    gate.release()
    s.commit([0])
    assert kept(s, 0) == 1.0


def full(*_: Any) -> Any:
    raise OSError(ENOSPC, os.strerror(ENOSPC))


ASKING: dict[str, Callable[[ClientStore], Any]] = {
    "settle": ClientStore.wait_for_writes,
    "commit": partial(ClientStore.commit, clients=[0, 1]),
    "flush": ClientStore.flush,
    "pin": ClientStore.retain,
    "disk_bytes": ClientStore.disk_bytes,
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_a_row_that_was_not_written_is_told_to_whom_it_concerns(
    ask: Callable[[ClientStore], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = store(tmp_path)
    write(s, 1.0, 0, 1)
    s.commit([0, 1])
    s.retain()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        write(s, 2.0, 0, 1)
        with pytest.raises(OSError, match=r"No space left on device.*1\.rows"):
            ask(s)
    assert (kept(s, 0), kept(s, 1)) == (1.0, 1.0)


def test_the_first_of_several_failures_is_told_and_then_all_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the reason would be told of a later round."""
    s = store(tmp_path)

    def refusing(files: RowFiles, place: int, client: int, row: Any) -> None:
        raise OSError(EIO, f"row {client}")

    with monkeypatch.context() as patch:
        patch.setattr(RowFiles, "write", refusing)
        write(s, 1.0, 3, 0, 4)
        with pytest.raises(OSError, match="row 3"):
            s.wait_for_writes()
    s.wait_for_writes()
    write(s, 2.0, 3)
    s.commit([3])
    assert kept(s, 3) == 2.0


def test_a_restored_store_has_forgotten_what_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = store(tmp_path)
    write(s, 1.0, 0)
    s.commit([0])
    s.retain()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        write(s, 2.0, 0)
        s.restore(s.slot, s.retained)
    write(s, 3.0, 0)
    s.commit([0])
    assert kept(s, 0) == 3.0


def test_the_thread_ends_with_its_store(tmp_path: Path) -> None:
    others = row_threads()
    s = store(tmp_path)
    write(s, 1.0, 0)
    (thread,) = row_threads() - others
    del s
    gc.collect()
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_the_thread_works_for_the_gpu_that_rows_come_from(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of CUDA in a new thread takes memory of GPU 0 otherwise, which is another rank's."""
    chosen: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda gpu: chosen.append((threading.current_thread().name, gpu))
    )
    begin: Any = [
        {"h": Mock(shape=torch.Size([4]), dtype=torch.float32, device=torch.device(device))}
    ]
    s = ClientStore(tmp_path, 5, begin)
    s._thread.submit(int).result(SECONDS)
    assert chosen == ([("client-rows_0", torch.device(device))] if device != "cpu" else [])


# ----------------------------------------------------------------------------------------------------------- in a round


def test_an_algorithm_without_client_states_starts_no_thread() -> None:
    others = row_threads()
    run = federation(hard(algorithms.fedsam()))
    run.train_round()
    run.store.flush()
    assert not row_threads() - others


class Told:
    """What has happened, for those who wait for it."""

    def __init__(self) -> None:
        self.all, self.changed = set[Any](), threading.Condition()

    def note(self, what: Any) -> None:
        with self.changed:
            self.all.add(what)
            self.changed.notify_all()

    def wait(self, what: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: what in self.all, SECONDS), f"{what} never came"


def test_rows_travel_while_others_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no visit ends before the next one's row is read, and no row is written before the next visit has begun."""
    run = federation(hard(algorithms.scaffold()), sampler=lambda *_: [0, 1, 2, 4, 5])
    run.train_round()
    after, told = dict(pairwise([0, 2, 1, 5, 4])), Told()  # the longest first
    read, visit, put = RowFiles.read, SequentialExecutor._visit, RowFiles.write

    def reading(files: RowFiles, place: int, client: int, *rest: Any) -> Any:
        row = read(files, place, client, *rest)
        told.note(("read", client))
        return row

    def training(
        executor: SequentialExecutor, algorithm: Any, common: Any, each: Any, *rest: Any
    ) -> Any:
        told.note(("begun", each.client))
        if each.client in after:
            told.wait(("read", after[each.client]))
        return visit(executor, algorithm, common, each, *rest)

    def writing(files: RowFiles, place: int, client: int, row: Any) -> None:
        if client in after:
            told.wait(("begun", after[client]))
        put(files, place, client, row)

    monkeypatch.setattr(RowFiles, "read", reading)
    monkeypatch.setattr(SequentialExecutor, "_visit", training)
    monkeypatch.setattr(RowFiles, "write", writing)
    run.train_round()


@pytest.mark.parametrize("client", [0, 2, 3, 4])
@pytest.mark.parametrize(("name", "code"), [("read", EIO), ("write", ENOSPC)])
@pytest.mark.parametrize("width", [1, 2])
def test_what_a_disk_refuses_is_told_with_the_client_and_the_round_does_not_count(
    client: int, name: str, code: int, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of a round's visits and the last; nobody else is blamed who trains when it turns out."""
    executor = partial(StackedExecutor, width=2) if width > 1 else SequentialExecutor
    run = federation(
        hard(algorithms.scaffold()), sampler=lambda *_: [0, 2, 3, 4], executor=executor
    )
    run.train_round()
    before, function = run.w.detach().clone(), getattr(RowFiles, name)

    def refusing(files: RowFiles, place: int, whose: int, row: Any) -> Any:
        if whose == client:
            raise OSError(code, os.strerror(code))
        return function(files, place, whose, row)

    monkeypatch.setattr(RowFiles, name, refusing)
    with pytest.raises(OSError, match=os.strerror(code)) as error:
        run.train_round()
    group = [0, 2] if client < 3 else [3, 4]
    who = f"client {client}" if width == 1 else f"clients {group[0]}, {group[1]}"
    assert error.value.__notes__ == [f"in round 2 of 3, {who}"]
    assert run.round == 1
    assert run.w.equal(before)
