"""The disk space and memory that client states take: shown before the first round."""

from pathlib import Path

import jobs
import pytest
from problems import federation

from fl_lightning import algorithms
from fl_lightning.federation.client_store import BLOCK, ClientStore
from fl_lightning.runs.converters import parse_bytes


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


def test_a_run_shows_what_its_states_take_from_a_gigabyte_on(tmp_path, capsys, monkeypatch):
    begun(tmp_path / "small", "--rounds", "1")
    assert "on disk" not in capsys.readouterr().out
    monkeypatch.setattr(ClientStore, "most_disk_bytes", lambda *_: 11 * 10**8)
    begun(tmp_path / "large", "--rounds", "1")
    assert "client states: at most 1.1 GB on disk\n" in capsys.readouterr().out


@pytest.mark.parametrize("bad", ["many", "4"])
def test_an_unusable_client_state_memory_is_refused(bad, tmp_path, sentence):
    argv = "--client-state-memory", bad
    assert "client_state_memory " in sentence(begun, tmp_path / "run", *argv)
