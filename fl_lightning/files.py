"""Files that are written whole or not at all. Imports nothing of the package."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Write a file aside, put it on disk and rename it. One process writes a path at a time.

    Texts are in UTF-8, with the ends of lines as they are. A folder that is missing is made.

    Raises:
        OSError: With the file's name, also where `torch.save` hides it in a RuntimeError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.part")
    try:
        newline, encoding = (None, None) if "b" in mode else ("", "utf-8")
        with aside.open(mode, newline=newline, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync(path.parent)
    except (OSError, RuntimeError) as error:
        reason: BaseException | None = error
        while reason is not None and not isinstance(reason, OSError):
            reason = reason.__cause__ or reason.__context__
        if reason is None or reason.filename:
            raise
        raise OSError(reason.errno, reason.strerror, str(path)) from error
    finally:
        aside.unlink(missing_ok=True)  # after an error


def sync(path: Path) -> None:
    """Put a file on disk, or the names in a folder."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
