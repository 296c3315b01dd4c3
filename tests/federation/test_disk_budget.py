"""What clients' states will take of disk and memory: said before the first round, and refused if there is no room."""

import shutil
from collections import namedtuple
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
from problems import federation

from fl_lightning import algorithms
from fl_lightning.cli.converters import parse_bytes
from fl_lightning.federation.disk_budget import BLOCK, DiskBudget, free_space, human_bytes
from fl_lightning.federation.sampling import UniformSampling

ROW = 4 * 55_210
"""What SCAFFOLD keeps for a client of the digits' mlp; rounded up to whole states of 16 bytes below."""


@pytest.mark.parametrize(
    ("size", "number"),
    [
        ("512MiB", 512 << 20),
        ("4GiB", 4 << 30),
        ("2GB", 2 * 10**9),
        ("1.5 kb", 1500),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_are_read_with_their_units(size: str, number: int) -> None:
    assert parse_bytes(size) == number


@pytest.mark.parametrize("size", ["4", "GiB", "-4GiB", "0MB", "4 gigs", "4Gib/s", "nan MB", ""])
def test_what_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(ValueError, match="such as 512MiB"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (12, "12 bytes"),
        (89_452_544, "89.5 MB"),
        (44.7e9, "44.7 GB"),
        (999_960, "1.0 MB"),
        (3e18, "3000.0 PB"),
    ],
)
def test_sizes_are_shown_in_the_unit_that_suits(size: float, text: str) -> None:
    assert human_bytes(size) == text


def budget(rounds: int, algorithm: Any, keep: int = 2, **options: Any) -> DiskBudget:
    run = federation(algorithm, rounds=rounds, sampler=UniformSampling(0.5), **options)
    return run.disk_budget(keep)


def test_a_short_run_is_bounded_by_its_visits_and_a_long_one_by_its_clients() -> None:
    """Three of six clients a round, each row at most once for each of the visits or kept versions."""
    short, long = (budget(rounds, algorithms.scaffold()) for rounds in (2, 1000))
    assert short.row == long.row > 0
    assert short.round == long.round == 3 * short.row
    assert 2 * 3 * short.row <= short.most <= 2 * 3 * (short.row + 2 * BLOCK)
    assert 6 * 4 * long.row <= long.most <= 6 * 4 * (long.row + BLOCK)
    assert budget(1000, algorithms.scaffold(), keep=5).versions == 7


def test_what_lies_on_disk_counts_when_a_run_goes_on(tmp_path: Path) -> None:
    run = federation(
        algorithms.scaffold(),
        rounds=50,
        sampler=UniformSampling(0.5),
        state_dir=tmp_path / "rows",
    )
    before = run.disk_budget(2)
    for _ in range(3):
        run.train_round()
    run.store.flush()
    after = run.disk_budget(2)
    assert after.used == run.store.disk_bytes() > before.used == 0
    assert after.most == before.most  # all versions of all clients, whether begun or not
    run.server.round = run.rounds
    assert run.disk_budget(2).most == after.used  # nothing will be added


def test_the_words_tell_disk_round_and_memory() -> None:
    told = DiskBudget(
        500, 89_452_544, 4, 10 * 89_452_544, 0, 500 * 4 * 89_452_544, None, Path("clients"), 0
    )
    assert str(told) == (
        "500 clients: at most 178.9 GB on disk (89.5 MB a client, in up to 4 versions for the checkpoints), "
        "894.5 MB of it a round, and in memory what the system has room for"
    )
    again = replace(told, used=10**9, memory=4 << 30)
    assert ", 1.0 GB there already)" in str(again)
    assert str(again).endswith("and at most 4.3 GB resident")


def test_an_algorithm_without_client_states_has_nothing_to_tell() -> None:
    nothing = budget(1000, algorithms.fedavg(), client_state_memory=1)
    assert (nothing.row, nothing.most, str(nothing)) == (0, 0, "")
    replace(nothing, free=0).check_disk_space()


def test_what_the_disk_cannot_hold_is_refused_and_what_it_just_holds_is_not() -> None:
    told = DiskBudget(10, 1000, 4, 2000, 7000, 40_000, None, Path("runs/clients"), 33_000)
    told.check_disk_space()
    with pytest.raises(
        ValueError, match=r"by 33.0 kB, but 32.0 kB are free .* runs/clients: .*--run-dir .*--keep"
    ):
        replace(told, free=32_000).check_disk_space()


def test_free_space_is_asked_where_the_folder_will_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Path]()
    disk = namedtuple("disk", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or disk(5))
    assert free_space(tmp_path / "not" / "yet") == 5
    assert asked == [tmp_path]


