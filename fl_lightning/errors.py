"""Every exception of this package that a user can see. Imports nothing of the package."""

import re


class TermError(Exception):
    """A mistake in a term; the message names the term, the hook and the fix."""


class ModelError(Exception):
    """A model that cannot be evaluated in the requested way."""


class DivergenceError(Exception):
    """A client's training or the global model has diverged; the last checkpoint is intact."""


class RankLostError(Exception):
    """The end of another rank in the middle of a round."""


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error's message, without its full stop."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    first_line = re.sub(
        r"^\[enforce fail at .*?\] err == 0\. ", "", first_line
    )  # torch's own place
    return re.split(r"\.\s+(?=[A-Z])", first_line)[0].rstrip(". ")
