"""What a user is told when something does not fit: one sentence."""

import os
import sys
from typing import NoReturn

from fl_lightning.distributed.launcher_env import is_first_rank


def fail(sentence: str, alone: bool = False) -> NoReturn:
    """Leave with one sentence and exit code 2; of several ranks only the first speaks, unless one failed alone."""
    another_console = os.environ.get("LOCAL_RANK") == "0"  # torchrun's on each machine; SLURM has one for all
    if alone or is_first_rank() or another_console:
        print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(2)
