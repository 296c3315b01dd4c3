"""What users of Lightning's Trainer write by habit, and what a federation has in its place."""

from collections.abc import Iterable
from inspect import signature
from typing import TYPE_CHECKING, NoReturn

from lightning import Trainer

from fl_lightning.algorithms import modifiers
from fl_lightning.errors import nearest

STEPS = "give local_epochs or local_steps"
ELSEWHERE = {
    "callback": "give callbacks=[...]",
    "resume": "give fit(..., resume=True)",
    "max_epochs": "give rounds",
    "min_epochs": "give rounds",
    "epochs": "give rounds, and local_epochs",
    "num_epochs": "give rounds, and local_epochs",
    "max_steps": "give rounds, and local_steps",
    "max_time": "give rounds",
    "limit_train_batches": STEPS,
    "overfit_batches": STEPS,
    "fast_dev_run": "give rounds=1 and local_steps=1",
    "gradient_clip_val": "give clip_norm",
    "gradient_clip_algorithm": "give clip_norm",
    "accumulate_grad_batches": "give a larger batch_size",
    "check_val_every_n_epoch": "give evaluate_every",
    "val_check_interval": "give evaluate_every",
    "default_root_dir": "give run_dir",
    "enable_checkpointing": "give checkpoint_every and keep_checkpoints",
    "resume_from_checkpoint": "give run_dir, and fit(..., resume=True)",
    "gpus": 'give accelerator="gpu" and devices',
    "learning_rate": "give lr",
    "optimizer": "give lr and momentum of SGD, or a module with configure_optimizers",
    **dict.fromkeys(
        ("clients", "num_clients", "data_dir", "validation", "validation_from"),
        "it belongs to FederatedData",
    ),
    **{part: f'give algorithm={{"name": ..., "{part}": ...}}' for part in modifiers.PARTS},
}
"""Options of the command line, and of a Trainer, that have another place or name here."""

HISTORY = "trainer.history has the numbers of all rounds"
CHECKPOINTS = "run.path has best.pt, which run.model(module, best=True) loads, and checkpoints"
ATTRIBUTES = {
    "callback_metrics": HISTORY,
    "logged_metrics": HISTORY,
    "progress_bar_metrics": HISTORY,
    "current_epoch": HISTORY,
    "logger": "give loggers, or logger of a tracker",
    "log_dir": "run.path is the folder",
    "default_root_dir": "run.path is the folder",
    "checkpoint_callback": CHECKPOINTS,
    "save_checkpoint": "run.path has model.ckpt",
    "predict": "call the module, which fit has trained in place: module.eval()(x)",
    "lightning_module": "fit trains the module that it is given",
    "model": "fit trains the module that it is given",
}
"""Attributes of a Trainer that users read, and what has their content here."""


def elsewhere(name: str, options: Iterable[str]) -> str:
    """The end of a sentence about an unknown option: what to give instead."""
    if name in ELSEWHERE:
        return f": {ELSEWHERE[name]}"
    if name in signature(Trainer.__init__).parameters:
        return ", which is of Lightning's Trainer: leave it out"
    return nearest(name, options)


class HintsOnAttributes:
    """Says of an attribute of a Trainer where its content is."""

    if not TYPE_CHECKING:  # which would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            fix = f": {ATTRIBUTES[name]}" if name in ATTRIBUTES else ""
            raise AttributeError(f"{type(self).__name__} has no {name!r}{fix}", name=name, obj=self)
