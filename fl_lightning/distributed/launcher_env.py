"""What launchers tell a process by its environment."""

import os

from lightning.fabric.utilities.rank_zero import rank_zero_only


def under_fabric_run() -> bool:
    """Whether this process was started by `fabric run`, which gives Fabric its options itself."""
    return os.environ.get("LT_CLI_USED") == "1"


def precision_of_fabric_run() -> str:
    """The precision that `fabric run` was told, or its default, by its long name."""
    told = os.environ.get("LT_PRECISION") or "32-true"
    return {"32": "32-true", "bf16": "bf16-mixed"}.get(told, told)


def is_first_rank() -> bool:
    """Whether this process is the first rank of the run, which launchers say before there is a Fabric."""
    return getattr(rank_zero_only, "rank", 0) == 0
