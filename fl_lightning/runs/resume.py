"""Options that a resumed run may change."""

from collections.abc import Mapping
from typing import Any

from fl_lightning.runs.config_yaml import flat

MAY_CHANGE = frozenset(
    [
        "rounds",
        "evaluate_every",
        "finetune_epochs",
        "finetune_lr",
        "measure",
        "measure_every",
        "measure_client",
        "measure_rho",
        "measure_samples",
        "data_dir",
        "checkpoint_every",
        "keep_checkpoints",
        "client_state_memory",
        "on_divergence",
        "callback",
        "early_stopping",
        "logger",
    ]
)
"""Options that do not change the numbers of a finite round, with the options of their own."""


CHANGES_ROUNDING_ONLY = frozenset({"executor", "parallel_clients", "compile"})
"""Options that change only the last bits, which a deterministic run must keep."""


def check_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the options of a run with those of its resumption, both as YAML holds them.

    Raises:
        ValueError: If options differ that may not change, naming them.
    """
    before, now = flat(before), flat(now)
    free = MAY_CHANGE if now.get("deterministic") else MAY_CHANGE | CHANGES_ROUNDING_ONLY
    fixed = [k for k in sorted({*before, *now}) if k.partition(".")[0] not in free]
    changed = [k for k in fixed if before.get(k) != now.get(k)]
    if changed:
        which = ", ".join(f"{k} was {before.get(k)} and is now {now.get(k)}" for k in changed)
        raise ValueError(
            f"a resumed run keeps its options, but {which}: omit these flags, or start another run"
        )
