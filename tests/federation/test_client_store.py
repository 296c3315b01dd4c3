"""The rows of the client store, and those of its checkpoints."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from client_rows import CPU, keep, kept, new_store, row_threads, states

from fl_lightning.federation.client_store import ClientStore


@pytest.fixture
def store(tmp_path):
    return new_store(tmp_path)


def test_each_client_has_its_row_and_reads_a_copy(store):
    assert not any(store.has(i) for i in range(5))
    keep(store, 1.5, 1)
    keep(store, 2.5, 3)
    assert [store.has(i) for i in range(5)] == [False, True, False, True, False]
    store.read(1, CPU)[0]["h_i"].add_(1)
    assert (kept(store, 1), kept(store, 3)) == (1.5, 2.5)


def test_stores_of_one_folder_share_their_rows(tmp_path):
    mine, theirs = new_store(tmp_path), new_store(tmp_path)
    mine.write(0, states(1.5))
    theirs.write(4, states(2.5))
    for s in (mine, theirs):
        s.wait_for_writes()
    for s in (mine, theirs):
        s.commit([0, 4])
        assert (kept(s, 0), kept(s, 4)) == (1.5, 2.5)


def test_a_client_takes_no_disk_before_its_first_visit(tmp_path):
    size = 1 << 18
    s, row = ClientStore(tmp_path, 100, [{"h_i": torch.zeros(size)}]), 4 * size + 16
    assert (s.row, s.disk_bytes()) == (row, 0)
    s.write(57, [{"h_i": torch.ones(size)}])
    s.flush()
    assert row <= s.disk_bytes() < 2 * row
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 58 * row


def test_without_client_states_there_is_no_folder_and_no_thread(tmp_path):
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


def test_the_rows_of_a_checkpoint_survive_later_rounds(store, tmp_path):
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


def test_prefetched_rows_are_dropped_by_a_commit_and_a_restore(tmp_path):
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


def test_one_slot_is_always_free(store):
    for value in range(127):
        keep(store, value, 0)
        store.retain(str(value))
    with pytest.raises(ValueError, match="127 checkpoints"):
        store.retain("one more")
    keep(store, 128.0, 0)
    assert kept(store, 0) == 128.0
    store.restore(store.retained["5"][1], store.retained)
    assert kept(store, 0) == 5.0


def test_a_row_counts_from_the_commit_on(store):
    keep(store, 1.0, 0)
    store.retain()
    store.write(0, states(2.0))
    assert kept(store, 0) == 1.0
    store.commit([0])
    assert kept(store, 0) == 2.0


def test_a_checkpoint_without_its_rows_is_refused(tmp_path):
    ran = new_store(tmp_path / "ran")
    keep(ran, 1.0, 1)
    with pytest.raises(ValueError, match=r"there are none in .*elsewhere"):
        new_store(tmp_path / "elsewhere").restore(ran.slot, {})


def test_states_of_odd_lengths_and_dtypes_share_a_row(tmp_path):
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
def test_a_damaged_row_is_named_with_its_file(damage, store, tmp_path):
    keep(store, 1.0, 0, 4)
    assert store.damage() == ""
    damage(tmp_path / "0.rows")
    with pytest.raises(OSError, match=r"row of client 4 is damaged.* --resume.*0\.rows"):
        store.read(4, CPU)
    assert "client 4 " in store.damage()
    assert kept(store, 0) == 1.0


def test_a_system_that_moves_few_bytes_at_a_time_moves_whole_rows(store, monkeypatch):
    read, write = os.preadv, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, part, at: write(file, part[:7], at))
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: read(file, [parts[0][:5]], at))
    keep(store, 1.5, 1)
    assert kept(store, 1) == 1.5


# ----------------------------------------------------------------- rows in transit
