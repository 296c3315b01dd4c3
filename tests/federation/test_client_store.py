"""What clients keep between rounds: rows that come back and survive."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fl_lightning.federation.client_store import ClientStore

CPU = torch.device("cpu")

STATES = [
    {"h_i": torch.zeros(3), "count": torch.zeros(())},
    {},
    {"c_i": torch.zeros(2, dtype=torch.float64)},
]


def store(folder: Path, clients: int = 5) -> ClientStore:
    return ClientStore(folder, clients, STATES)


def states(value: float) -> list[dict[str, Tensor]]:
    """A client's states; `e` is not kept."""
    h = torch.full((3,), value)
    c = torch.full((2,), -value, dtype=torch.float64)
    return [{"h_i": h, "count": h.sum(), "e": h}, {"e": h}, {"c_i": c}]


def keep(store: ClientStore, value: float, *clients: int) -> None:
    for client in clients:
        store.write(client, states(value))
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


def test_each_client_has_its_row_and_reads_a_copy(tmp_path: Path) -> None:
    s = store(tmp_path)
    assert not any(s.has(i) for i in range(5))
    keep(s, 1.5, 1)
    keep(s, 2.5, 3)
    assert [s.has(i) for i in range(5)] == [False, True, False, True, False]
    s.read(1, CPU)[0]["h_i"].add_(1)
    assert (kept(s, 1), kept(s, 3)) == (1.5, 2.5)


def test_stores_of_one_folder_share_their_rows(tmp_path: Path) -> None:
    mine, theirs = store(tmp_path), store(tmp_path)
    mine.write(0, states(1.5))
    theirs.write(4, states(2.5))
    for s in (mine, theirs):
        s.wait_for_writes()
    for s in (mine, theirs):
        s.commit([0, 4])
        assert (kept(s, 0), kept(s, 4)) == (1.5, 2.5)


def test_a_client_takes_no_disk_before_its_first_visit(tmp_path: Path) -> None:
    size = 1 << 18
    s, row = ClientStore(tmp_path, 100, [{"h_i": torch.zeros(size)}]), 4 * size
    assert (s.row, s.disk_bytes()) == (row, 0)
    s.write(57, [{"h_i": torch.ones(size)}])
    s.flush()
    assert row <= s.disk_bytes() < 2 * row
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 58 * row


def test_an_algorithm_without_client_states_leaves_no_folder(tmp_path: Path) -> None:
    s = ClientStore(tmp_path / "states", 3, [{}, {}])
    s.write(1, [{}, {}])
    s.commit([1])
    s.flush()
    assert s.read(1, CPU) == [{}, {}]
    assert s.row == s.disk_bytes() == 0
    assert not (tmp_path / "states").exists()


def test_the_rows_of_a_checkpoint_survive_later_rounds(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.0, 0, 1)
    keep(s, 2.0, 1)
    place = s.slot.clone()
    s.retain()
    for value in (3.0, 4.0, 5.0):  # after an odd and an even number of writes
        keep(s, value, 1, 2)
        assert kept(s, 1) == kept(s, 2) == value
        again = store(tmp_path)
        again.restore(place, {"last": (1, place)})
        assert (kept(again, 0), kept(again, 1)) == (1.0, 2.0)
        assert not again.has(2)


def test_later_rounds_continue_from_a_restored_checkpoint(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.0, 0)
    place = s.slot.clone()
    s.retain()
    keep(s, 2.0, 0, 1)
    s.restore(place, s.retained)
    keep(s, 3.0, 0)
    assert kept(s, 0) == 3.0
    s.restore(place, s.retained)
    assert kept(s, 0) == 1.0
    assert not s.has(1)


def test_a_store_in_use_keeps_its_own_record_of_retained_checkpoints(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.0, 0)
    s.retain("old")
    old = s.slot.clone(), dict(s.retained)
    keep(s, 2.0, 0)
    s.retain("new")
    new = s.slot.clone(), dict(s.retained)
    for _ in range(2):
        s.restore(*old)
        assert kept(s, 0) == 1.0
        keep(s, 3.0, 0)
        s.restore(*new)
        assert kept(s, 0) == 2.0
    s.release("old")
    with pytest.raises(ValueError, match="may have written over"):
        s.restore(*old)
    assert kept(s, 0) == 2.0


def test_a_resumed_store_numbers_checkpoints_after_the_earlier_ones(tmp_path: Path) -> None:
    """The earlier rows lay in the same slots, and are overwritten."""
    first, second = store(tmp_path), store(tmp_path)
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
    mine, theirs = store(tmp_path), store(tmp_path)
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


def test_one_slot_is_always_free(tmp_path: Path) -> None:
    s = store(tmp_path)
    for value in range(127):
        keep(s, value, 0)
        s.retain(str(value))
    with pytest.raises(ValueError, match="127 checkpoints"):
        s.retain("one more")
    keep(s, 128.0, 0)
    assert kept(s, 0) == 128.0
    s.restore(s.retained["5"][1], s.retained)
    assert kept(s, 0) == 5.0


def test_a_row_counts_from_the_commit_on(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.0, 0)
    s.retain()
    s.write(0, states(2.0))
    assert kept(s, 0) == 1.0
    s.commit([0])
    assert kept(s, 0) == 2.0


def test_a_checkpoint_without_its_rows_is_refused(tmp_path: Path) -> None:
    ran = store(tmp_path / "ran")
    keep(ran, 1.0, 1)
    with pytest.raises(ValueError, match=r"there are none in .*elsewhere"):
        store(tmp_path / "elsewhere").restore(ran.slot, {})


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


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.0, 4)
    os.truncate(tmp_path / "0.rows", 100)
    with pytest.raises(OSError, match=r"ends before the row of client 4.*0\.rows"):
        s.read(4, CPU)


def test_a_system_that_moves_few_bytes_at_a_time_moves_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.preadv, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, part, at: write(file, part[:7], at))
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: read(file, [parts[0][:5]], at))
    s = store(tmp_path)
    keep(s, 1.5, 1)
    assert kept(s, 1) == 1.5


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
