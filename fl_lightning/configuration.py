"""YAML files of options."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.sentences import fail


def read_files(files: Sequence[str], tables: Collection[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The options of the files, later ones winning, and their tables of options by choice."""
    merged: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {table: {} for table in tables}
    for file in files:
        try:
            read = yaml.safe_load(Path(file).read_text()) or {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            fail(f"cannot read the configuration {file}: {' '.join(str(error).split())}")
        if not isinstance(read, dict):
            fail(f"the configuration {file} must map names to values, like `rounds: 100`")
        for table, rows in found.items():
            more = read.pop(table, None) or {}
            if not isinstance(more, Mapping):
                fail(f"the configuration {file} must map names to options under {table}, but has {more!r}")
            rows.update(more)
        options = flat({str(key): value for key, value in read.items()})
        for key in [key for key in options if key in merged and merged[key] != options[key]]:
            # another function of a part: what earlier files said of the first one is no more
            merged = {k: v for k, v in merged.items() if not k.startswith(f"{key}.")}
        merged.update(options)
    return merged, found


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """`{"algorithm": {"name": "fedsam", "rho": 0.1}}` as `{"algorithm": "fedsam", "algorithm.rho": 0.1}`."""
    result: dict[str, Any] = {}
    for key, value in nested.items():
        inner = value.items() if isinstance(value, Mapping) else [("name", value)]
        result.update({key if name == "name" else f"{key}.{name}": v for name, v in inner})
    return result
