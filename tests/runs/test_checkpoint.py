"""Checkpoints: which are kept, what happens to damaged ones, and that every one of them can be gone on from."""

import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
import yaml
from fl_lightning.callbacks import Checkpoint
from lightning.fabric import Fabric
from problems import distances, federation, hard

from fl_lightning import Federation, algorithms
from fl_lightning.federation.client_store import ClientStore

ACCURACIES = 0.1, 0.9, 0.3, 0.4, 0.5, 0.6, 0.2, 0.8
"""Test accuracy after each round: the second one is the best."""

COHORTS = [0, 1, 2, 4], [2, 5], [0, 4], [1, 2], [5], [0, 1, 4], [2], [0, 3, 5]
"""Some clients take part in every stretch between checkpoints, some in few, client 3 in the last round only."""


class Scores:
    """Gives each round its accuracy, and may end the run in the middle of the next one."""

    def __init__(self, last: int = 8):
        self.last = last

    def on_round_end(self, federation: Federation, metrics: dict[str, float]) -> None:
        if federation.round > self.last:
            raise KeyboardInterrupt
        metrics["test/accuracy"] = ACCURACIES[federation.round - 1]


def begun(
    folder: Path,
    clients: Path,
    resume: bool = False,
    last: int = 8,
    rounds: int = 8,
    **checkpoints: Any,
) -> Federation:
    """An algorithm with states everywhere, before its eight rounds or what remains of them, `last` of them at most."""
    checkpoint = Checkpoint(folder, **{"every": 1, "keep": 3, **checkpoints})
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[Scores(last), checkpoint])
    run = federation(
        hard(algorithms.fedlesam_s()),
        fabric=fabric,
        rounds=rounds,
        sampler=lambda num_clients, seed, round: COHORTS[round],
        state_dir=clients,
    )
    if resume:
        checkpoint.resume(run)
    return run


def run(folder: Path, resume: bool = True, last: int = 8, **options: Any) -> Federation:
    """The same, after its rounds."""
    run = begun(folder, folder / "clients", resume, last, **options)
    try:
        run.fit()
    except KeyboardInterrupt:
        assert run.round == last + 1
    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Federation]:
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder, resume=False)


def same(mine: Federation, theirs: Federation) -> bool:
    """Bit by bit, on server and clients."""
    assert mine.round == theirs.round
    return not any(distances(mine, theirs).values())


def test_the_newest_and_the_best_are_kept(
    finished: tuple[Path, Federation], tmp_path: Path
) -> None:
    assert names(finished[0]) == ["round-2.ckpt", "round-6.ckpt", "round-7.ckpt", "round-8.ckpt"]
    run(tmp_path, resume=False, every=3, keep=1)
    assert names(tmp_path) == ["round-8.ckpt"]  # best of rounds 3, 6 and 8


def test_the_best_model_lies_beside_the_last(
    finished: tuple[Path, Federation], tmp_path: Path
) -> None:
    folder, federation = finished
    best, last = (torch.load(folder / name, weights_only=True) for name in ("best.pt", "model.pt"))
    assert all(
        last[name].equal(value) for name, value in federation.load_global().state_dict().items()
    )
    second = run(tmp_path, resume=False, rounds=2)
    assert all(best[name].equal(value) for name, value in second.load_global().state_dict().items())


@pytest.mark.parametrize("name", ["round-2.ckpt", "round-4.ckpt", "round-5.ckpt", "round-6.ckpt"])
def test_every_kept_checkpoint_can_be_gone_on_from(
    name: str, finished: tuple[Path, Federation], tmp_path: Path
) -> None:
    """Also the older ones, whose clients have been visited since; and after a seventh round that was abandoned."""
    run(tmp_path, resume=False, last=6)
    assert names(tmp_path) == ["round-2.ckpt", "round-4.ckpt", "round-5.ckpt", "round-6.ckpt"]
    for newer in names(tmp_path)[names(tmp_path).index(name) + 1 :]:
        (tmp_path / "checkpoints" / newer).unlink()
    assert same(run(tmp_path), finished[1])


def test_a_row_takes_no_more_places_than_checkpoints_and_one(tmp_path: Path) -> None:
    store, begin = ClientStore(tmp_path, 2, [{"c": torch.zeros(3)}]), torch.arange(3.0)
    for round in range(20):
        store.write(0, [{"c": begin + round}])
        store.commit([0])
        store.retain(str(round))
        for old in [
            name for name in store.retained if name not in ("1", str(round), str(round - 1))
        ]:
            store.release(old)
    assert len(list(tmp_path.iterdir())) == 4  # the newest two, number 1, and the next
    places = {name: store.retained[name] for name in ("1", "18", "19")}
    for name, (_, place) in places.items():
        store.restore(place, places)
        assert store.read(0, begin.device)[0]["c"].equal(begin + int(name))


