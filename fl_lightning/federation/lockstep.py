"""Runs in lockstep: the clients of several runs train as rows of one program.

Each run is a `Turn`: its rounds, its server, its states, callbacks and files are its own. It first
asks with its prepared `Federation`, before it writes anything. Then it runs until its clients are
to be trained. When all runs wait for that, one call of a `StackedExecutor` trains the clients of
all; what differs between the runs is then a row's value: the model, the server's states, the facts
of the round, learning rates, and coefficients of the terms.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from threading import Semaphore, Thread, local
from typing import Any, NamedTuple

import torch
from torch import nn

from fl_lightning.core.curves import Curve, exponential
from fl_lightning.core.network import digest
from fl_lightning.core.programs import differing_numbers, numbers_at, numbers_of, program_of
from fl_lightning.core.vector import Layout
from fl_lightning.distributed.signals import stop_on_signals
from fl_lightning.errors import UserError, first_sentence
from fl_lightning.executors import ClientResult, ClientTask, Executor, RoundInputs, StackedExecutor
from fl_lightning.executors.local_step import try_in_parallel
from fl_lightning.federation.federation import Federation


class ProgramError(UserError):
    """Runs that cannot train as one program: what differs."""


_here = local()


def ask(request: Any) -> Any:
    """In the function of a `Turn`: wait for the program's answer to a request, while others run."""
    turn: Turn = _here.turn
    turn.asked = request
    turn._waits.release()
    return turn._resume()


class Turn:
    """A function with a thread of its own, which runs while `proceed` or `throw` is called.

    Functions take turns as coroutines do, but without `await` in each caller: one runs at a time,
    until it asks the program for something or ends. It runs in a context that `within` makes anew
    after each answer.

    Attributes:
        asked: What it asks for; None before it has begun and after it has ended.
        ended: Whether it has returned or raised.
        value: What it has returned.
        error: What it has raised.
    """

    def __init__(
        self,
        function: Callable[[], Any],
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ):
        self._function, self._within = function, within
        self._answers = SimpleQueue[tuple[Any, BaseException | None]]()
        self._waits = Semaphore(0)
        self._interrupted = self.ended = False
        self.asked: Any = None
        self.value: Any = None
        self.error: BaseException | None = None
        Thread(target=self._run, daemon=True).start()

    def throw(self, error: BaseException) -> None:
        """Raise an error where it asks for something, and run it until it asks again, or ends."""
        if self._interrupted:
            self._waits.acquire()
        if not self.ended:
            self.proceed(thrown=error)

    def proceed(self, answer: Any = None, thrown: BaseException | None = None) -> None:
        """Run it until it next asks for something, or ends; `answer` is to what it asked for."""
        self.asked, self._interrupted = None, True
        with self._within():
            self._answers.put((answer, thrown))
            self._waits.acquire()  # which Ctrl-C may interrupt
        self._interrupted = False

    def _run(self) -> None:
        _here.turn = self
        try:
            self._resume()
            self.value = self._function()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._waits.release()

    def _resume(self) -> Any:
        answer, thrown = self._answers.get()
        if thrown is not None:
            raise thrown
        return answer


class Clients(NamedTuple):
    """Clients of one run that are to be trained, as its executor gets them."""

    executor: StackedExecutor
    received: RoundInputs
    tasks: Sequence[ClientTask]

    @property
    def program(self) -> Any:
        """Equal for clients that can be rows of one program."""
        facts, received = frozenset(self.tasks[0].facts), self.received
        method = frozenset(program_of(received.algorithm).items())
        return method, received.facts["anchor"].shape, facts


class LockstepExecutor(Executor):
    """Trains the clients of a run together with the clients of other runs.

    `make` makes the executor that trains all. For the other arguments see `Executor`.
    """

    parallel = True

    def __init__(
        self,
        make: Callable[..., Executor],
        module: nn.Module,
        layout: Layout,
        **options: Any,
    ):
        super().__init__(module, layout, **options)
        executor = make(module, layout, **options)
        assert isinstance(executor, StackedExecutor)
        self.width, self.compiled, self._executor = executor.width, executor.compiled, executor

    @property
    def manner(self) -> str:
        """See `Executor`."""
        return f"{self.width} clients at a time of each run as one program"

    def try_model(self, x: Any, y: Any) -> None:
        """Raise a ModelError if the model cannot train for several runs on samples like these."""
        try_in_parallel(self, x, y, batched=True)

    def __call__(
        self, received: RoundInputs, tasks: Sequence[ClientTask]
    ) -> Sequence[ClientResult]:
        """Train the clients as soon as the other runs have got so far."""
        return ask(Clients(self._executor, received, tasks))


