"""Who takes part, which rank trains whom, and what clients keep between rounds."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fl_lightning.clients import Bernoulli, ClientStore, FixedSize, share_out

CPU = torch.device("cpu")


@pytest.mark.parametrize("participation", [FixedSize(0.3), Bernoulli(0.3)])
def test_a_cohort_is_a_function_of_seed_and_round(participation: FixedSize | Bernoulli) -> None:
    draw = participation(50, 7, 3)
    torch.manual_seed(99)
    participation(50, 7, 2)
    assert participation(50, 7, 3) == draw == sorted(set(draw))
    assert participation(50, 7, 4) != draw
    assert participation(50, 8, 3) != draw


@pytest.mark.parametrize(
    ("fraction", "clients", "size"), [(0.1, 100, 10), (0.25, 10, 3), (0.001, 10, 1), (1.0, 7, 7), (0.35, 10, 4)]
)
def test_a_fixed_size_is_rounded_and_at_least_one(fraction: float, clients: int, size: int) -> None:
    assert len(FixedSize(fraction)(clients, 0, 0)) == size


def test_everyone_takes_part_about_as_often() -> None:
    counts = torch.zeros(20)
    for round in range(1000):
        counts[FixedSize(0.25)(20, 0, round)] += 1
    assert counts.sum() == 5000
    assert (counts - 250).abs().max() < 5 * (1000 * 0.25 * 0.75) ** 0.5


def test_bernoulli_draws_the_fraction_on_average() -> None:
    sizes = [len(Bernoulli(0.2)(100, 0, round)) for round in range(500)]
    assert abs(sum(sizes) / 500 - 20) < 5 * (100 * 0.2 * 0.8 / 500) ** 0.5
    assert len(set(sizes)) > 10


def test_bernoulli_is_never_empty() -> None:
    assert all(Bernoulli(0.01)(3, 0, round) for round in range(200))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
@pytest.mark.parametrize("kind", [FixedSize, Bernoulli])
def test_a_fraction_outside_0_to_1_is_refused(kind: type, fraction: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        kind(fraction)


def test_work_is_shared_out_evenly_and_completely() -> None:
    work = torch.randint(1, 100, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    for ranks in (1, 2, 3, 8):
        shares = share_out(work, ranks)
        assert sorted(i for share in shares for i in share) == list(range(40))
        loads = [sum(work[i] for i in share) for share in shares]
        assert max(loads) - min(loads) <= max(work)  # longest first: no rank waits longer than for one client
        assert max(loads) <= 4 / 3 * max(sum(work) / ranks, max(work))
        assert share_out(work, ranks) == shares


def test_the_longest_come_first_and_ties_go_to_the_first_rank() -> None:
    assert share_out([1, 5, 3, 3], 2) == [[1, 0], [2, 3]]
    assert share_out([2, 2, 2, 2], 2) == [[0, 2], [1, 3]]


def test_more_ranks_than_clients_leave_ranks_without_work() -> None:
    assert share_out([4, 9], 4) == [[1], [0], [], []]


# ---------------------------------------------------------------------------------------------------------- the store

BEGIN = [{"h_i": torch.zeros(3), "count": torch.zeros(())}, {}, {"c_i": torch.zeros(2, dtype=torch.float64)}]


def store(folder: Path, clients: int = 5) -> ClientStore:
    return ClientStore(folder, clients, BEGIN)


def states(value: float) -> list[dict[str, Tensor]]:
    """A client's states; `e` is one of those that are not kept."""
    h = torch.full((3,), value)
    return [{"h_i": h, "count": h.sum(), "e": h}, {"e": h}, {"c_i": torch.full((2,), -value, dtype=torch.float64)}]


def keep(store: ClientStore, value: float, *clients: int) -> None:
    for client in clients:
        store.write(client, states(value))
    store.commit(clients)


