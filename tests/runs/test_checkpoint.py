"""Checkpoints: the kept ones, damaged ones, and resuming from each of them."""

import os
from copy import deepcopy
from datetime import timedelta
from errno import EACCES, EIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning.fabric import Fabric
from problems import distances, federation, hard, on_two_ranks

import fl_lightning.callbacks.checkpoint as checkpoint
from fl_lightning import Federation, algorithms
from fl_lightning.callbacks import Checkpoint
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.runs.run import saved_rounds

ACCURACIES = 0.1, 0.9, 0.3, 0.4, 0.5, 0.6, 0.2, 0.8
"""Test accuracy after each round: the second one is the best."""

COHORTS = [0, 1, 2, 4], [2, 5], [0, 4], [1, 2], [5], [0, 1, 4], [2], [0, 3, 5]
"""Clients that take part often, seldom, and client 3, in the last round only."""


class Scores:
    """Gives each round its accuracy, and ends the run in the middle of round `last` + 1."""

    def __init__(self, last: int = 8):
        self.last = last

    def on_round_end(self, federation: Federation, metrics: dict[str, float]) -> None:
        if federation.round > self.last:
            raise KeyboardInterrupt
        metrics["test/accuracy"] = ACCURACIES[(federation.round - 1) % 8]


def begun(
    folder: Path,
    clients: Path,
    resume: bool = False,
    last: int = 8,
    rounds: int = 8,
    **checkpoints: Any,
) -> Federation:
    """A federation with states everywhere, before its rounds, of which `last` will end."""
    checkpoint = Checkpoint(folder, **{"every": 1, "keep": 3, **checkpoints})
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[Scores(last), checkpoint])
    given: dict[str, Any] = {"fabric": fabric, "rounds": rounds, "state_dir": clients}
    given["sampler"] = lambda num_clients, seed, round: COHORTS[round % 8]
    run = federation(hard(algorithms.fedlesam_s()), **given)
    if resume:
        checkpoint.resume(run)
    return run


def run(folder: Path, resume: bool = True, last: int = 8, **options: Any) -> Federation:
    run = begun(folder, folder / "clients", resume, last, **options)
    try:
        run.fit()
    except KeyboardInterrupt:
        assert run.round == last + 1
    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Federation]:
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder, resume=False)


def same(mine: Federation, theirs: Federation) -> bool:
    assert mine.round == theirs.round
    return not any(distances(mine, theirs).values())


def test_the_newest_are_kept(finished, tmp_path):
    assert names(finished[0]) == ["round-6.ckpt", "round-7.ckpt", "round-8.ckpt"]
    run(tmp_path, resume=False, every=3, keep=1)
    assert names(tmp_path) == ["round-8.ckpt"]


@pytest.mark.parametrize("every", [1, 3])
def test_the_best_model_lies_beside_the_last(every, tmp_path):
    """That of round 2, also where this round has no checkpoint."""
    folder = tmp_path / "run"
    federation = run(folder, resume=False, every=every)
    best, last = (torch.load(folder / name, weights_only=True) for name in ("best.pt", "model.pt"))
    second = run(tmp_path / "second", resume=False, rounds=2)
    for kept, made in ((last, federation), (best, second)):
        state = made.load_global().state_dict()
        assert all(kept[name].equal(value) for name, value in state.items())


@pytest.mark.parametrize("name", ["round-4.ckpt", "round-5.ckpt", "round-6.ckpt"])
def test_a_run_resumes_from_every_kept_checkpoint(name, finished, tmp_path):
    """Also from older ones, whose clients have trained since, and after an abandoned round."""
    run(tmp_path, resume=False, last=6)
    assert names(tmp_path) == ["round-4.ckpt", "round-5.ckpt", "round-6.ckpt"]
    for newer in names(tmp_path)[names(tmp_path).index(name) + 1 :]:
        (tmp_path / "checkpoints" / newer).unlink()
    assert same(run(tmp_path), finished[1])


