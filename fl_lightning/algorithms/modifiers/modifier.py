"""Modifier: an addition to an algorithm."""

from collections.abc import Callable
from dataclasses import dataclass

from fl_lightning.core.algorithm import Algorithm, OptimizerFactory
from fl_lightning.core.term import Term

_DOES = {
    "perturb": "says where gradients are taken",
    "start": "says where clients start",
    "server": "says what the server does with the mean update",
}


@dataclass(frozen=True)
class Modifier:
    """An addition to an algorithm; None adds nothing.

    Attributes:
        inner: A term inside all others.
        outer: A term outside of all others.
        server: Replaces the server's optimizer.
        around: Makes another term of the algorithm's perturbation.
    """

    inner: Term | None = None
    outer: Term | None = None
    server: OptimizerFactory | None = None
    around: Callable[[Term], Term] | None = None

    def to(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with this addition.

        Raises:
            ValueError: If the algorithm has a term of that role already, or no perturbation for
                `around`.
        """
        for added in filter(None, (self.inner, self.outer)):
            _check(added, algorithm)
        terms = [*filter(None, (self.inner, *algorithm.terms, self.outer))]
        if self.around is not None:
            if not any("perturb" in term.roles for term in terms):
                raise ValueError(
                    "a neighborhood ascent needs a perturbation, but this algorithm does not "
                    "perturb: add one, as --perturb sam"
                )
            terms = [self.around(term) if "perturb" in term.roles else term for term in terms]
        return algorithm.replace(terms=terms, server=self.server or algorithm.server)


def _check(added: Term, algorithm: Algorithm) -> None:
    for term in algorithm.terms:
        for role in sorted(term.roles & added.roles):
            raise ValueError(
                f"{type(added).__name__} cannot be added, because {type(term).__name__} already "
                f"{_DOES[role]}: choose an algorithm without it, or omit the addition"
            )
