"""YAML files of options."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.cli.error_messages import exit_with_error
from fl_lightning.runs.config_yaml import flat, load


def read_files(
    files: Sequence[str], tables: Collection[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The options of the files, later ones winning, and their tables of options by choice."""
    merged: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {table: {} for table in tables}
    for file in files:
        try:
            read = load(Path(file).read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            exit_with_error(f"cannot read the configuration {file}: {' '.join(str(error).split())}")
        read = {} if read is None else read
        if not isinstance(read, dict):
            exit_with_error(
                f"the configuration {file} must map names to values, like `rounds: 100`"
            )
        for table, rows in found.items():
            more = read.pop(table, None)
            if not isinstance(more, Mapping | None):
                exit_with_error(
                    f"the configuration {file} must map names to options under {table}, but has {more!r}"
                )
            rows.update(more or {})
        try:
            options = flat({str(key): value for key, value in read.items()})
        except ValueError as error:
            exit_with_error(f"the configuration {file} {error}")
        for key in [key for key in options if key in merged and merged[key] != options[key]]:
            # another function of a part: what earlier files said of the first one is no more
            merged = {k: v for k, v in merged.items() if not k.startswith(f"{key}.")}
        merged.update(options)
    return merged, found
