"""Experiments that recipes make, collected instead of run."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from contextvars import ContextVar
from typing import Any

from fl_lightning.cli.recipes import run_recipe

_PLANNED: ContextVar[list[Any] | None] = ContextVar("_PLANNED", default=None)


def is_planned(experiment: Any) -> bool:
    """Whether an experiment that is to run was collected instead."""
    planned = _PLANNED.get()
    if planned is not None:
        planned.append(experiment)
    return planned is not None


def experiment_of(recipe: str, argv: Sequence[str]) -> Any:
    """The `Experiment` that `fl-lightning run RECIPE ARGV...` would run.

    Args:
        recipe: The name of an installed recipe, or a file.
        argv: Its options.

    Raises:
        ValueError: If the recipe makes no experiment.
    """
    planned: list[Any] = []
    before, token = (sys.argv, list(sys.path)), _PLANNED.set(planned)
    try:
        with redirect_stdout(None):
            run_recipe(recipe, argv)
    finally:
        _PLANNED.reset(token)
        sys.argv, sys.path[:] = before
    if not planned:
        raise ValueError(f"{recipe} makes no experiment: name a recipe that trains clients")
    return planned[0]
