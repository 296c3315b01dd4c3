"""User-defined callbacks, checked: an error names the callback and the hook."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from textwrap import shorten
from typing import Any

HOOKS = {
    "on_fit_start": ("federation",),
    "on_round_start": ("federation", "cohort"),
    "on_client_end": ("federation", "client", "outcome"),
    "on_round_end": ("federation", "metrics"),
    "on_last_round_end": ("federation", "metrics"),
    "on_round_logged": ("federation", "metrics"),
    "on_fit_end": ("federation",),
}
"""The hooks of a callback, and the names of their arguments."""


class CheckedCallback:
    """The hooks of a user-defined callback; their errors name the callback and the hook.

    Args:
        callback: Any object with at least one of the hooks.

    Raises:
        ValueError: If it has no hook, or one with other arguments.
    """

    def __init__(self, callback: Any):
        hooks = {name: hook for name in HOOKS if callable(hook := getattr(callback, name, None))}
        if not hooks or isinstance(callback, type):
            raise ValueError(
                f"a callback is an object with one of the methods {', '.join(HOOKS)}, "
                f"not {callback!r}"
            )
        for name, hook in hooks.items():
            where = f"{type(callback).__name__}.{name}"
            needed = {
                p.name
                for p in signature(hook).parameters.values()
                if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            }
            if other := sorted(needed.difference(HOOKS[name])):
                raise ValueError(
                    f"{where} asks for {', '.join(other)}, but is called "
                    f"by name with {' and '.join(HOOKS[name])}"
                )
            setattr(self, name, _blaming(where, hook))


def _blaming(where: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(hook)
    def called(**arguments: Any) -> None:
        try:
            hook(**arguments)
            _check_numbers(arguments.get("metrics", {}))
        except Exception as error:
            error.add_note(f"raised in {where}")
            raise

    return called


def _check_numbers(metrics: dict[str, Any]) -> None:
    """Convert every scalar of a round to float."""
    for tag, value in metrics.items():
        try:
            metrics[tag] = float(value)
        except (TypeError, ValueError, RuntimeError):
            shown = shorten(repr(value), 80)
            raise ValueError(f"metrics[{tag!r}] is to be one number, not {shown}") from None
    if "round" in metrics:
        raise ValueError(
            "metrics['round'] is the number of the round in metrics.csv: choose another name"
        )
