"""Training that leaves the finite numbers: what it is called, and what a run does about it."""

from collections.abc import Sequence
from typing import Literal

OnDivergence = Literal["stop", "skip-client", "continue"]
"""Stop the run, leave the client out of the round, or go on as if nothing were."""


class Diverged(Exception):
    """A client's training or the model left the finite numbers; the last checkpoint is as it was."""


def diverged(where: str, clients: Sequence[int], how: str) -> Diverged:
    """The exception that says so.

    Args:
        where: The round.
        clients: Whose training it was; nobody's if the server's step alone went wrong.
        how: Learning rate and algorithm.
    """
    listed = ", ".join(map(str, clients[:5])) + (", ..." if len(clients) > 5 else "")
    who = f"the training of client{'s' * (len(clients) > 1)} {listed}" if clients else "the model"
    mend = "Lower the learning rate or the method's coefficients, or clip"
    skip = "; on_divergence skip-client leaves such clients out" if clients else ""
    return Diverged(f"{where}: {who} is no longer finite ({how}). {mend}{skip}. Checkpoints are as they were.")
