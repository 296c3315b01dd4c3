"""Sentences of the parts that runs share, which name flags, in words of FederatedTrainer."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import split

from fl_lightning.errors import UserError

CONTINUE = re.compile(r"--run-dir ('.*'|\S+) --resume")
NO_FLAG = r"(?<!tensorboard )(?<!srun )(?<![\w./-])"  # of another program; in a name
FLAG = re.compile(NO_FLAG + r"--(?:[a-z]+\.)?([a-z][a-z-]*)(?: (\d+(?:[.,]\d+)*)(?![\w-]))?")


def as_arguments(sentence: str) -> str:
    """The sentence with arguments in the place of flags.

    Example:
        >>> as_arguments("use --batch-size 5, or add --resume")
        'use batch_size=5, or add fit(..., resume=True)'
        >>> as_arguments("srun --ntasks 2 in my--run")
        'srun --ntasks 2 in my--run'
    """
    named = CONTINUE.sub(lambda found: f'run_dir="{split(found[1])[0]}" and --resume', sentence)
    return FLAG.sub(_argument, named)


def _argument(flag: re.Match[str]) -> str:
    name, value = flag[1].replace("-", "_"), flag[2]
    if name == "resume":
        return "fit(..., resume=True)"
    if value and "," in value:
        return f"{name}=[{value.replace(',', ', ')}]"
    return f"{name}={value}" if value else name


@contextmanager
def speaking_of_arguments() -> Iterator[None]:
    """Let a UserError name arguments in the place of flags."""
    try:
        yield
    except UserError as error:
        error.args = (as_arguments(str(error)),)
        if notes := getattr(error, "__notes__", []):
            notes[:] = map(as_arguments, notes)
        raise
