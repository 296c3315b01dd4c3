"""Options in YAML 1.2: each key once, and nested options as flat ones."""

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from fl_lightning.errors import UserError


def _yaml() -> Any:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = yaml.sort_base_mapping_type_on_output = yaml.allow_unicode = False
    yaml.width = 2**20  # a text is not broken into lines
    return yaml


def load(text: str) -> Any:
    """Parse YAML; a UserError if it is none, or has a key twice."""
    return deepcopy(_parse(text))


@lru_cache(256)  # a table reads the same files for every run that it plans
def _parse(text: str) -> Any:
    try:
        return _yaml().load(text)
    except MarkedYAMLError as error:
        problem, _, _ = error.problem.partition(" with value ")  # of a key that stands there twice
        raise UserError(f"line {error.problem_mark.line + 1}: {problem}") from None
    except YAMLError as error:
        raise UserError(" ".join(str(error).split())) from None


def dump(content: Any) -> str:
    """The YAML of plain values."""
    text = StringIO()
    _yaml().dump(content, text)
    return text.getvalue()


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten `{"algorithm": {"name": "fedsam", "rho": 0.1}}`.

    Returns:
        `{"algorithm": "fedsam", "algorithm.rho": 0.1}`.

    Raises:
        UserError: If an option is there in both spellings.
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
    return result
