"""Scalars that terms log: hidden local states of a visit, which its result returns."""

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from fl_lightning.core.term import States, Term
from fl_lightning.core.view import LOGGED


class TermLogs:
    """The scalars that terms publish by `v.log`: their `logs`, and their `diagnostics` if asked.

    Attributes:
        tags: `term/<name>` for each; `term/<class>.<name>` where two terms have the same name.
    """

    def __init__(self, terms: Sequence[Term], diagnostics: bool):
        self._names = [(*t.logs, *(t.diagnostics if diagnostics else ())) for t in terms]
        often = Counter(name for names in self._names for name in names)
        self.tags = [
            f"term/{type(term).__name__}.{name}" if often[name] > 1 else f"term/{name}"
            for term, names in zip(terms, self._names, strict=True)
            for name in names
        ]

    def states(self, w: Tensor) -> list[States]:
        """The states `[sum, weight]` at the start of a visit, one dictionary a term."""
        return [{LOGGED + name: w.new_zeros(2) for name in names} for names in self._names]

    def means(self, states: Sequence[States]) -> list[Tensor]:
        """The mean of each scalar over the visit, 0-dim; nan if it was never logged."""
        own = zip(self._names, states, strict=True)
        pairs = [term[LOGGED + name] for names, term in own for name in names]
        return [total / weight for total, weight in pairs]
