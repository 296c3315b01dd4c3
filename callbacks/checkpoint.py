"""Checkpoints of a run, written whole or not at all."""

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from io import BytesIO
from math import inf, nan
from pathlib import Path
from pickle import PicklingError, UnpicklingError
from shutil import rmtree
from time import monotonic
from typing import Any
from zipfile import ZipFile

import torch
from lightning.fabric import Fabric

from fl_lightning.core.network import uncompiled
from fl_lightning.errors import UserError
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.files import atomic
from fl_lightning.runs.config import Config
from fl_lightning.runs.run import saved_rounds
from fl_lightning.runs.scalars import higher_is_better

SPACING = 20
"""The least time between two checkpoints, as a multiple of what the first of them took."""


class Checkpoint:
    """Writes `checkpoints/round-<r>.ckpt` at the start, at intervals, at the end and before a stop.

    The newest checkpoints are kept. A checkpoint holds everything but frozen parameters, of which
    it holds digests, and the rows of the client store, which are not overwritten while a kept
    checkpoint refers to them. To resume from an older checkpoint, delete the newer ones.

    `best.pt` holds the global model of the evaluation with the best score, saved at once, and
    `model.pt` that after the last round, both with frozen parameters. A file is written aside,
    flushed to disk and renamed. It loads with `weights_only=True`.

    Args:
        folder: The run's folder.
        every: Save after every `every`-th round, or after the first round that ends this long after
            the last checkpoint. A checkpoint is left out that would come sooner than `SPACING`
            times what the last one took, but for that of the last round or a stop.
        keep: The number of newest checkpoints that are kept.
        callbacks: Callbacks whose states are saved on the first rank and loaded on all, if they
            have `state_dict()` and `load_state_dict(state)`, as in a Lightning Trainer.
        monitor: The scalar that is best in `best.pt`.
        upwards: Whether its highest value is best; None goes by its name.
        config: The options of the run, which a resumed run must have; None compares none.
    """

    def __init__(
        self,
        folder: Path,
        every: int | timedelta = 10,
        keep: int = 2,
        callbacks: Sequence[Any] = (),
        monitor: str = "test/accuracy",
        upwards: bool | None = None,
        config: Config | None = None,
    ):
        self.run, self.folder, self.every, self.keep = folder, folder / "checkpoints", every, keep
        self.monitor, self.config = monitor, config
        self.upwards = higher_is_better(monitor) if upwards is None else upwards
        stateful = [c for c in callbacks if {"state_dict", "load_state_dict"} <= {*dir(c)}]
        names = [type(callback).__name__ for callback in stateful]
        keys = [f"{name} {names[:k].count(name)}" for k, name in enumerate(names)]
        self.callbacks: dict[str, Any] = dict(zip(keys, stateful, strict=True))
        self._saved, self._took = monotonic(), 0.0
        self.best, self.last_only = -inf, frozenset[str]()
        self.kept: list[str] = []  # its own files, the newest last: others may retain rows too

    def on_fit_start(self, federation: Federation) -> None:
        """Save a run that begins, so that it can be resumed from then on."""
        if federation.round == 0:
            self._save(federation)

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        """Restore the `best.pt` that a last round has replaced, now that a round follows it.

        It is the same round again if the run was killed before its checkpoint. Clients' own models
        are dropped, since they are of a round that is no longer the last one.
        """
        if not federation.fabric.is_global_zero:
            return
        rmtree(self.run / "personal", ignore_errors=True)
        if (former := self.folder / "best.pt").exists():
            former.replace(self.run / "best.pt")

    def on_round_logged(self, federation: Federation, metrics: Metrics) -> None:
        """Save a better `best.pt`; save a checkpoint where one is due, and at the end."""
        score = metrics.get(self.monitor, nan) * (1 if self.upwards else -1)
        if score > self.best:
            self._save_best(federation, score)
        last = federation.round == federation.rounds or federation.should_stop
        if last or self._is_due(federation):
            self._save(federation)

    def _save_best(self, federation: Federation, score: float) -> None:
        """Save `best.pt`, and keep the former one if a run of more rounds would not have this."""
        best, last_only = self.run / "best.pt", self.monitor in federation.last_only
        if federation.fabric.is_global_zero:
            if last_only and best.exists():
                best.replace(self.folder / "best.pt")
            _export(federation, best)
        self.best = self.best if last_only else score

    def _is_due(self, federation: Federation) -> bool:
        """Whether the first rank's clock and the round ask for a checkpoint."""
        if isinstance(self.every, int) and federation.round % self.every:
            return False
        by_time = self.every.total_seconds() if isinstance(self.every, timedelta) else 0.0
        due = monotonic() - self._saved >= max(by_time, SPACING * self._took)
        return bool(federation.fabric.broadcast(due))

    def on_fit_end(self, federation: Federation) -> None:
        """Export the global model as an ordinary `state_dict`."""
        if federation.fabric.is_global_zero:
            _export(federation, self.run / "model.pt")

    def _save(self, federation: Federation) -> None:
        """Write rows before the file that refers to them; delete a file before freeing its rows."""
        fabric, store, begun = federation.fabric, federation.store, monotonic()
        name = f"round-{federation.round}.ckpt"
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
                "monitor": self.monitor,
                "last_only": sorted(federation.last_only),
                "callbacks": self._states(),
                "config": dict(self.config or {}),
            }
            _write({**federation.state_dict(), **mine}, self.folder / name)
            for old in surplus:
                (self.folder / old).unlink(missing_ok=True)
        fabric.barrier()
        for old in surplus:
            store.release(old)
            self.kept.remove(old)
        self._saved = monotonic()
        self._took = self._saved - begun

    def resume(self, federation: Federation) -> None:
        """Load the newest checkpoint; a run that ended before its first one starts again.

        Raises:
            UserError: If a run that had a checkpoint has none, it or a client's states are damaged,
                or it is of another model or algorithm.
        """
        fabric = federation.fabric
        names, begun = fabric.broadcast(self._survey())
        if not names and begun:
            raise UserError(f"there is nothing to resume: {self.folder} holds no checkpoint")
        if not names:
            fabric.print("the run to resume had not begun: starting with round 1")
            return
        path = self.folder / names[-1]
        _refuse_if(fabric, path, partial(_damage, path))
        state = torch.load(path, map_location="cpu", weights_only=True)
        if self.config and (before := state.get("config")):
            self.config.check_saved(before)
        federation.load_state_dict(state)
        _refuse_if(fabric, path, federation.store.damage)
        for name, kept in state["callbacks"].items():
            kind = name.split()[0]
            if name in self.callbacks:
                self.callbacks[name].load_state_dict(kept)
            elif not hasattr(sys.modules[__package__], kind):  # flags may leave out this package's
                raise UserError(f"the resumed run had a callback {kind} with a state: add it again")
        for gone in set(state["kept"]).difference(names):
            federation.store.release(gone)
        same = state.get("monitor", self.monitor) == self.monitor
        self.kept, self.best = names, state["best"] if same else -inf
        self.last_only = frozenset(state["last_only"])

    def _states(self) -> dict[str, Any]:
        """The callbacks' states, each tried: a UserError if it could not be loaded."""
        states = {name: callback.state_dict() for name, callback in self.callbacks.items()}
        for name, state in states.items():
            written = BytesIO()
            try:
                torch.save(state, written)
                torch.load(BytesIO(written.getvalue()), weights_only=True)
            except (UnpicklingError, PicklingError, AttributeError, TypeError) as error:
                raise UserError(
                    f"{name.split()[0]}.state_dict() holds tensors, numbers and text in lists and "
                    f"dictionaries, but loading fails: {error}"
                ) from error
        return states

    def _survey(self) -> tuple[list[str], bool]:
        """The checkpoints, the newest last, and whether rounds were run."""
        names = [f"round-{round}.ckpt" for round in saved_rounds(self.run)]
        table = self.run / "metrics.csv"
        return names, table.exists() and len(table.read_bytes().splitlines()) > 1


def _refuse_if(fabric: Fabric, path: Path, damage: Callable[[], str]) -> None:
    """Raise a UserError, on all ranks, if the first one finds a damage."""
    found = fabric.broadcast(damage() if fabric.is_global_zero else "")
    if found:
        raise UserError(f"{path} is damaged ({found}): delete it to resume from the one before")


def _damage(path: Path) -> str:
    """The damage of a checkpoint file; an empty string if it is whole.

    Errors of the system, as of a file server, are raised: they are no damage.
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
    whole = uncompiled(federation.load_global()).state_dict()
    _write({k: t.cpu() for k, t in whole.items()}, path)


def _write(state: dict[str, Any], path: Path) -> None:
    with atomic(path) as file:
        torch.save(state, file)
