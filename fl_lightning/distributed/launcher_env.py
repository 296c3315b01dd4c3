"""Environment variables that launchers set for a process."""

import os


def under_fabric_run() -> bool:
    """Whether `fabric run`, which gives Fabric its options itself, started this process."""
    return os.environ.get("LT_CLI_USED") == "1"


def is_first_rank() -> bool:
    """Whether this process is the first rank; launchers say so before there is a Fabric."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only  # imports for seconds

    return getattr(rank_zero_only, "rank", 0) == 0
