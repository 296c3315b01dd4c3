"""A term around another term."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fl_lightning.core.term import Term


def _of_inner(name: str) -> Any:
    return property(lambda self: getattr(self.inner, name))


@dataclass(frozen=True)
class WrappedTerm(Term):
    """A term around another one, with the inner term's states, and its hooks by default."""

    inner: Term

    client = _of_inner("client")
    server = _of_inner("server")
    local = _of_inner("local")
    logs = _of_inner("logs")
    diagnostics = _of_inner("diagnostics")
    draws = _of_inner("draws")
    start = _of_inner("start")
    gradient = _of_inner("gradient")
    send = _of_inner("send")
    report = _of_inner("report")
    update = _of_inner("update")
    personal = _of_inner("personal")
    summary_lines = _of_inner("summary_lines")


def with_inner(terms: Iterable[Term]) -> Iterator[Term]:
    """The terms, each after the one that it wraps."""
    for term in terms:
        if isinstance(term, WrappedTerm):
            yield from with_inner([term.inner])
        yield term
