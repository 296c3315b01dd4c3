"""The user's code that a run uses: its files, their copies in the run's folder, and a digest."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from modulefinder import ModuleFinder
from pathlib import Path

OWN = "own"
"""The folder of the copies, in the folder of the run."""


def copies(files: Iterable[Path]) -> dict[Path, Path]:
    """User-defined files, and the modules beside them that they import, by the paths of the copies.

    The paths are relative to the run's folder, and sorted.
    """
    found = {
        copy_of(file).parent / part: file.parent / part for file in files for part in _parts(file)
    }
    return dict(sorted(found.items()))


def copy_of(file: Path) -> Path:
    """Where the copy of a user-defined file lies in the folder of a run."""
    return Path(OWN, str(file.parent).strip("/.").replace("/", "_"), file.name)


def digest(files: Mapping[Path, Path]) -> str:
    """A short digest of the contents of files, in the order of their copies' paths."""
    content = b"".join(file.read_bytes() for _, file in sorted(files.items()))
    return sha256(content).hexdigest()[:8]


def _parts(file: Path) -> list[Path]:
    """The file and the modules below its folder that it imports, relative to the folder."""
    folder = file.resolve().parent
    finder = ModuleFinder(path=[str(folder)], excludes=["fl_lightning"])
    finder.run_script(str(folder / file.name))
    found = (getattr(module, "__file__", None) for module in finder.modules.values())
    return sorted(Path(path).relative_to(folder) for path in found if path)
