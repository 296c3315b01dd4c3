"""The hooks of a LightningModule: which of them a federation calls, and which it refuses."""

from typing import Any, TypeGuard

from lightning import LightningModule
from lightning.pytorch.core.hooks import DataHooks, ModelHooks

from fl_lightning.data.libraries import UNIMPLEMENTED, defines
from fl_lightning.errors import ModelError

CALLED = {
    "configure_model",
    "setup",
    "on_fit_start",
    "on_train_start",
    "on_before_batch_transfer",
    "on_after_batch_transfer",
    *(
        f"on_{part}_{moment}"
        for part in ("validation", "test")
        for moment in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
    ),
}
"""Hooks that are called."""

UNNEEDED = {
    "prepare_data",
    "teardown",
    *(f"{part}_dataloader" for part in ("train", "val", "test", "predict")),
    *(hook for hook in dir(ModelHooks) if "predict" in hook or "checkpoint" in hook),
}
"""Hooks that a federation has no use for."""

OF_LOOP = (
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
    *(f"{part}_epoch_end" for part in ("training", "validation", "test")),  # of Lightning 1
)
REFUSED = {
    hook
    for hook in (*OF_LOOP, *vars(ModelHooks), *vars(DataHooks))
    if hook[0] != "_" and hook not in CALLED | UNNEEDED
}
"""Hooks of a Trainer's loop, and of Lightning 1, which a federation does not call."""


def is_lightning(module: object) -> TypeGuard[LightningModule]:
    """Whether it is a LightningModule, which `lightning` and `pytorch_lightning` have each."""
    return any(
        base.__name__ == "LightningModule" and base.__module__ in UNIMPLEMENTED
        for base in type(module).__mro__
    )


def check_hooks(module: LightningModule) -> None:
    """Raise a ModelError if a module overrides a hook that no federation calls."""
    for hook in sorted(REFUSED):
        if defines(module, hook) and not _does_nothing(getattr(module, hook)):
            raise ModelError(
                f"{type(module).__name__} overrides {hook}, which no federation calls: do this in "
                "setup, in a step, in a hook of validation, in a callback or in a term"
            )


def _does_nothing(hook: Any) -> bool:
    """Whether a hook is empty, as some templates have them."""
    code = getattr(hook, "__code__", None)
    if code is None or not hook.__name__.startswith("on_"):  # others do something by being empty
        return False
    return not code.co_names and {*code.co_consts} <= {None, hook.__doc__}