def kept(store: ClientStore, client: int) -> float:
    """The one number that the client's row is made of, which all its states must tell alike."""
    term, nothing, last = store.read(client, CPU)
    assert term.keys() == {"h_i", "count"}
    assert nothing == {}
    value = float(term["h_i"][0])
    assert term["h_i"].tolist() == [value] * 3
    assert term["count"].shape == ()
    assert float(term["count"]) == 3 * value
    assert last["c_i"].tolist() == [-value] * 2
    assert last["c_i"].dtype == torch.float64
    return value


def test_rows_come_back_and_are_each_clients_own(tmp_path: Path) -> None:
    s = store(tmp_path)
    assert not any(s.has(i) for i in range(5))
    keep(s, 1.5, 1)
    keep(s, 2.5, 3)
    assert [s.has(i) for i in range(5)] == [False, True, False, True, False]
    assert (kept(s, 1), kept(s, 3)) == (1.5, 2.5)


def test_what_is_read_is_a_copy(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.5, 1)
    s.read(1, CPU)[0]["h_i"].add_(1)
    assert kept(s, 1) == 1.5


def test_stores_of_one_folder_share_their_rows(tmp_path: Path) -> None:
    mine, theirs = store(tmp_path), store(tmp_path)
    mine.write(0, states(1.5))
    theirs.write(4, states(2.5))
    for s in (mine, theirs):
        s.commit([0, 4])
        assert (kept(s, 0), kept(s, 4)) == (1.5, 2.5)


def test_a_client_takes_no_disk_before_its_first_visit(tmp_path: Path) -> None:
    size = 1 << 18
    s = ClientStore(tmp_path, 100, [{"h_i": torch.zeros(size)}])

    def used() -> int:
        os.sync()
        return sum(file.stat().st_blocks * 512 for file in tmp_path.iterdir())

    row = 4 * size
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 2 * 100 * row
    assert used() < row
    s.write(57, [{"h_i": torch.ones(size)}])
    assert row <= used() < 2 * row


def test_an_algorithm_without_client_states_leaves_no_folder(tmp_path: Path) -> None:
    s = ClientStore(tmp_path / "states", 3, [{}, {}])
    s.write(1, [{}, {}])
    s.commit([1])
    assert s.read(1, CPU) == [{}, {}]
    assert not (tmp_path / "states").exists()


def test_the_rows_of_a_checkpoint_survive_later_rounds(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.0, 0, 1)
    keep(s, 2.0, 1)
    place = s.place.clone()
    s.pin()
    for value in (3.0, 4.0, 5.0):  # an odd and an even number of later writes must both leave them alone
        keep(s, value, 1, 2)
        assert kept(s, 1) == kept(s, 2) == value
        again = store(tmp_path)
        again.restore(place)
        assert (kept(again, 0), kept(again, 1)) == (1.0, 2.0)
        assert not again.has(2)


def test_work_goes_on_from_a_restored_checkpoint(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.0, 0)
    place = s.place.clone()
    s.pin()
    keep(s, 2.0, 0, 1)
    s.restore(place)
    keep(s, 3.0, 0)
    assert kept(s, 0) == 3.0
    s.restore(place)
    assert kept(s, 0) == 1.0
    assert not s.has(1)


def test_a_row_counts_from_the_commit_on(tmp_path: Path) -> None:
    s = store(tmp_path)
    keep(s, 1.0, 0)
    s.pin()
    s.write(0, states(2.0))
    assert kept(s, 0) == 1.0
    s.commit([0])
    assert kept(s, 0) == 2.0


def test_a_checkpoint_without_its_rows_is_refused(tmp_path: Path) -> None:
    begin = [{"c": torch.zeros(3)}]
    ran = ClientStore(tmp_path / "ran", 2, begin)
    ran.write(1, [{"c": torch.ones(3)}])
    ran.commit([1])
    with pytest.raises(ValueError, match="there were none: resume there"):
        ClientStore(tmp_path / "elsewhere", 2, begin).restore(ran.place)
