"""Checkpoints that are whole or absent."""

import os
from pathlib import Path
from typing import Any

import torch

from fl_lightning.federation import Federation, Metrics


class Checkpoint:
    """Writes `last.ckpt` at the start, every so many rounds and at the end, and then the global model as `model.pt`.

    The file is written aside and renamed. It holds everything but the rows of the client store, which lie beside it and
    are not overwritten as long as it refers to them. It loads with `weights_only=True`.

    Args:
        folder: Where the files go.
        every: Save after every `every`-th round.
    """

    def __init__(self, folder: Path, every: int = 10):
        if every < 1:
            raise ValueError(f"save a checkpoint after every n-th round with n at least 1, not {every}")
        self.folder, self.every = folder, every

    @property
    def path(self) -> Path:
        """The newest checkpoint."""
        return self.folder / "last.ckpt"

    def on_fit_start(self, federation: Federation) -> None:
        """Save a run that begins: whatever happens to it, it can be resumed."""
        if federation.round == 0:
            self._save(federation)

    def on_round_logged(self, federation: Federation, metrics: Metrics) -> None:
        """Save, when it is time."""
        if federation.round % self.every == 0 or federation.round == federation.rounds:
            self._save(federation)

    def _save(self, federation: Federation) -> None:
        if federation.fabric.is_global_zero:
            _write(federation.state_dict(), self.path)
        federation.fabric.barrier()
        federation.store.pin()

    def on_fit_end(self, federation: Federation) -> None:
        """Export the global model as an ordinary `state_dict`."""
        module = federation.load_global()
        if federation.fabric.is_global_zero:
            _write({k: t.cpu() for k, t in module.state_dict().items()}, self.folder / "model.pt")

    def resume(self, federation: Federation) -> None:
        """Go on from the newest checkpoint.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If it is of another model or algorithm.
        """
        if not self.path.is_file():
            raise FileNotFoundError(f"there is nothing to resume: {self.path} does not exist; start without --resume")
        federation.load_state_dict(torch.load(self.path, map_location="cpu", weights_only=True))


def _write(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
