"""YAML files of options."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.cli.recipes import preset
from fl_lightning.runs.config_yaml import flat, load


def read_files(
    files: Sequence[str], tables: Collection[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read options from files or installed presets; later files win.

    Returns:
        The options, and the rows of each table by name.
    """
    merged: dict[str, Any] = {}
    rows: dict[str, dict[str, Any]] = {table: {} for table in tables}
    for file in files:
        content = _read(file)
        for table in tables:
            more = content.pop(table, None)
            if not isinstance(more, Mapping | None):
                exit_with_error(f"{file} maps names to options under {table}, not {more!r}")
            rows[table].update(more or {})
        try:
            options = flat({str(key): value for key, value in content.items()})
        except ValueError as error:
            exit_with_error(f"the configuration {file} {error}")
        for key in [key for key in options if key in merged and merged[key] != options[key]]:
            # another function: the options that earlier files have for the first one are void
            merged = {k: v for k, v in merged.items() if not k.startswith(f"{key}.")}
        merged.update(options)
    return merged, rows


def _read(file: str) -> dict[Any, Any]:
    try:
        content = load(preset(file).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        exit_with_error(f"cannot read the configuration {file}: {' '.join(str(error).split())}")
    content = {} if content is None else content
    if not isinstance(content, dict):
        exit_with_error(f"the configuration {file} must map names to values, like `rounds: 100`")
    return content
