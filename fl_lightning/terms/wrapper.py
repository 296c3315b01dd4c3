"""A term around another term."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, Term, View


@dataclass(frozen=True)
class WrappedTerm(Term):
    """A term around another one, with the inner term's states, and its hooks by default."""

    inner: Term

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return self.inner.client

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return self.inner.server

    @property
    def local(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return self.inner.local

    @property
    def logs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.logs

    @property
    def diagnostics(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.diagnostics

    def start(self, w: Tensor, v: View) -> Tensor:
        return self.inner.start(w, v)

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return self.inner.gradient(oracle, w, v)

    def report(self, w: Tensor, v: View) -> Any:
        return self.inner.report(w, v)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        return self.inner.update(delta, mean, v)

    def personal(self, w: Tensor, v: View) -> Tensor:
        return self.inner.personal(w, v)

    def notes(self, first: View, last: View) -> Iterable[str]:
        return self.inner.notes(first, last)
