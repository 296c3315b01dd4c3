"""Scalars that terms log: hidden local states of a visit, which its result returns."""

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from fl_lightning.core.term import States, Term
from fl_lightning.core.view import LOGGED, LOGGED_WEIGHT


class TermLogs:
    """The scalars that terms publish by `v.log`: their `logs`, and their `diagnostics` if asked.

    Attributes:
        tags: `term/<name>` for each; `term/<class>.<name>` where two terms log the same name.
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
        """The sums and weights at the start of a visit, one dictionary a term."""
        kinds = LOGGED, LOGGED_WEIGHT
        hidden = [[kind + name for name in names for kind in kinds] for names in self._names]
        zeros = iter(w.new_zeros(sum(map(len, hidden))).unbind())
        return [{name: next(zeros) for name in names} for names in hidden]

    def means(self, states: Sequence[States]) -> list[Tensor]:
        """The mean of each scalar over the visit, 0-dim; nan if it was never logged."""
        own = zip(self._names, states, strict=True)
        pairs = [(term, name) for names, term in own for name in names]
        return [term[LOGGED + name] / term[LOGGED_WEIGHT + name] for term, name in pairs]
