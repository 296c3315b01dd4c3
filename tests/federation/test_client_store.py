"""The rows of the client store in memory and in files, what they take, and checkpoints of them."""

import os
from errno import ENOSPC
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import jobs
import pytest
import torch
from client_rows import CPU, PLENTY, ROW, keep, kept, new_store, row_threads, states, write
from problems import federation

from fl_lightning import algorithms
from fl_lightning.federation import client_store
from fl_lightning.federation.client_store import BLOCK, ClientStore
from fl_lightning.federation.row_files import RowFiles
from fl_lightning.runs.converters import parse_bytes
from fl_lightning.training import summary


@pytest.fixture(params=[0, 2 * ROW, PLENTY], ids=["no row", "two rows", "all rows"])
def store(request, tmp_path):
    return new_store(tmp_path, request.param)


def test_states_may_change_after_they_were_written(store):
    changing = states(1.0)
    store.write(0, changing)
    for state in (*changing[0].values(), *changing[2].values()):
        state.zero_()
    store.commit([0])
    assert kept(store, 0) == 1.0


def test_the_least_recently_used_rows_go_to_files(tmp_path, monkeypatch):
    """Each once, unless it changes; the checkpoint writes the others."""
    written, write = list[int](), RowFiles.write

    def noted(files, slot, client, tensors):
        written.append(client)
        write(files, slot, client, tensors)

    monkeypatch.setattr(RowFiles, "write", noted)
    store = new_store(tmp_path, 3 * ROW)
    keep(store, 1.0, 0, 1, 2)
    assert kept(store, 0) == 1.0
    keep(store, 2.0, 3)
    assert written == [1]
    assert [kept(store, i) for i in (1, 2, 0, 3)] == [1.0, 1.0, 1.0, 2.0]
    store.wait_for_writes()
    assert sorted(written) == [0, 1, 2, 3]
    store.retain()
    store.retain()
    assert len(written) == 4


@pytest.mark.parametrize(("ranks", "in_memory"), [(1, 4), (2, 2)])
def test_ranks_share_a_quarter_of_the_free_memory(ranks, in_memory, tmp_path, monkeypatch):
    """Which their own rows, and those of other jobs, make less."""
    monkeypatch.setattr(client_store, "UNASKED", 0)
    store = new_store(tmp_path, None, ranks=ranks)

    def free() -> int:
        return (17 - ranks * (len(store._rows) + len(store._new))) * ROW

    monkeypatch.setattr(client_store, "available_memory", free)
    keep(store, 1.0, 0, 1, 2, 3, 4)
    assert len(store._rows) == in_memory
    assert [kept(store, i) for i in range(5)] == [1.0] * 5


@pytest.mark.parametrize("memory", [0, ROW, PLENTY])
def test_ranks_read_what_the_others_wrote(memory, tmp_path):
    """Also where they have an older row in memory, or on its way there."""
    mine, theirs = stores = [new_store(tmp_path, memory, shared=True) for _ in range(2)]
    for round in range(4):
        mine.prefetch([0, 4])
        mine.write(round % 2 * 4, states(round + 1.5))
        theirs.write((round + 1) % 2 * 4, states(round + 2.5))
        for store in stores:
            store.wait_for_writes()
        for store in stores:
            store.commit([0, 4])
            store.retain()
        for store in stores:
            own = kept(store, round % 2 * 4), kept(store, (round + 1) % 2 * 4)
            assert own == (round + 1.5, round + 2.5)


def test_a_client_takes_no_disk_before_its_first_visit(tmp_path):
    size, row = 1 << 18, 1 << 20
    store = ClientStore(tmp_path, 100, [{"h_i": torch.zeros(size)}], PLENTY)
    assert (store.row, store.disk_bytes()) == (row, 0)
    store.write(57, [{"h_i": torch.ones(size)}])
    store.commit([57])
    store.retain()
    assert row <= store.disk_bytes() < 2 * row
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 58 * (row + 4)


def test_without_client_states_there_is_no_folder_and_no_thread(tmp_path):
    others = row_threads()
    store = ClientStore(tmp_path / "states", 3, [{}, {}], 0)
    store.write(1, [{}, {}])
    store.prefetch([1])
    store.commit([1])
    store.retain()
    assert store.read(1, CPU) == [{}, {}]
    assert store.row == store.disk_bytes() == 0
    assert not (tmp_path / "states").exists()
    assert not row_threads() - others


def test_a_resumed_store_numbers_checkpoints_after_the_earlier_ones(tmp_path):
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


def test_one_slot_is_always_free(tmp_path):
    store = new_store(tmp_path)
    for value in range(40):
        keep(store, value, 0)
        store.retain(str(value))
    keep(store, 40.0, 0)
    assert kept(store, 0) == 40.0
    store.restore(store.retained["5"][1], store.retained)
    assert kept(store, 0) == 5.0


