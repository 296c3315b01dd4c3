"""A term with a mistake in one of its hooks."""

from collections.abc import Callable
from typing import Any

from problems import term
from torch import Tensor

from fl_lightning import Term, zeros


def in_gradient(mistake: Callable[[Tensor, Any], Any]) -> Callable[..., Any]:
    return lambda self, oracle, w, v: mistake(oracle(w), v)


def mistaken(hook: str, code: Callable[..., Any]) -> Term:
    states = {"client": {"c_i": zeros}, "server": {"c": zeros}, "local": {"e": zeros}}
    return term("Mistaken", **states, **{hook: code}, draws=True)