def run_in_lockstep(turns: Sequence[Turn]) -> None:
    """Let runs train whose executor is a `LockstepExecutor`. If one fails, the others continue."""
    with stop_on_signals(lambda: None):  # for the threads of the runs
        try:
            _run(turns)
        except BaseException as error:  # such as of Ctrl-C
            for turn in turns:
                turn.throw(error)
            raise


def _run(turns: Sequence[Turn]) -> None:
    for turn in turns:
        turn.proceed()
    going = [turn for turn in turns if not turn.ended]
    try:
        if going:
            check_one_program([turn.asked for turn in going])
    except UserError as error:
        _throw(going, error)
        return
    for turn in going:
        turn.proceed()
    while going := [turn for turn in going if not turn.ended]:
        programs = dict[Any, list[Turn]]()
        for turn in going:
            programs.setdefault(turn.asked.program, []).append(turn)
        for together in programs.values():
            try:
                answers = train([turn.asked for turn in together])
            except Exception as error:
                _throw(together, error)
                continue
            for turn in together:
                turn.proceed(answers.pop(0))


def _throw(turns: Sequence[Turn], error: Exception) -> None:
    """Raise an error in each run, which may add notes to its own."""
    if isinstance(error, torch.OutOfMemoryError):
        error.__traceback__ = None  # its frames hold the memory
    for turn in turns:
        try:
            own = copy(error)
            own.__cause__ = error  # with its traceback
        except Exception:  # a user's class that takes other arguments than it keeps
            own = error
        turn.throw(own)


def train(calls: Sequence[Clients]) -> list[list[ClientResult]]:
    """Train the clients of several runs as rows of one program; gives the results of each run."""
    algorithms = [call.received.algorithm for call in calls]
    places = differing_numbers(algorithms)
    received, tasks = list[RoundInputs](), list[ClientTask]()
    for call in calls:
        given = call.received
        numbers = numbers_at(given.algorithm, places, given.coefficients)
        received += [replace(given, coefficients=numbers)] * len(call.tasks)
        tasks += call.tasks
    device = received[0].facts["anchor"].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # a thread's own
        results = iter(calls[0].executor.train(received, tasks))
        return [list(islice(results, len(call.tasks))) for call in calls]


_SHARED: dict[str, Callable[[Federation], Any]] = {
    "the model": lambda f: [(name, part.shape) for name, part in f.layout.named(f.w).items()],
    "the model's buffers": lambda f: [
        (name, b.shape, b.dtype) for name, b in f.server.buffers.items()
    ],
    "the number type": lambda f: (f.w.dtype, f.fabric.strategy.precision.precision),
    "the device": lambda f: f.w.device,
    "a frozen parameter": lambda f: {name: digest(p) for name, p in f.server.frozen.items()},
}
"""What runs of one program share, beside their methods."""


def check_one_program(federations: Sequence[Federation]) -> None:
    """Try whether the clients of these federations can be rows of one program.

    Raises:
        ProgramError: If something differs that is no number, or a term needs numbers, not tensors.
    """
    first, *others = federations
    algorithms = [federation.server.scheduled for federation in federations]
    if first.fabric.world_size > 1:
        raise ProgramError("they have several ranks: give devices=1")
    if moved := sorted(first.local_training.rehearsal.moved):
        raise ProgramError(f"each server moves the frozen parameter {moved[0]} otherwise")
    for other in others:
        for what, of in _SHARED.items():
            if of(first) != of(other):
                raise ProgramError(f"{what} differs between the runs")
    try:
        places = differing_numbers(algorithms)
    except UserError as error:
        raise ProgramError(str(error)) from None
    still = {  # curves that stay: their numbers are tensors, too
        place: exponential(number, 1)
        for place, number in numbers_of(algorithms[0]).items()
        if place in places and not isinstance(number, Curve)
    }
    made, classes = algorithms[0].with_coefficients(still), first.clients.dataset.num_classes
    try:
        first.server.rehearse(made, classes, parallel=True, compiled=True)
    except Exception as error:  # whatever a term's code raises
        raise ProgramError(first_sentence(error)) from error
