"""The client store: its rows, those of checkpoints, and those that move while clients train."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from errno import EIO, ENOSPC
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from problems import STACKED, federation, hard
from torch import Tensor

from fl_lightning import SequentialExecutor, algorithms
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.row_files import RowFiles

CPU, TIMEOUT_S = torch.device("cpu"), 30.0

STATES = [
    {"h_i": torch.zeros(3), "count": torch.zeros(())},
    {},
    {"c_i": torch.zeros(2, dtype=torch.float64)},
]


def new_store(folder: Path) -> ClientStore:
    return ClientStore(folder, 5, STATES)


@pytest.fixture
def store(tmp_path: Path) -> ClientStore:
    return new_store(tmp_path)


def states(value: float) -> list[dict[str, Tensor]]:
    """A client's states; `e` is not kept."""
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


def test_each_client_has_its_row_and_reads_a_copy(store: ClientStore) -> None:
    assert not any(store.has(i) for i in range(5))
    keep(store, 1.5, 1)
    keep(store, 2.5, 3)
    assert [store.has(i) for i in range(5)] == [False, True, False, True, False]
    store.read(1, CPU)[0]["h_i"].add_(1)
    assert (kept(store, 1), kept(store, 3)) == (1.5, 2.5)


def test_stores_of_one_folder_share_their_rows(tmp_path: Path) -> None:
    mine, theirs = new_store(tmp_path), new_store(tmp_path)
    mine.write(0, states(1.5))
    theirs.write(4, states(2.5))
    for s in (mine, theirs):
        s.wait_for_writes()
    for s in (mine, theirs):
        s.commit([0, 4])
        assert (kept(s, 0), kept(s, 4)) == (1.5, 2.5)


def test_a_client_takes_no_disk_before_its_first_visit(tmp_path: Path) -> None:
    size = 1 << 18
    s, row = ClientStore(tmp_path, 100, [{"h_i": torch.zeros(size)}]), 4 * size + 16
    assert (s.row, s.disk_bytes()) == (row, 0)
    s.write(57, [{"h_i": torch.ones(size)}])
    s.flush()
    assert row <= s.disk_bytes() < 2 * row
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 58 * row


def row_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("client-rows")}


def test_without_client_states_there_is_no_folder_and_no_thread(tmp_path: Path) -> None:
    others = row_threads()
    s = ClientStore(tmp_path / "states", 3, [{}, {}])
    s.write(1, [{}, {}])
    s.prefetch([1])
    s.commit([1])
    s.flush()
    assert s.read(1, CPU) == [{}, {}]
    assert s.row == s.disk_bytes() == 0
    assert not (tmp_path / "states").exists()
    assert not row_threads() - others


def test_the_rows_of_a_checkpoint_survive_later_rounds(store: ClientStore, tmp_path: Path) -> None:
    keep(store, 1.0, 0, 1)
    keep(store, 2.0, 1)
    slot = store.slot.clone()
    store.retain()
    for value in (3.0, 4.0, 5.0):  # after an odd and an even number of writes
        keep(store, value, 1, 2)
        assert kept(store, 1) == kept(store, 2) == value
        again = new_store(tmp_path)
        again.restore(slot, {"last": (1, slot)})
        assert (kept(again, 0), kept(again, 1)) == (1.0, 2.0)
        assert not again.has(2)


def test_a_store_in_use_keeps_its_own_record_of_retained_checkpoints(store: ClientStore) -> None:
    saved = {}
    for name, value in (("old", 1.0), ("new", 2.0)):
        keep(store, value, 0)
        store.retain(name)
        saved[name] = store.slot.clone(), dict(store.retained)
    for _ in range(2):
        store.restore(*saved["old"])
        assert kept(store, 0) == 1.0
        assert not store.has(1)
        keep(store, 3.0, 0, 1)
        store.restore(*saved["new"])
        assert kept(store, 0) == 2.0
    store.release("old")
    with pytest.raises(ValueError, match="may have written over"):
        store.restore(*saved["old"])
    assert kept(store, 0) == 2.0


def test_a_resumed_store_numbers_checkpoints_after_the_earlier_ones(tmp_path: Path) -> None:
    """The earlier rows lay in the same slots, and are overwritten."""
    first, second = new_store(tmp_path), new_store(tmp_path)
    keep(first, 1.0, 0)
    first.retain("old")
    old = first.slot.clone(), dict(first.retained)
    second.restore(*old)
    second.release("old")
    keep(second, 2.0, 0)
    second.retain("new")
    assert second.slot.equal(old[0])
    with pytest.raises(ValueError, match="may have written over"):
        second.restore(*old)
    assert kept(second, 0) == 2.0


def test_prefetched_rows_are_dropped_by_a_commit_and_a_restore(tmp_path: Path) -> None:
    mine, theirs = new_store(tmp_path), new_store(tmp_path)
    keep(mine, 1.0, 0)
    theirs.commit([0])
    mine.prefetch([0])
    keep(theirs, 2.0, 0)  # in the same slot, by another rank
    mine.commit([0])
    assert kept(mine, 0) == 2.0
    mine.retain()
    before = mine.slot.clone()
    keep(mine, 3.0, 0)
    mine.prefetch([0])
    mine.restore(before, mine.retained)
    assert kept(mine, 0) == 2.0


