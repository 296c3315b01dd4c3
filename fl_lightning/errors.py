"""Every exception of this package that a user can see. Imports nothing of the package."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from traceback import format_exception

MANY = 40
"""A sentence lists no more names than that."""


class UserError(ValueError):
    """A mistake in options, data, a model or a term: a sentence that says what to do.

    Programs of this package end with the sentence and exit code 2, and notebooks show it alone.
    All other exceptions, and those with a cause, keep their traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows."""
        if self.__cause__:
            return "".join(format_exception(self)).splitlines()
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class TermError(UserError):
    """A mistake in a term; the message names the term, the hook and the fix."""


class ModelError(UserError):
    """A model that cannot be evaluated in the requested way."""


class DivergenceError(Exception):
    """A client's training or the global model has diverged; the last checkpoint is intact."""


class RankLostError(Exception):
    """The end of another rank in the middle of a round."""


@contextmanager
def adding_position(position: Callable[[], str], in_training: Callable[[], bool]) -> Iterator[None]:
    """Add a note with the round to an exception that says nothing of it.

    While clients are being trained, notes name the round already.
    """
    try:
        yield
    except (TermError, ModelError, DivergenceError, RankLostError):
        raise  # they come on every rank, or name the round
    except Exception as error:
        if not (in_training() and getattr(error, "__notes__", [])):
            error.add_note(position())
        raise


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error's message, without its full stop."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    without_place = re.sub(r"^\[enforce fail at .*?\] err == 0\. ", "", first_line)  # torch's own
    return re.split(r"\.\s+(?=[A-Z])", without_place)[0].rstrip(". ")


def nearest(word: object, known: Iterable[object]) -> str:
    """The end of a sentence about an unknown word: known ones that look like it, or all of few."""
    names = list(map(str, known))
    if close := get_close_matches(str(word), names, n=3, cutoff=0.5):
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are: {', '.join(names)}" if 0 < len(names) <= MANY else ""