@pytest.mark.parametrize("name", ["last", "round-9.ckpt"])
def test_a_state_that_a_program_took_itself_stays_beside_the_checkpoints(name, finished, tmp_path):
    """A run starts from it, writes checkpoints and is resumed; the state can still be loaded."""
    first = begun(tmp_path / "first", tmp_path / "clients")
    for _ in range(3):
        first.train_round()
    first.store.retain(name)
    state = deepcopy(first.state_dict())

    second = begun(tmp_path / "second", tmp_path / "clients", last=7)
    second.load_state_dict(state)
    with pytest.raises(KeyboardInterrupt):
        second.fit()
    assert names(tmp_path / "second") == ["round-5.ckpt", "round-6.ckpt", "round-7.ckpt"]

    third = begun(tmp_path / "second", tmp_path / "clients", resume=True)
    for _ in range(2):
        third.fit()
        assert same(third, finished[1])
        assert names(tmp_path / "second") == ["round-6.ckpt", "round-7.ckpt", "round-8.ckpt"]
        assert third.store.retained.keys() == {name, *names(tmp_path / "second")}
        third.load_state_dict(state)
        assert third.round == 3


def flip_a_bit(path: Path) -> None:
    """In the numbers of the model, which a reader of the file accepts."""
    content = bytearray(path.read_bytes())
    w = torch.load(path, weights_only=True)["w"].numpy().tobytes()
    content[content.index(w) + 5] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def scribble(path: Path) -> None:
    path.write_bytes(b"no checkpoint at all" * 100)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, scribble])
def test_a_damaged_newest_file_is_refused_and_the_one_before_resumes(damage, finished, tmp_path):
    run(tmp_path, resume=False, last=6)
    newest = tmp_path / "checkpoints" / "round-6.ckpt"
    damage(newest)
    with pytest.raises(ValueError, match=r"round-6\.ckpt is damaged \(.*\): delete it"):
        run(tmp_path)
    newest.unlink()
    assert same(run(tmp_path), finished[1])


def test_a_damaged_row_is_refused_and_a_checkpoint_before_its_visit_resumes(finished, tmp_path):
    """Of client 1, who takes part in round 6; other rows of that round are not damaged."""
    before = run(tmp_path, resume=False, last=6)
    slot = int(before.store.retained["round-6.ckpt"][1][1])
    rows = tmp_path / "clients" / f"{slot}.rows"
    content = bytearray(rows.read_bytes())
    content[before.store.row + 7] ^= 1
    rows.write_bytes(content)
    with pytest.raises(ValueError, match=r"round-6\.ckpt is damaged \(.* client 1 .*\.rows"):
        run(tmp_path)
    (tmp_path / "checkpoints" / "round-6.ckpt").unlink()
    assert same(run(tmp_path), finished[1])


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (Path, "read_bytes", OSError(EIO, "an error of a disk")),
        (Path, "read_bytes", OSError(EACCES, "an error of a file server")),
        (torch, "load", RuntimeError("DefaultCPUAllocator: can't allocate memory")),
    ],
)
def test_an_error_of_the_system_is_no_damage(owner, name, error, tmp_path, monkeypatch):
    run(tmp_path, resume=False, last=3)
    before = names(tmp_path)
    monkeypatch.setattr(owner, name, Mock(side_effect=error))
    with pytest.raises(type(error), match=r"an error of|allocate memory"):
        run(tmp_path)
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    ("every", "took", "saved"),
    [
        (1, 0.0, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (2, 1.0, [0, 4, 8]),  # not in round 2: 12 s after a checkpoint of 1 s
        (timedelta(seconds=10), 0.0, [0, 2, 4, 6, 8]),
        (timedelta(seconds=10), 0.5, [0, 2, 4, 6, 8]),
        (timedelta(seconds=10), 1.0, [0, 4, 8]),
        (timedelta(hours=1), 1.0, [0, 8]),
    ],
    ids=str,
)
def test_checkpoints_go_by_rounds_or_time_and_are_spaced(every, took, saved, tmp_path, monkeypatch):
    """Of rounds of 6 s, on a clock that ticks with the rounds and the checkpoints."""
    clock = SimpleNamespace(now=100.0)

    class Ticks:
        def on_round_start(self, federation: Federation, cohort: list[int]) -> None:
            clock.now += 6

    retain = ClientStore.retain

    def slowly(store: ClientStore, name: str) -> None:
        clock.now += took
        retain(store, name)

    monkeypatch.setattr(checkpoint, "monotonic", lambda: clock.now)
    monkeypatch.setattr(checkpoint, "SPACING", 20)
    monkeypatch.setattr(ClientStore, "retain", slowly)
    callbacks = [Ticks(), Checkpoint(tmp_path, every, keep=20)]
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=callbacks)
    federation(algorithms.scaffold(), fabric=fabric, rounds=8).fit()
    assert saved_rounds(tmp_path) == saved