def test_one_slot_is_always_free(store: ClientStore) -> None:
    for value in range(127):
        keep(store, value, 0)
        store.retain(str(value))
    with pytest.raises(ValueError, match="127 checkpoints"):
        store.retain("one more")
    keep(store, 128.0, 0)
    assert kept(store, 0) == 128.0
    store.restore(store.retained["5"][1], store.retained)
    assert kept(store, 0) == 5.0


def test_a_row_counts_from_the_commit_on(store: ClientStore) -> None:
    keep(store, 1.0, 0)
    store.retain()
    store.write(0, states(2.0))
    assert kept(store, 0) == 1.0
    store.commit([0])
    assert kept(store, 0) == 2.0


def test_a_checkpoint_without_its_rows_is_refused(tmp_path: Path) -> None:
    ran = new_store(tmp_path / "ran")
    keep(ran, 1.0, 1)
    with pytest.raises(ValueError, match=r"there are none in .*elsewhere"):
        new_store(tmp_path / "elsewhere").restore(ran.slot, {})


def test_states_of_odd_lengths_and_dtypes_share_a_row(tmp_path: Path) -> None:
    byte = torch.tensor([1, 2, 3], dtype=torch.uint8)
    half, wide = torch.arange(5.0).bfloat16(), torch.arange(6.0, dtype=torch.float64).view(2, 3)
    written = [{"byte": byte, "half": half}, {"wide": wide}]
    s = ClientStore(tmp_path, 3, written)
    for client in (2, 0):
        s.write(client, [written[0], {"wide": wide + client}])
    s.commit([0, 2])
    for client in (0, 2):
        first, second = s.read(client, CPU)
        assert first["byte"].equal(byte)
        assert first["half"].equal(half)
        assert second["wide"].equal(wide + client)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-30] ^= 4
    path.write_bytes(content)


def misplace(path: Path) -> None:
    """Put another client's whole row into the place of the last one."""
    content = path.read_bytes()
    row = len(content) // 5
    path.write_bytes(content[:-row] + content[:row])


@pytest.mark.parametrize("damage", [partial(os.truncate, length=300), flip_a_bit, misplace])
def test_a_damaged_row_is_named_with_its_file(
    damage: Callable[[Path], None], store: ClientStore, tmp_path: Path
) -> None:
    keep(store, 1.0, 0, 4)
    assert store.damage() == ""
    damage(tmp_path / "0.rows")
    with pytest.raises(OSError, match=r"row of client 4 is damaged.* --resume.*0\.rows"):
        store.read(4, CPU)
    assert "client 4 " in store.damage()
    assert kept(store, 0) == 1.0


def test_a_system_that_moves_few_bytes_at_a_time_moves_whole_rows(
    store: ClientStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.preadv, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, part, at: write(file, part[:7], at))
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: read(file, [parts[0][:5]], at))
    keep(store, 1.5, 1)
    assert kept(store, 1) == 1.5


# ----------------------------------------------------------------- rows in transit


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
    store: ClientStore, tmp_path: Path, gate: threading.Semaphore
) -> None:
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
def test_a_read_sees_the_writes_before_it(
    before: list[int], after: list[int], store: ClientStore, gate: threading.Semaphore
) -> None:
    """No checkpoint retains the row, so it has one slot."""
    gate.release()
    keep(store, 1.0, 0)
    store.prefetch(before)
    write(store, 2.0, 0)
    store.prefetch(after)
    gate.release()
    assert kept(store, 0) == 2.0


WAITING: dict[str, Callable[[ClientStore], Any]] = {
    "wait_for_writes": ClientStore.wait_for_writes,
    "commit": partial(ClientStore.commit, clients=[0, 1]),
    "flush": ClientStore.flush,
    "retain": ClientStore.retain,
    "disk_bytes": ClientStore.disk_bytes,
}


@pytest.mark.parametrize("wait", WAITING.values(), ids=WAITING)
def test_a_failed_write_is_raised_by_every_call_that_waits(
    wait: Callable[[ClientStore], Any], store: ClientStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(ENOSPC, os.strerror(ENOSPC))
    keep(store, 1.0, 0, 1)
    store.retain()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Mock(side_effect=full))
        write(store, 2.0, 0, 1)
        with pytest.raises(OSError, match=r"No space left on device.*1\.rows"):
            wait(store)
    assert (kept(store, 0), kept(store, 1)) == (1.0, 1.0)


@pytest.mark.parametrize("restored", [False, True])
def test_the_first_failure_is_raised_once_and_never_after_a_restore(
    restored: bool, store: ClientStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_thread_ends_with_its_store(tmp_path: Path) -> None:
    others = row_threads()
    s = new_store(tmp_path)
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
    set_device = Mock()
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    h = Mock(shape=torch.Size([4]), dtype=torch.float32, device=torch.device(device))
    s = ClientStore(tmp_path, 5, [{"h": h}])
    assert not set_device.called
    s._thread.submit(int).result(TIMEOUT_S)
    assert set_device.mock_calls == ([call(torch.device(device))] if device != "cpu" else [])


def test_rows_are_moved_while_other_clients_train(monkeypatch: pytest.MonkeyPatch) -> None:
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

    def training(executor: Any, algorithm: Any, facts: Any, each: Any, *rest: Any) -> Any:
        begun[each.client].set()
        assert each.client not in after or was_read[after[each.client]].wait(TIMEOUT_S)
        return visit(executor, algorithm, facts, each, *rest)

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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("begun", ["cpu", "cuda"])
def test_rows_that_are_still_being_computed_are_written_whole(begun: str, tmp_path: Path) -> None:
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
