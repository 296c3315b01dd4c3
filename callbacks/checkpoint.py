"""Checkpoints of a run, written whole or not at all."""

import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from pickle import PicklingError, UnpicklingError
from typing import Any
from zipfile import ZipFile

import torch

from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.files import atomic
from fl_lightning.runs.run import saved_rounds


class Checkpoint:
    """Writes `checkpoints/round-<r>.ckpt` at the start, at intervals, at the end and before a stop.

    The newest checkpoints are kept. A checkpoint holds everything but the rows of the client store,
    which are not overwritten while a kept checkpoint refers to them. To resume from an older
    checkpoint, delete the newer ones.

    `best.pt` holds the global model of the evaluation with the best accuracy, saved at once, and
    `model.pt` that after the last round. A file is written aside, flushed to disk and renamed. It
    loads with `weights_only=True`.

    Args:
        folder: The run's folder.
        every: Save after every `every`-th round.
        keep: The number of newest checkpoints that are kept.
        callbacks: Callbacks whose states are saved on the first rank and loaded on all, if they
            have `state_dict()` and `load_state_dict(state)`, as in a Lightning Trainer.
        monitor: The accuracy that is best in `best.pt`.
    """

    def __init__(
        self,
        folder: Path,
        every: int = 10,
        keep: int = 2,
        callbacks: Sequence[Any] = (),
        monitor: str = "test/accuracy",
    ):
        if every < 1:
            raise ValueError(f"every is at least 1, not {every}: every n-th round is saved")
        if keep < 1:
            raise ValueError(f"keep is at least 1, not {keep}: a run is resumed from a checkpoint")
        self.run, self.folder, self.every, self.keep = folder, folder / "checkpoints", every, keep
        self.monitor = monitor
        stateful = [
            c for c in callbacks if hasattr(c, "state_dict") and hasattr(c, "load_state_dict")
        ]
        names = [type(callback).__name__ for callback in stateful]
        self.callbacks: dict[str, Any] = {
            f"{names[k]} {names[:k].count(names[k])}": callback
            for k, callback in enumerate(stateful)
        }
        self.best = -1.0
        self.kept: list[str] = []  # its own files, the newest last: others may retain rows too

    def on_fit_start(self, federation: Federation) -> None:
        """Save a run that begins, so that it can be resumed from then on."""
        if federation.round == 0:
            self._save(federation)

    def on_round_logged(self, federation: Federation, metrics: Metrics) -> None:
        """Save a better `best.pt`; checkpoint after every `every`-th round and at the end."""
        if metrics.get(self.monitor, -1.0) > self.best:
            self.best = metrics[self.monitor]
            if federation.fabric.is_global_zero:
                _export(federation, self.run / "best.pt")
        last = federation.round == federation.rounds or federation.should_stop
        if last or federation.round % self.every == 0:
            self._save(federation)

    def on_fit_end(self, federation: Federation) -> None:
        """Export the global model as an ordinary `state_dict`."""
        if federation.fabric.is_global_zero:
            _export(federation, self.run / "model.pt")

    def _save(self, federation: Federation) -> None:
        """Write rows before the file that refers to them; delete a file before freeing its rows."""
        fabric, store = federation.fabric, federation.store
        name = f"round-{federation.round}.ckpt"
        store.flush()
        store.retain(name)
        self.kept = [*(old for old in self.kept if old != name), name]
        surplus = self.kept[: -self.keep]
        fabric.barrier()
        if fabric.is_global_zero:
            for logger in fabric.loggers:
                logger.save()
            mine = {
                "kept": self.kept,
                "best": self.best,
                "callbacks": self._states(),
            }
            _write({**federation.state_dict(), **mine}, self.folder / name)
            for old in surplus:
                (self.folder / old).unlink(missing_ok=True)
        fabric.barrier()
        for old in surplus:
            store.release(old)
            self.kept.remove(old)

    def resume(self, federation: Federation) -> None:
        """Load the newest whole checkpoint; a run that ended before its first one starts again.

        Damaged files, and those whose clients' rows are damaged, are renamed and reported.

        Raises:
            FileNotFoundError: If a run that had a checkpoint has none.
            ValueError: If all are damaged, or the newest is of another model or algorithm.
        """
        fabric, damages = federation.fabric, list[str]()
        while True:
            survey: Any = self._survey() if fabric.is_global_zero else None
            names, damaged, begun = fabric.broadcast(survey)
            damages += damaged
            if not names and damages:
                raise ValueError(
                    f"no checkpoint in {self.folder} is whole, {damages[0]}: start another run"
                )
            if not names and begun:
                raise FileNotFoundError(
                    f"there is nothing to resume: {self.folder} holds no checkpoint"
                )
            if not names:
                fabric.print("the run to resume had not begun: starting with round 1")
                return
            state = torch.load(self.folder / names[-1], map_location="cpu", weights_only=True)
            federation.load_state_dict(state)
            damage = fabric.broadcast(federation.store.damage() if fabric.is_global_zero else "")
            if not damage:
                break
            federation.store.release(names[-1])
            if fabric.is_global_zero:
                _set_aside(self.folder / names[-1])
            damages.append(f"{names[-1]} is damaged ({damage})")
        if damages:
            fabric.print(f"{' and '.join(damages)}: continuing from {names[-1]}")
        for name, kept in state.get("callbacks", {}).items():
            kind = name.split()[0]
            if name in self.callbacks:
                self.callbacks[name].load_state_dict(kept)
            elif not hasattr(sys.modules[__package__], kind):  # flags may leave out this package's
                raise ValueError(
                    f"the resumed run had a callback {kind} with a state: add it again"
                )
        for gone in set(state["kept"]).difference(names):
            federation.store.release(gone)
        self.kept, self.best = names, state["best"]

    def _states(self) -> dict[str, Any]:
        """The callbacks' states, each tried: a ValueError if it could not be loaded."""
        states = {name: callback.state_dict() for name, callback in self.callbacks.items()}
        for name, state in states.items():
            written = BytesIO()
            try:
                torch.save(state, written)
                torch.load(BytesIO(written.getvalue()), weights_only=True)
            except (UnpicklingError, PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"{name.split()[0]}.state_dict() holds tensors, numbers and text in lists and "
                    f"dictionaries, but loading fails: {error}"
                ) from error
        return states

    def _survey(self) -> tuple[list[str], list[str], bool]:
        """Checkpoints up to the newest whole one, damages of newer ones, and if rounds ran."""
        names, damaged = [f"round-{round}.ckpt" for round in saved_rounds(self.run)], []
        while names and (damage := _damage(self.folder / names[-1])):
            path = self.folder / names.pop()
            _set_aside(path)
            damaged.append(f"{path.name} is damaged ({damage})")
        table = self.run / "metrics.csv"
        return names, damaged, table.exists() and len(table.read_bytes().splitlines()) > 1


def _set_aside(path: Path) -> None:
    path.rename(path.with_suffix(".damaged"))  # for ever: its rows may be overwritten


def _damage(path: Path) -> str:
    """The damage of a checkpoint file; an empty string if it is whole.

    Errors of the system, such as those of a file server, are raised: they are no damage.
    """
    content = BytesIO(path.read_bytes())
    try:
        with ZipFile(content) as archive:
            broken = archive.testzip()  # torch.load does not compare checksums
        if broken:
            return f"the checksum of {broken} is wrong"
        content.seek(0)
        torch.load(content, map_location="cpu", weights_only=True)["retained"]
    except Exception as error:  # any that readers of zip files and pickles raise
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _export(federation: Federation, path: Path) -> None:
    _write({k: t.cpu() for k, t in federation.load_global().state_dict().items()}, path)


def _write(state: dict[str, Any], path: Path) -> None:
    with atomic(path) as file:
        torch.save(state, file)
