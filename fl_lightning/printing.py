"""Printing where characters, outputs or readers are missing. Imports nothing of the package."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from signal import SIGPIPE


def print_any_character() -> None:
    """Let `print` write escapes in place of characters that the output's encoding lacks."""
    if isinstance(sys.stdout, TextIOWrapper):  # a notebook has another, a daemon none
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def ending_with_reader() -> Iterator[None]:
    """Leave in silence, as shells report SIGPIPE, once nothing reads the output: under `| head`."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:  # the interpreter would flush again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + SIGPIPE) from None
