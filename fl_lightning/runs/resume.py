"""What a resumed run may change of its options."""

from collections.abc import Mapping
from typing import Any

from fl_lightning.runs.config_yaml import flat

MAY_CHANGE = frozenset(
    {
        "rounds",
        "evaluate_every",
        "finetune_epochs",
        "finetune_lr",
        "data_dir",
        "checkpoint_every",
        "keep_checkpoints",
        "client_state_memory",
        "on_divergence",
    }
)
"""Options that may change between a run and its resumption: they do not change what a finite round computes."""


CHANGES_ROUNDING_ONLY = frozenset({"executor", "parallel_clients", "compile"})
"""Options that change its last bits alone, which only a deterministic run must keep."""


def check_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the options of a run, as YAML holds them, with those of its resumption.

    Raises:
        ValueError: If others than the harmless ones differ, naming them.
    """
    before, now = flat(before), flat(now)
    before.setdefault(
        "precision", now.get("precision")
    )  # of runs that did not write it their checkpoints tell it
    free = MAY_CHANGE if now.get("deterministic") else MAY_CHANGE | CHANGES_ROUNDING_ONLY
    changed = [k for k in sorted({*before, *now} - free) if before.get(k) != now.get(k)]
    if changed:
        which = ", ".join(f"{k} was {before.get(k)} and is now {now.get(k)}" for k in changed)
        raise ValueError(
            f"a resumed run keeps its options, but {which}: leave these flags away, or start another run"
        )
