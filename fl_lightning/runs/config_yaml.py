"""Options in YAML: each key once, and nested options as flat ones."""

from collections.abc import Mapping
from typing import Any

import yaml


class _EachKeyOnce(yaml.SafeLoader):
    """A loader that refuses a key given twice, of which PyYAML silently takes the last value."""

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
    """Parse YAML.

    Raises:
        yaml.YAMLError: If the text is not YAML, or a mapping has a key twice.
    """
    return yaml.load(text, Loader=_EachKeyOnce)


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten `{"algorithm": {"name": "fedsam", "rho": 0.1}}`.

    Returns:
        `{"algorithm": "fedsam", "algorithm.rho": 0.1}`.

    Raises:
        ValueError: If an option is there in both spellings.
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
