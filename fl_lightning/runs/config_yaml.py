"""Options in YAML 1.2: each key once, and nested options as flat ones."""

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any

import yaml

from fl_lightning.errors import UserError


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key given twice, of which PyYAML silently takes the last value.

    Words that are no text are those of YAML 1.2: for PyYAML `yes` is true, `1:30` is 90, `010` is 8
    and `1e-3` is text.
    """

    yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}

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

    def construct_number(self, node: yaml.ScalarNode) -> float:
        """A number as Python reads it, without YAML 1.1's octal and sexagesimal ones."""
        word = re.sub(r"\.(?=inf|nan)", "", node.value.lower())
        try:
            return int(word, 0 if word.startswith(("0o", "0x")) else 10)
        except ValueError:
            return float(word)


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes text which the loader would read as something else."""


for _tag, _words in {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?\d+|0o[0-7]+|0x[\da-fA-F]+",
    "float": r"[-+]?((\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)",
}.items():
    _tag = f"tag:yaml.org,2002:{_tag}"
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"({_words})$"), None)
for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)


def load(text: str) -> Any:
    """Parse YAML.

    Raises:
        ValueError: If the text is not YAML, is nested too deeply, or a mapping has a key twice.
    """
    return deepcopy(_parse(text))


@lru_cache(8)  # a table reads the same files for every run that it plans
def _parse(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(" ".join(str(error).split())) from None
    except RecursionError:
        raise UserError("it is nested too deeply") from None
    except (KeyError, AttributeError) as error:  # of PyYAML, for `!!bool maybe` and the like
        raise UserError(f"a tag does not fit its value ({error})") from None


def dump(content: Any) -> str:
    """The YAML of plain values."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


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
                raise UserError(
                    f"names {option} twice, once under {option.partition('.')[0]} and once in full"
                )
            result[option] = inner
    if result.get("executor") == "auto":  # of older runs; on a CPU it was the sequential one
        result["executor"] = "sequential"
    return result
