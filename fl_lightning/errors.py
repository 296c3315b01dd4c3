"""Every exception of this package that a user can see. Imports nothing of the package."""

import re


class TermError(Exception):
    """A mistake in a term; the message names the term, the hook and the mend."""


class ModelError(Exception):
    """The model, not a term, cannot be evaluated in the way that was asked for."""


class DivergenceError(Exception):
    """A client's training or the model left the finite numbers; the last checkpoint is as it was."""


class RankLostError(Exception):
    """Another rank ended in the middle of a round."""


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error's message, without its full stop: PyTorch's messages go on for many lines."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.split(r"\.\s+(?=[A-Z])", first_line)[0].rstrip(". ")
