"""The user's code that a run uses: its files, their copies in the run's folder, and a digest."""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType

OWN = "own"
"""The folder of the copies, in the folder of the run."""


def copies(files: Iterable[Path]) -> dict[Path, Path]:
    """User-defined files, and the modules beside them that they import, by the paths of the copies.

    The paths are relative to the run's folder, and sorted.
    """
    found = {
        copy_of(file).parent / part: place for file in files for part, place in _parts(file).items()
    }
    return dict(sorted(found.items()))


def copy_of(file: Path) -> Path:
    """Where the copy of a user-defined file lies in the folder of a run."""
    return Path(OWN, str(file.parent).strip("/.").replace("/", "_"), file.name)


def digest(files: Mapping[Path, Path]) -> str:
    """A short digest of the contents of files, in the order of their copies' paths."""
    content = b"".join(file.read_bytes() for _, file in sorted(files.items()))
    return sha256(content).hexdigest()[:8]


def imports(file: Path, module: ModuleType) -> bool:
    """Whether a module is the user's: below the folder of a file, and imported by it."""
    place = Path(getattr(module, "__file__", None) or "/")
    if module.__name__.startswith("fl_lightning.") or file.resolve().parent not in place.parents:
        return False  # without a look at what the file imports
    return place in _parts(file).values()


def _parts(file: Path) -> dict[Path, Path]:
    """The file and the modules below its folder that it imports, by paths relative to the folder.

    Of a link to a file it is the folder of that file, as for Python.
    """
    script = file.resolve()
    folder, found, new = script.parent, {script}, {script}
    while new:
        new = {module for of in new for module in _imported(of, folder)} - found
        found |= new
    return {Path(file.name): file} | {m.relative_to(folder): m for m in found - {script}}


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """The modules below a folder that a file imports, and the packages that they are in."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:  # of another Python, which a `try` may import
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                start, dotted = folder, [alias.name for alias in names]
            case ast.ImportFrom(module, names, level):
                start = file.parents[:level][-1] if level else folder
                dotted = [f"{module or ''}.{alias.name}".strip(".") for alias in names]
            case _:
                continue
        for words in (name.split(".") for name in dotted):
            if words[0] == "fl_lightning":  # a file of the user may lie beside it in a clone
                continue
            for place in (start.joinpath(*words[: k + 1]) for k in range(len(words))):
                either = place / "__init__.py", place.with_suffix(".py")
                yield from [f for f in either if f.is_file() and f.is_relative_to(folder)][:1]


_searched = set[Path]()
"""The folders of user-defined files so far."""


def search_first(folder: Path) -> None:
    """Let a user's file import modules beside it, and none of equal name beside an earlier file."""
    others, tops = _searched - {folder}, [name for name in sys.modules if "." not in name]
    foreign = {name for name in tops if others & {*_places(sys.modules[name])}}
    for name in [*sys.modules]:
        if name.partition(".")[0] in foreign - {"__main__", "fl_lightning"}:
            del sys.modules[name]
    _searched.add(folder)
    sys.path.insert(0, str(folder))


def _places(module: ModuleType) -> list[Path]:
    """The folders in which a module or package lies, which has no file without `__init__.py`."""
    files = getattr(module, "__path__", None) or [getattr(module, "__file__", None)]
    return [Path(file).parent for file in files if file]
