"""What a user is told when something does not fit: one sentence."""

import os
import re
import sys
from typing import NoReturn

from fl_lightning.distributed.resources import is_first_rank


def fail(sentence: str, alone: bool = False) -> NoReturn:
    """Leave with one sentence and exit code 2; of several ranks only the first speaks, unless one failed alone."""
    another_console = os.environ.get("LOCAL_RANK") == "0"  # torchrun's on each machine; SLURM has one for all
    if alone or is_first_rank() or another_console:
        print(f"error: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error's message, without its full stop: PyTorch's messages go on for many lines."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.split(r"\.\s+(?=[A-Z])", first_line)[0].rstrip(". ")