def test_a_row_counts_from_the_commit_on(store):
    """And only those of the clients that are committed."""
    keep(store, 1.0, 0, 1)
    store.retain()
    write(store, 2.0, 0, 1, 2)
    assert kept(store, 0) == 1.0
    store.commit([0])
    assert (kept(store, 0), kept(store, 1), store.has(2)) == (2.0, 1.0, False)


def test_a_checkpoint_without_its_rows_is_refused(tmp_path):
    ran = new_store(tmp_path / "ran")
    keep(ran, 1.0, 1)
    with pytest.raises(ValueError, match=r"there are none in .*elsewhere"):
        new_store(tmp_path / "elsewhere").restore(ran.slot, {})


def test_states_of_odd_lengths_and_dtypes_share_a_row(tmp_path):
    byte = torch.tensor([1, 2, 3], dtype=torch.uint8)
    half, wide = torch.arange(5.0).bfloat16(), torch.arange(6.0, dtype=torch.float64).view(2, 3)
    written = [{"byte": byte, "half": half}, {"wide": wide}]
    store = ClientStore(tmp_path, 3, [written[0], {"wide": wide.T.contiguous().T}], 0)
    for client in (2, 0):
        store.write(client, [written[0], {"wide": wide + client}])
    store.commit([0, 2])
    for client in (0, 2):
        first, second = store.read(client, CPU)
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


@pytest.mark.parametrize("damage", [partial(os.truncate, length=150), flip_a_bit, misplace])
def test_damaged_states_are_named_with_their_file(damage, tmp_path):
    store = new_store(tmp_path, 0)
    keep(store, 1.0, 0, 4)
    assert store.damage() == ""
    damage(tmp_path / "0.rows")
    with pytest.raises(OSError, match=r"states of client 4 are damaged.* --resume.*0\.rows"):
        store.read(4, CPU)
    assert "client 4 " in store.damage()
    assert kept(store, 0) == 1.0


@pytest.mark.parametrize("memory", [0, PLENTY])
def test_a_failed_write_is_raised_until_a_restore(memory, tmp_path, monkeypatch):
    """No later checkpoint refers to its row."""
    store = new_store(tmp_path, memory)
    keep(store, 1.0, 3)
    store.retain()
    before = store.slot.clone()
    full = OSError(ENOSPC, os.strerror(ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(RowFiles, "write", Mock(side_effect=[full, None, None]))
        write(store, 2.0, 3, 4)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left on device"):
                (store.commit([3, 4]), store.retain("new"))
    assert store.retained.keys() == {"last"}
    store.restore(before, store.retained)
    assert kept(store, 3) == 1.0
    keep(store, 3.0, 3)
    assert kept(store, 3) == 3.0


def test_sizes_are_read_with_their_units():
    sizes = {"512MiB": 512 << 20, "4GiB": 4 << 30, "2GB": 2 * 10**9, "1.5 kb": 1500}
    assert {size: parse_bytes(size) for size in sizes} == sizes


@pytest.mark.parametrize("size", ["4", "GiB", "-4GiB", "0MB", "4 gigs", "4Gib/s", "nan MB", ""])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match="512MiB"):
        parse_bytes(size)


def test_a_short_run_is_bounded_by_its_visits_and_a_long_one_by_its_clients():
    """Three of six clients a round; a row for each visit, or for each version of each client."""
    store = federation(algorithms.scaffold()).store
    short, long = (store.most_disk_bytes(3 * rounds, 2) for rounds in (2, 1000))
    assert 2 * 3 * store.row < short <= 2 * 3 * (store.row + 2 * BLOCK)
    assert 6 * 3 * store.row < long <= 6 * 3 * (store.row + BLOCK)
    assert store.most_disk_bytes(3000, 5) == 2 * long
    assert federation(algorithms.fedavg()).store.most_disk_bytes(3000, 2) == 0


def begun(folder: Path, *argv: str) -> None:
    jobs.experiment("--run-dir", str(folder), "--accelerator", "cpu", *argv).run()


def test_a_run_shows_what_its_states_take_if_it_is_much(tmp_path, capsys, monkeypatch):
    begun(tmp_path / "small", "--rounds", "1")
    assert "on disk" not in capsys.readouterr().out
    monkeypatch.setattr(ClientStore, "most_disk_bytes", lambda *_: 11 * 10**8)
    begun(tmp_path / "large", "--rounds", "1")
    assert "client states: at most 1.1 GB on disk" in capsys.readouterr().out
    monkeypatch.setattr(ClientStore, "most_disk_bytes", lambda *_: 3 * 10**6)
    monkeypatch.setattr(summary, "disk_usage", lambda _: Mock(free=2 * 10**6))
    begun(tmp_path / "full", "--rounds", "1")
    assert "3.0 MB on disk, where 2.0 MB are free" in capsys.readouterr().out


@pytest.mark.parametrize("bad", ["many", "4"])
def test_an_unusable_client_state_memory_is_refused(bad, tmp_path, sentence):
    argv = "--client-state-memory", bad
    assert "client_state_memory " in sentence(begun, tmp_path / "run", *argv)


def test_a_store_in_use_keeps_its_own_record_of_retained_checkpoints(store):
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
