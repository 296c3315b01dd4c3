"""The disk space and memory that client states take: shown before the first round, and refused."""

import shutil
from collections import namedtuple
from pathlib import Path

import jobs
import pytest
from problems import federation

from fl_lightning import algorithms
from fl_lightning.federation.disk_space import BLOCK, free_space, most_disk_bytes
from fl_lightning.federation.sampling import UniformSampling
from fl_lightning.runs.converters import parse_bytes
from fl_lightning.training import summary

ROW = 4 * 55_210
"""States of a client of SCAFFOLD with the digits' mlp."""

Disk = namedtuple("Disk", "total used free")


def test_sizes_are_read_with_their_units():
    sizes = {"512MiB": 512 << 20, "4GiB": 4 << 30, "2GB": 2 * 10**9, "1.5 kb": 1500}
    assert {size: parse_bytes(size) for size in sizes} == sizes


@pytest.mark.parametrize("size", ["4", "GiB", "-4GiB", "0MB", "4 gigs", "4Gib/s", "nan MB", ""])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match="512MiB"):
        parse_bytes(size)


def test_a_short_run_is_bounded_by_its_visits_and_a_long_one_by_its_clients():
    """Three of six clients a round; a row for each visit, or for each version of each client."""
    sampler = UniformSampling(0.5)
    short, long = (
        federation(algorithms.scaffold(), rounds=rounds, sampler=sampler) for rounds in (2, 1000)
    )
    row = short.store.row
    assert 2 * 3 * row < most_disk_bytes(short, 2) <= 2 * 3 * (row + 2 * BLOCK)
    assert 6 * 3 * row < most_disk_bytes(long, 2) <= 6 * 3 * (row + BLOCK)
    assert most_disk_bytes(long, 5) == 2 * most_disk_bytes(long, 2)
    assert most_disk_bytes(federation(algorithms.fedavg(), rounds=1000), 2) == 0


def test_free_space_is_asked_where_the_folder_will_be_made(tmp_path, monkeypatch):
    asked = list[Path]()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or Disk(9, 4, 5))
    assert free_space(tmp_path / "not" / "yet") == 5
    assert asked == [tmp_path]


def begun(folder: Path, *argv: str) -> None:
    jobs.experiment("--run-dir", str(folder), "--accelerator", "cpu", *argv).run()


def small_disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10**9, 10**9 - free, free))


def test_a_run_shows_what_its_states_take_from_a_gigabyte_on(tmp_path, capsys, monkeypatch):
    begun(tmp_path / "small", "--rounds", "1")
    assert "on disk" not in capsys.readouterr().out
    monkeypatch.setattr(summary, "most_disk_bytes", lambda *_: 11 * 10**8)
    begun(tmp_path / "large", "--rounds", "1")
    assert "client states: at most 1.1 GB on disk\n" in capsys.readouterr().out


def test_a_disk_without_room_is_refused_before_the_first_round(tmp_path, monkeypatch, sentence):
    small_disk(monkeypatch, free=8 * 3 * ROW - 1)
    said = sentence(begun, tmp_path / "run", "--rounds", "1000")
    assert "may grow by 5.4 MB" in said
    assert "/run/clients: name a --run-dir" in said
    assert not (tmp_path / "run").exists()


def test_existing_rows_need_no_room_again(tmp_path, monkeypatch, sentence):
    """Three more rounds of four clients each may write twelve rows."""
    begun(tmp_path / "run", "--rounds", "2")
    argv = "--rounds", "5", "--resume"
    small_disk(monkeypatch, free=10 * ROW)
    assert "may grow by 2.7 MB" in sentence(begun, tmp_path / "run", *argv)
    small_disk(monkeypatch, free=13 * ROW)
    begun(tmp_path / "run", *argv)


@pytest.mark.parametrize("bad", ["many", "4"])
def test_an_unusable_client_state_memory_is_refused(bad, tmp_path, sentence):
    argv = "--client-state-memory", bad
    assert "client_state_memory " in sentence(begun, tmp_path / "run", *argv)


def test_weighted_sampling_uses_the_sizes_of_the_clients(tmp_path):
    begun(tmp_path / "run", "--sampling", "weighted", "--rounds", "2")
    assert len(jobs.results(tmp_path / "run")["metrics"]) == 2
