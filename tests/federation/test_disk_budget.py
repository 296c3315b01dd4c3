"""The disk and memory that client states take: shown before the first round, and refused."""

import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import jobs
import pytest
from problems import federation

from fl_lightning import algorithms
from fl_lightning.federation.disk_budget import BLOCK, DiskBudget, free_space
from fl_lightning.federation.sampling import UniformSampling
from fl_lightning.runs.converters import parse_bytes

ROW = 4 * 55_210
"""States of a client of SCAFFOLD with the digits' mlp; below, rounded up to 16 bytes."""

Disk = namedtuple("Disk", "total used free")


def test_sizes_are_read_with_their_units():
    sizes = {"512MiB": 512 << 20, "4GiB": 4 << 30, "2GB": 2 * 10**9, "1.5 kb": 1500}
    assert {size: parse_bytes(size) for size in sizes} == sizes


@pytest.mark.parametrize("size", ["4", "GiB", "-4GiB", "0MB", "4 gigs", "4Gib/s", "nan MB", ""])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match="512MiB"):
        parse_bytes(size)


def budget(rounds: int, algorithm: Any, keep: int = 2, **options: Any) -> DiskBudget:
    run = federation(algorithm, rounds=rounds, sampler=UniformSampling(0.5), **options)
    return DiskBudget(run, keep)


def test_a_short_run_is_bounded_by_its_visits_and_a_long_one_by_its_clients():
    """Three of six clients a round; a row for each visit, or for each version of each client."""
    short, long = (budget(rounds, algorithms.scaffold()) for rounds in (2, 1000))
    assert short.row == long.row > 0
    assert short.round == long.round == 3 * short.row
    assert 2 * 3 * short.row <= short.most <= 2 * 3 * (short.row + 2 * BLOCK)
    assert 6 * 3 * long.row <= long.most <= 6 * 3 * (long.row + BLOCK)
    assert budget(1000, algorithms.scaffold(), keep=5).versions == 6


def test_an_algorithm_without_client_states_has_no_budget():
    nothing = budget(1000, algorithms.fedavg(), client_state_memory=1)
    assert (nothing.row, nothing.most, str(nothing)) == (0, 0, "")
    nothing.check_disk_space()


def test_free_space_is_asked_where_the_folder_will_be_made(tmp_path, monkeypatch):
    asked = list[Path]()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or Disk(9, 4, 5))
    assert free_space(tmp_path / "not" / "yet") == 5
    assert asked == [tmp_path]


def small_disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10**9, 10**9 - free, free))


def begun(folder: Path, *argv: str) -> None:
    jobs.experiment("--run-dir", str(folder), "--accelerator", "cpu", *argv).run()


def test_a_run_shows_its_budget(tmp_path, capsys):
    begun(tmp_path / "run", "--rounds", "1", "--client-state-memory", "8MiB")
    said = capsys.readouterr().out
    assert "scaffold, 8 clients: at most 901.1 kB on disk (220.9 kB a client, in up to 3 " in said
    assert "883.5 kB of it a round" in said
    assert said.index("at most 8.4 MB resident\n") < said.index("round 1/1")


def test_a_disk_without_room_is_refused_before_the_first_round(tmp_path, monkeypatch, sentence):
    small_disk(monkeypatch, free=8 * 3 * ROW - 1)
    said = sentence(begun, tmp_path / "run", "--rounds", "1000")
    assert re.search(r"may grow by 5.4 MB, but 5.3 MB .*/run/clients: .*--run-dir", said)
    assert not (tmp_path / "run").exists()


def test_existing_rows_need_no_room_again(tmp_path, monkeypatch, sentence, capsys):
    """Three more rounds of four clients each may write twelve rows."""
    begun(tmp_path / "run", "--rounds", "2")
    capsys.readouterr()
    argv = "--rounds", "5", "--resume"
    small_disk(monkeypatch, free=10 * ROW)
    assert "may grow by 2.7 MB" in sentence(begun, tmp_path / "run", *argv)
    small_disk(monkeypatch, free=13 * ROW)
    begun(tmp_path / "run", *argv)
    assert " MB there already)" in capsys.readouterr().out


@pytest.mark.parametrize("bad", ["many", "4", "1kB"])
def test_an_unusable_client_state_memory_is_refused(bad, tmp_path, sentence):
    argv = "--client-state-memory", bad
    assert "client_state_memory " in sentence(begun, tmp_path / "run", *argv)


def test_the_ranks_of_a_machine_share_the_bound_of_one_run(tmp_path):
    argv = "--client-state-memory", "400kB", "--rounds", "1"  # a row, but not two
    assert jobs.end(jobs.begin(tmp_path / "one", *argv)) == [0], jobs.said(tmp_path / "one")
    assert jobs.end(jobs.begin(tmp_path / "two", *argv, ranks=2)) == [2, 2]
    assert "client_state_memory leaves 200,000 bytes" in jobs.said(tmp_path / "two")


def test_weighted_sampling_uses_the_sizes_of_the_clients(tmp_path):
    begun(tmp_path / "run", "--sampling", "weighted", "--rounds", "2")
    assert len(jobs.results(tmp_path / "run")["metrics"]) == 2
