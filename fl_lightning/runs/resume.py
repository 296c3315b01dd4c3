"""What a resumed run may change of its options."""

from collections.abc import Mapping
from typing import Any

from fl_lightning.cli.config_files import flat

HARMLESS = frozenset(
    {
        "rounds",
        "evaluate_every",
        "personalise",
        "finetune_lr",
        "data_dir",
        "checkpoint_every",
        "keep_checkpoints",
        "state_memory",
        "on_divergence",
    }
)
"""Options that may change between a run and its resumption: they do not change what a finite round computes."""


ROUNDING = frozenset({"executor", "width", "compile"})
"""Options that change its last bits alone, which only a deterministic run must keep."""


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the options of a run, as YAML holds them, with those of its resumption.

    Raises:
        ValueError: If others than the harmless ones differ, naming them.
    """
    before, now = flat(before), flat(now)
    before.setdefault("precision", now.get("precision"))  # of runs that did not write it their checkpoints tell it
    free = HARMLESS if now.get("deterministic") else HARMLESS | ROUNDING
    changed = [k for k in sorted({*before, *now} - free) if before.get(k) != now.get(k)]
    if changed:
        which = ", ".join(f"{k} was {before.get(k)} and is now {now.get(k)}" for k in changed)
        raise ValueError(f"a resumed run keeps its options, but {which}: leave these flags away, or start another run")