def test_the_clock_of_the_first_rank_decides_for_all(tmp_path, monkeypatch):
    """The other rank's runs away."""

    def saves(fabric: Fabric) -> list[str]:
        clock = count(0, 1.0 if fabric.is_global_zero else 1e6)
        monkeypatch.setattr(checkpoint, "monotonic", lambda: next(clock))
        saver = Checkpoint(tmp_path, timedelta(seconds=100))
        fabric._callbacks = [saver]
        federation(algorithms.scaffold(), fabric=fabric, rounds=3).fit()
        return saver.kept

    assert on_two_ranks(saves) == (of(0, 3), of(0, 3))


def of(*rounds: int) -> list[str]:
    return [f"round-{round}.ckpt" for round in rounds]


def test_round_10_is_newer_than_round_9(tmp_path):
    run(tmp_path, resume=False, rounds=10, last=10, keep=2)
    assert names(tmp_path) == of(10, 9)
    assert begun(tmp_path, tmp_path / "clients", resume=True, rounds=11).round == 10
    run(tmp_path, rounds=11, last=11, keep=2)
    assert names(tmp_path) == of(10, 11)


def test_a_resumed_run_knows_the_best_and_which_rows_are_kept(tmp_path):
    first = run(tmp_path, resume=False, rounds=4, keep=2)
    assert sorted(first.store.retained) == names(tmp_path) == of(3, 4)
    best = (tmp_path / "best.pt").read_bytes()
    assert sorted(run(tmp_path, rounds=7, keep=2).store.retained) == names(tmp_path) == of(6, 7)
    assert (tmp_path / "best.pt").read_bytes() == best
    state = torch.load(tmp_path / "checkpoints" / "round-7.ckpt", weights_only=True)
    assert state["best"] == 0.9


def test_a_resumed_run_with_another_monitor_has_a_new_best(tmp_path):
    run(tmp_path, resume=False, rounds=4)
    run(tmp_path, rounds=5, monitor="train/loss")
    best, last = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("best", "model")
    )
    assert all(best[name].equal(last[name]) for name in last)


def test_rows_of_a_deleted_checkpoint_are_released(tmp_path):
    run(tmp_path, resume=False, rounds=4, keep=2)
    (tmp_path / "checkpoints" / "round-3.ckpt").unlink()
    assert sorted(run(tmp_path, rounds=4).store.retained) == of(4)


def test_rows_are_on_the_disk_before_the_file_that_refers_to_them(tmp_path, monkeypatch):
    """With the names of both, so that neither is lost with the power."""
    fsync, synced = os.fsync, list[str]()

    def noted(file: int) -> None:
        found = os.fstat(file)
        synced.extend(p.name for p in tmp_path.rglob("*") if os.path.samestat(p.stat(), found))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    federation = begun(tmp_path, tmp_path / "clients")
    federation.train_round()
    Checkpoint(tmp_path, every=1).on_round_logged(federation, {})
    assert synced == ["0.rows", "clients", "round-1.ckpt.part", "checkpoints"]
