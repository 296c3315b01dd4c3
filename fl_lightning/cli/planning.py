"""Experiments that recipes make, collected instead of run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fl_lightning.cli.recipes import run_recipe

_PLANNED: ContextVar[list[Any] | None] = ContextVar("_PLANNED", default=None)


@contextmanager
def planning() -> Iterator[list[Any]]:
    """Collect the experiments that a recipe makes in this context instead of running them."""
    planned: list[Any] = []
    token = _PLANNED.set(planned)
    try:
        yield planned
    finally:
        _PLANNED.reset(token)


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
    with planning() as planned:
        run_recipe(recipe, argv)
    if not planned:
        raise ValueError(f"{recipe} makes no experiment: name a recipe that trains clients")
    return planned[0]
