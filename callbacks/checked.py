"""Callbacks of the user, checked: what they raise names the callback and the hook."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from textwrap import shorten
from typing import Any

HOOKS = {
    "on_fit_start": ("federation",),
    "on_round_end": ("federation", "metrics"),
    "on_round_logged": ("federation", "metrics"),
    "on_fit_end": ("federation",),
}
"""The hooks of a callback, and what each is called with, by name."""


OPEN = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
"""Parameters that take what there is."""


class CheckedCallback:
    """A callback of the user's: what it raises says which callback and which hook it was.

    Raises:
        ValueError: If it has no hook, or one that cannot be called.
    """

    def __init__(self, callback: Any):
        self._callback = callback
        hooks = {name: hook for name in HOOKS if callable(hook := getattr(callback, name, None))}
        if not hooks or isinstance(callback, type):
            raise ValueError(
                f"a callback is an object with one of the methods {', '.join(HOOKS)}, not {callback!r}"
            )
        for name, hook in hooks.items():
            needed = {
                p.name
                for p in signature(hook).parameters.values()
                if p.default is p.empty and p.kind not in OPEN
            }
            if other := sorted(needed.difference(HOOKS[name])):
                raise ValueError(
                    f"{type(callback).__name__}.{name} asks for {', '.join(other)}, but is called by name with "
                    f"{' and '.join(HOOKS[name])}"
                )

    def __getattr__(self, name: str) -> Any:
        hook = getattr(self._callback, name)
        return _blaming(f"{type(self._callback).__name__}.{name}", hook) if callable(hook) else hook


def _blaming(where: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = function(*args, **kwargs)
            _check_numbers(kwargs.get("metrics", {}))
            return returned
        except Exception as error:
            error.add_note(f"raised in {where}")
            raise

    return called


def _check_numbers(metrics: dict[str, Any]) -> None:
    """Let every scalar of a round be a float.

    Raises:
        ValueError: If one is none, or takes the table's column of rounds.
    """
    for tag, value in metrics.items():
        try:
            metrics[tag] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"metrics[{tag!r}] is to be one number, not {shorten(repr(value), 80)}"
            ) from None
    if "round" in metrics:
        raise ValueError(
            "metrics['round'] is the number of the round in metrics.csv: choose another name"
        )
