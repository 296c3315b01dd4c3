"""Runs of a table whose clients train as one program."""

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache, partial
from typing import TextIO

from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.cli.recipes import experiment_of
from fl_lightning.distributed.signals import EXIT_PREEMPTED
from fl_lightning.errors import ModelError, TermError, UserError
from fl_lightning.federation.lockstep import ProgramError
from fl_lightning.lab.sweep.plan import Job
from fl_lightning.training.together import fit_together

Stack = Sequence[Job]
"""Runs that one process makes: one, or several as one program."""


REFUSALS = ProgramError, ModelError, TermError
"""Errors of runs that train as one program; most of these runs can train alone."""


def unfinished(stack: Stack) -> list[Job]:
    """The runs that are missing, or have begun."""
    return [job for job in stack if job.state != "finished"]


def stacked(jobs: Sequence[Job], most: int) -> list[Stack]:
    """The runs in stacks of at most so many, in the order of their first ones."""
    alike, stacks = dict[str, list[Job]](), list[Stack]()
    for job in jobs:
        stack = alike.get(job.program, [])
        if not job.program or len(stack) in (0, most):
            stack = []
            stacks.append(stack)
            alike[job.program] = stack
        stack.append(job)
    return stacks


def sentence(stacks: Sequence[Stack]) -> str:
    """How many runs train together, and how many alone."""
    sizes = [len(unfinished(stack)) for stack in stacks]
    together = [size for size in sizes if size > 1]
    stacked = f"{sum(together)} runs train in {len(together)} stacks" if together else "no stacks"
    return f"{stacked}, {sizes.count(1)} train alone: runs of a stack differ in numbers alone"


def run_stack(jobs: Stack, logs: Sequence[TextIO]) -> int:
    """Begin or resume the runs in this process, each with its own log; gives the exit code.

    Another table may have finished some while this one waited for their logs: these stay as they
    are. Runs that cannot train as one program train one after another; their logs say why.
    """
    left = [(job, log) for job, log in zip(jobs, logs, strict=True) if job.state != "finished"]
    if len(left) < 2:
        for job, log in left:
            with _as_command(sys.argv, log):
                return _code(job.run)
        return 0
    jobs, logs = zip(*left, strict=True)
    sys.path.insert(0, str(jobs[0].recipe.parent))  # as if the recipe were run
    recipe, commands = str(jobs[0].recipe), [job.command() for job in jobs]
    experiments = [experiment_of(recipe, command) for command in commands]
    first, load = experiments[0], cache(experiments[0].load)  # equal data are held once
    for experiment in experiments:
        if experiment.options.data_dir == first.options.data_dir:
            experiment.load = load
    argvs = [[recipe, *command] for command in commands]
    contexts = [partial(_as_command, *own) for own in zip(argvs, logs, strict=True)]
    runs = [(experiment.session(), experiment.parts) for experiment in experiments]
    errors: Sequence[BaseException | None]
    try:
        for job, experiment in zip(jobs, experiments, strict=True):
            job.check(experiment.config)
        errors = fit_together(runs, contexts)
    except UserError as refused:
        errors = [refused] * len(jobs)
    codes = list[int]()
    for job, error, context in zip(jobs, errors, contexts, strict=True):
        with context():
            if isinstance(error, REFUSALS):
                print(f"{error}; this run trains alone", flush=True)
                codes.append(_code(job.run))
            elif error is not None:
                codes.append(_code(partial(_raise, error)))
    return EXIT_PREEMPTED if EXIT_PREEMPTED in codes else int(any(codes))


def _code(run: Callable[[], None]) -> int:
    """The exit code of a function, whose error is printed."""
    try:
        with exit_with_message():
            run()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        traceback.print_exc()
        # the table shows the last line, which may be a note of the error
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _raise(error: BaseException) -> None:
    raise error


@contextmanager
def _as_command(argv: list[str], log: TextIO) -> Iterator[None]:
    """Print to a log, under the name of a command of its own."""
    before, sys.argv = sys.argv, argv
    try:
        with redirect_stdout(log), redirect_stderr(log):
            yield
    finally:
        sys.argv = before
