"""What can be added to an algorithm, and how."""

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
    """What is added.

    Attributes:
        inner: A term inside all others, or None.
        outer: A term outside of all others, or None.
        server: Replaces the server's optimizer, unless None.
        around: Makes another term of the algorithm's perturbation, unless None.
    """

    inner: Term | None = None
    outer: Term | None = None
    server: OptimizerFactory | None = None
    around: Callable[[Term], Term] | None = None

    def to(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with this added.

        Raises:
            ValueError: If the algorithm has something of the kind already, or nothing to put this
                around.
        """
        for term in algorithm.terms:
            for added in (self.inner, self.outer):
                _check(added, term)
        inner, outer = (() if term is None else (term,) for term in (self.inner, self.outer))
        terms = *inner, *algorithm.terms, *outer
        return algorithm.replace(*self._wrapped(terms), server=self.server or algorithm.server)

    def _wrapped(self, terms: tuple[Term, ...]) -> tuple[Term, ...]:
        if self.around is None:
            return terms
        if not any("perturb" in term.roles for term in terms):
            raise ValueError(
                "a neighbourhood perturbation replaces the ascent gradient of a perturbation, but this algorithm does "
                "not perturb: add one, as --perturb sam"
            )
        return tuple(self.around(term) if "perturb" in term.roles else term for term in terms)


def _check(added: Term | None, term: Term) -> None:
    for role in sorted(term.roles & added.roles) if added else ():
        raise ValueError(
            f"{type(added).__name__} cannot be added: {type(term).__name__} already {_DOES[role]}. Choose an algorithm "
            "without it, or leave the addition out"
        )
