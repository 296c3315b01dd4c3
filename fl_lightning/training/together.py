"""Several runs whose clients train as one program."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any

from fl_lightning.algorithms import modifiers
from fl_lightning.errors import UserError
from fl_lightning.federation.lockstep import ProgramError, Turn, run_in_lockstep
from fl_lightning.runs.config import Config
from fl_lightning.training.session import Parts, Session

OF_METHOD = "algorithm", *modifiers.PARTS, "clip_norm"
"""Options that decide the program of a local step."""


def refusal(config: Config) -> str:
    """Why a run of these options cannot train as one program with others; empty if it may."""
    if config["deterministic"]:
        return "deterministic runs train alone"
    if config["executor"] in ("sequential", "branches"):
        return f"executor {config['executor']} trains no clients as one program"
    return ""


def check_options(configs: Sequence[Config]) -> None:
    """Raise a UserError unless runs of these options may train as one program.

    It names the option and both values.
    """
    for config in configs:
        if why := refusal(config):
            raise ProgramError(f"{why}: leave it out to fit runs together")
        for name in sorted({*config.program(), *configs[0].program()}):
            if config.get(name) != configs[0].get(name):
                raise ProgramError(
                    f"runs cannot train as one program with {name} {configs[0].get(name)} and "
                    f"{config.get(name)}: fit them apart"
                )


def _naming_options(error: UserError, configs: Sequence[Config]) -> ProgramError:
    """The error with the options of the method that differ."""
    first = configs[0]
    differing = {
        name
        for config in configs
        for name in first.keys() | config.keys()
        if name.partition(".")[0] in OF_METHOD and first.get(name) != config.get(name)
    }
    which = f" with different {', '.join(sorted(differing))}" if differing else ""
    return ProgramError(f"runs cannot train as one program{which}: {error}")


def fit_together(
    runs: Sequence[tuple[Session, Callable[[], Parts]]],
    within: Sequence[Callable[[], AbstractContextManager[Any]]] = (),
) -> list[BaseException | None]:
    """Train several runs, whose clients train as one program; returns what each has raised.

    Args:
        runs: The sessions, and what makes their parts.
        within: Makes the context that each run's code runs in; by default the first run prints.

    Raises:
        UserError: If their options do not allow it.
    """
    sessions = [session for session, _ in runs]
    configs = [session.config for session in sessions]
    check_options(configs)
    folders = [session.options.run_dir for session in sessions if session.options.run_dir]
    if twice := next((folder for folder in folders if folders.count(folder) > 1), None):
        raise UserError(f"two runs have the folder {twice}: give each a run_dir of its own")
    for session in sessions:
        o = session.options
        session.options = replace(o, executor="stacked", parallel_clients=o.width)
        session.lockstep = True
    contexts = within or [nullcontext, *[partial(redirect_stdout, StringIO())] * (len(runs) - 1)]
    turns = [
        Turn(partial(session.fit, make), context)
        for (session, make), context in zip(runs, contexts, strict=True)
    ]
    run_in_lockstep(turns)
    errors = [turn.error for turn in turns]
    for error in errors:
        if isinstance(error, ProgramError):
            raise _naming_options(error, configs)
    return errors
