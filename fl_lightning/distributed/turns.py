"""Functions that take turns in one process, as coroutines do, but without `await` in each caller.

Each has a thread. One runs at a time, until it asks the program for something or ends.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from threading import Semaphore, Thread, local
from typing import Any

_here = local()


def ask(request: Any) -> Any:
    """In the function of a `Turn`: wait for the program's answer to a request, while others run."""
    turn: Turn = _here.turn
    turn.asked = request
    turn._waits.release()
    return turn._resume()


class Turn:
    """A function that runs while `proceed` or `throw` is called.

    It runs in a context that `within` makes anew after each answer.

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
