"""YAML files of options."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fl_lightning.cli.recipes import preset, presets
from fl_lightning.errors import UserError, nearest
from fl_lightning.runs.config import flat, load

TABLE_KEYS = frozenset(
    "recipe rows columns sweep tune tune_seeds seeds score spread over means published".split()  # noqa: SIM905
)
"""Keys that describe a table (`fl-lightning table`), and no single run."""


def read_files(files: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read options from files or installed presets; later files win.

    Returns:
        The options, and further ones by method, which count if it is the chosen one:
        `methods: {fedsam: {rho: 0.01, lr_decay: 0.998}}`.
    """
    merged: dict[str, Any] = {}
    methods: dict[str, Any] = {}
    for content in (content for file in files for content in read_chain(file)):
        file = content.pop("file")
        for key in TABLE_KEYS:
            content.pop(key, None)
        more = content.pop("methods", None)
        if not isinstance(more, Mapping | None):
            raise UserError(f"{file} maps names to options under methods, not {more!r}")
        methods |= more or {}
        try:
            options = flat({str(key): value for key, value in content.items()})
        except ValueError as error:
            raise UserError(f"the configuration {file} {error}") from None
        if str(options.get("data")).lower().endswith(".csv"):  # the file itself names the source
            options |= {"data": "table", "data.file": options["data"]}
        for key in [key for key in options if key in merged and merged[key] != options[key]]:
            # another function: earlier files have options for the former one
            merged = {k: v for k, v in merged.items() if not k.startswith(f"{key}.")}
        merged.update(options)
    return merged, methods


def read_chain(file: str, *outer: str) -> Iterator[dict[Any, Any]]:
    """The content of the files that a file's `config` names, then its own, without that key.

    Each has its own name under `file`. `outer` are the files that led to it.
    """
    content = _read(file)
    if any(preset(file).samefile(other) for other in map(preset, outer)):
        raise UserError(f"{file} leads back to itself by `config`: {' -> '.join((*outer, file))}")
    for further in included(file, content):
        yield from read_chain(further, *outer, file)
    yield content | {"file": file}


def included(file: str, options: dict[Any, Any]) -> list[str]:
    """Remove `config` from options of a file: the presets and files that it names."""
    names = options.pop("config", None) or []
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"config in {file} is the name of a file, or a list of names, not {names}")
    return [_beside(file, name) for name in names]


def _beside(file: str, name: str) -> str:
    """The name of a preset or file that another file names, which may be its neighbor."""
    folder = preset(file).parent
    neighbors = [path for path in (folder / name, folder / f"{name}.yaml") if path.is_file()]
    return name if preset(name).is_file() or not neighbors else str(neighbors[0])


def _read(file: str) -> dict[Any, Any]:
    try:
        content = load(preset(file).read_text("utf-8"))
    except FileNotFoundError:
        near = nearest(file, presets())
        raise UserError(f"there is no file and no preset {file!r}{near}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the configuration {file}: {error}") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise UserError(f"the configuration {file} must map names to values, like `rounds: 100`")
    return content