# -------------------------------------------------------------------------------------------------------- in a recipe

Disk = namedtuple("Disk", "total used free")


def small_disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10**9, 10**9 - free, free))


def begun(folder: Path, *argv: str) -> None:
    runs.experiment("--run-dir", str(folder), "--accelerator", "cpu", *argv).run()


def test_a_run_says_what_it_will_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun(tmp_path / "run", "--rounds", "1", "--client-state-memory", "8MiB")
    said = capsys.readouterr().out
    assert (
        "scaffold, 8 clients: at most 901.1 kB on disk (220.8 kB a client, in up to 4 versions"
        in said
    )
    assert "and at most 8.4 MB resident\n" in said
    assert said.index("resident") < said.index("round 1/1")
    begun(tmp_path / "stateless", "--rounds", "1", "--algorithm", "fedavg")
    assert "on disk" not in capsys.readouterr().out


def test_a_disk_without_room_is_refused_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_disk(monkeypatch, free=8 * 4 * ROW - 1)
    with pytest.raises(SystemExit) as stop:
        begun(tmp_path / "run", "--rounds", "1000")
    said = capsys.readouterr()
    assert stop.value.code == 2
    assert said.err.startswith(
        "error: clients' states may grow by 7.2 MB, but 7.1 MB are free on the disk of "
    )
    assert said.err.count("\n") == 1
    assert "round" not in said.out
    assert not (tmp_path / "run").exists()


def test_rows_that_are_there_need_no_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three more rounds of four clients each may write twelve rows."""
    begun(tmp_path / "run", "--rounds", "4")
    small_disk(monkeypatch, free=10 * ROW)
    with pytest.raises(SystemExit):
        begun(tmp_path / "run", "--rounds", "7", "--resume")
    assert "may grow by 2.7 MB" in capsys.readouterr().err
    small_disk(monkeypatch, free=13 * ROW)
    begun(tmp_path / "run", "--rounds", "7", "--resume")
    assert " there already)" in capsys.readouterr().out


@pytest.mark.parametrize("bad", ["lots", "4", "1kB"])
def test_a_bad_state_memory_gets_one_sentence(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        begun(tmp_path / "run", "--client-state-memory", bad)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: client_state_memory ")
    assert said.count("\n") == 1


def test_a_bound_on_memory_changes_no_number(tmp_path: Path) -> None:
    rows = partial(begun, tmp_path / "tight")
    rows("--client-state-memory", "500kB")  # two rows
    begun(tmp_path / "free")
    assert runs.results(tmp_path / "tight") == runs.results(tmp_path / "free")


def test_the_ranks_of_a_machine_share_the_bound_of_one_run(tmp_path: Path) -> None:
    argv = "--client-state-memory", "400kB", "--rounds", "1"  # a row, but not two
    assert runs.end(runs.begin(tmp_path / "one", *argv)) == [0], runs.said(tmp_path / "one")
    assert runs.end(runs.begin(tmp_path / "two", *argv, ranks=2)) == [2, 2], runs.said(
        tmp_path / "two"
    )
    assert "client_state_memory leaves 200,000 bytes for each rank on this machine" in runs.said(
        tmp_path / "two"
    )


def test_weighted_sampling_runs_by_the_sizes_of_the_clients(tmp_path: Path) -> None:
    begun(tmp_path / "run", "--sampling", "weighted", "--rounds", "2")
    assert len(runs.results(tmp_path / "run")["metrics"]) == 2
