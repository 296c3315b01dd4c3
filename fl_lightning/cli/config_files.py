"""YAML files of options."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.sentences import fail


class _EachKeyOnce(yaml.SafeLoader):
    """PyYAML's, which of a key that stands twice in a mapping would take the last value without a word."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, lines = super().compose_mapping_node(anchor), dict[tuple[str, str], int]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line, which = key.start_mark.line + 1, (key.tag, key.value)
            if which in lines and key.value != "<<":  # mappings may be merged from several others
                raise yaml.YAMLError(f"{key.value!r} stands there twice, in lines {lines[which]} and {line}")
            lines[which] = line
        return node


def load(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: If it is none, or a key stands twice in a mapping.
    """
    return yaml.load(text, Loader=_EachKeyOnce)


def read_files(files: Sequence[str], tables: Collection[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The options of the files, later ones winning, and their tables of options by choice."""
    merged: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {table: {} for table in tables}
    for file in files:
        try:
            read = load(Path(file).read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            fail(f"cannot read the configuration {file}: {' '.join(str(error).split())}")
        read = {} if read is None else read
        if not isinstance(read, dict):
            fail(f"the configuration {file} must map names to values, like `rounds: 100`")
        for table, rows in found.items():
            more = read.pop(table, None)
            if not isinstance(more, Mapping | None):
                fail(f"the configuration {file} must map names to options under {table}, but has {more!r}")
            rows.update(more or {})
        try:
            options = flat({str(key): value for key, value in read.items()})
        except ValueError as error:
            fail(f"the configuration {file} {error}")
        for key in [key for key in options if key in merged and merged[key] != options[key]]:
            # another function of a part: what earlier files said of the first one is no more
            merged = {k: v for k, v in merged.items() if not k.startswith(f"{key}.")}
        merged.update(options)
    return merged, found


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """`{"algorithm": {"name": "fedsam", "rho": 0.1}}` as `{"algorithm": "fedsam", "algorithm.rho": 0.1}`.

    Raises:
        ValueError: If both spellings are there, for one option.
    """
    result: dict[str, Any] = {}
    for key, value in nested.items():
        for name, inner in value.items() if isinstance(value, Mapping) else [("name", value)]:
            option = key if name == "name" else f"{key}.{name}"
            if option in result:
                raise ValueError(f"names {option} twice, once under {option.partition('.')[0]} and once in full")
            result[option] = inner
    return result