@pytest.mark.parametrize("name", ["last", "round-9.ckpt"])
def test_a_state_that_a_program_took_itself_stays_beside_the_checkpoints(
    name: str, finished: tuple[Path, Federation], tmp_path: Path
) -> None:
    """A run goes on from it and writes checkpoints, is resumed, and then the state is as good as before."""
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


# ------------------------------------------------------------------------------------------------------------ damage


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    """In the numbers of the model, where a reader of the file would not stumble."""
    content = bytearray(path.read_bytes())
    w = torch.load(path, weights_only=True)["w"].numpy().tobytes()
    content[content.index(w) + 5] ^= 1
    path.write_bytes(content)


def scribble(path: Path) -> None:
    path.write_bytes(b"no checkpoint at all" * 100)


@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit, scribble])
def test_a_damaged_newest_file_falls_back_to_the_one_before(
    damage: Callable[[Path], None],
    finished: tuple[Path, Federation],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(tmp_path, resume=False, last=6)
    damage(tmp_path / "checkpoints" / "round-6.ckpt")
    again = run(tmp_path, last=5)  # killed a second time before anything is saved
    said = capsys.readouterr().out
    assert said.startswith("round-6.ckpt is damaged (")
    assert said.endswith("): continuing from round-5.ckpt\n")
    assert said.count("\n") == 1
    assert "round-6.damaged" in names(tmp_path)
    assert again.round == 6
    assert same(run(tmp_path), finished[1])


def test_two_damaged_files_are_told_in_one_sentence(
    finished: tuple[Path, Federation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, resume=False, last=6)
    for name in ("round-6.ckpt", "round-5.ckpt"):
        truncate(tmp_path / "checkpoints" / name)
    assert same(run(tmp_path), finished[1])
    said = capsys.readouterr().out
    assert "round-6.ckpt is damaged" in said
    assert "round-5.ckpt is damaged" in said
    assert said.endswith(": continuing from round-4.ckpt\n")


def test_nothing_whole_is_told_in_a_sentence(tmp_path: Path) -> None:
    run(tmp_path, resume=False, last=3)
    for name in names(tmp_path):
        truncate(tmp_path / "checkpoints" / name)
    with pytest.raises(
        ValueError,
        match=r"no checkpoint in .* is whole, round-3.ckpt is damaged .*start another run",
    ):
        run(tmp_path)


def test_a_file_that_may_not_be_read_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, resume=False, last=3)
    before = names(tmp_path)

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError("Permission denied")

    monkeypatch.setattr(torch, "load", denied)
    with pytest.raises(PermissionError):
        run(tmp_path)
    assert names(tmp_path) == before


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(
    finished: tuple[Path, Federation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    run(tmp_path, resume=False, last=4)
    before = names(tmp_path)

    def full(state: Any, file: Any) -> None:
        file.write(b"some of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path)
    assert names(tmp_path) == before
    assert same(run(tmp_path), finished[1])


@pytest.mark.parametrize("bad", [{"every": 0}, {"keep": 0}])
def test_absurd_numbers_are_refused(bad: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least"):
        Checkpoint(tmp_path, **bad)


# ----------------------------------------------------------------------------------------------------------- options


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        runs.experiment(*argv).run()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.fixture
def short(tmp_path: Path) -> tuple[Path, list[str]]:
    folder = tmp_path / "run"
    argv = ["--run-dir", str(folder), "--accelerator", "cpu", "--rounds", "1"]
    runs.experiment(*argv).run()
    return folder, argv


def test_options_lie_in_the_checkpoint_and_are_compared(
    short: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, argv = short
    state = torch.load(folder / "checkpoints" / "round-1.ckpt", weights_only=True)
    assert state["options"]["lr"] == 0.1
    assert state["options"]["algorithm"]["name"] == "scaffold"
    assert state["best"]["accuracy"] > 0
    assert "lr was 0.1 and is now 0.2" in refused(capsys, *argv, "--resume", "--lr", "0.2")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(
        yaml.safe_dump({**config, "lr": 0.2})
    )  # by hand: the checkpoint knows better
    assert "lr was 0.1 and is now 0.2" in refused(capsys, *argv, "--resume")


def test_harmless_options_may_change(short: tuple[Path, list[str]]) -> None:
    folder, argv = short
    more = "--keep-checkpoints", "1", "--on-divergence", "skip-client", "--checkpoint-every", "1"
    runs.experiment(*argv, "--rounds", "3", "--resume", *more).run()
    assert "round-3.ckpt" in names(folder)


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(
    short: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, argv = short
    shutil.rmtree(folder / "checkpoints")
    before = (folder / "metrics.csv").read_text()
    assert "nothing to resume" in refused(capsys, *argv, "--resume")
    assert (folder / "metrics.csv").read_text() == before
