"""Options on disk: YAML with each key once, and nested options as flat ones."""

from collections.abc import Mapping
from typing import Any

import yaml


class _EachKeyOnce(yaml.SafeLoader):
    """PyYAML's, which of a key that stands twice in a mapping would take the last value without a word."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node, lines = super().compose_mapping_node(anchor), dict[tuple[str, str], int]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line, which = key.start_mark.line + 1, (key.tag, key.value)
            if which in lines and key.value != "<<":  # mappings may be merged from several others
                raise yaml.YAMLError(
                    f"{key.value!r} stands there twice, in lines {lines[which]} and {line}"
                )
            lines[which] = line
        return node


def load(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: If it is none, or a key stands twice in a mapping.
    """
    return yaml.load(text, Loader=_EachKeyOnce)


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
                raise ValueError(
                    f"names {option} twice, once under {option.partition('.')[0]} and once in full"
                )
            result[option] = inner
    return result
