"""View: what a term reads and assigns in one hook."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.vector import Layout
from fl_lightning.errors import TermError

States = dict[str, Tensor]
"""The states of one term, by name."""


class View:
    """The facts that a term may read in one hook, and the states that it may assign there.

    The term's states are further attributes, by their names. `update`, on the server, sees only
    the facts marked (s). In compiled local steps all numbers are 0-dim tensors, `round` too: there
    and elsewhere `(v.round < 3) * a + (v.round >= 3) * b` works, while `if v.round < 3` is refused.
    """

    anchor: Tensor
    """(s) The received global model w^t."""
    origin: Tensor
    """The model where this client starts, after every term's `start`."""
    span: Tensor
    """The distance of a constant unit gradient in this visit (see `Algorithm.span`), 0-dim."""
    steps: Tensor
    """Number of local steps K_i, 0-dim."""
    epochs: Tensor
    """Number of passes over the client's samples, 0-dim."""
    size: Tensor
    """Number of samples over the mean of all clients, om_i = N n_i / n, 0-dim."""
    weight: Tensor
    """Aggregation weight times the cohort's size, 0-dim: 1 on average, unless clients are skipped.

    A term that weighs a message also reports v.weight, at no cost, and divides by its mean (see
    `NormalizedAveraging`).
    """
    labels: Tensor
    """Samples of each class that the client holds, (classes,), in the model's dtype; some are 0.

    `F.cross_entropy(b.out + v.labels.clamp(min=1).log(), b.y)` is a loss calibrated to them.
    """
    share: float
    """(s) Size of the cohort over the number of clients, M / N."""
    expected: Tensor | float
    """(s) The client's probability p_i to take part in a round; their mean on the server."""
    nominal: float
    """(s) K eta_0 of FedDC's code: the span of a client of mean size at the first round's rate."""
    round: int
    """(s) This round, from 0."""
    rounds: int
    """(s) Number of rounds of the run."""
    layout: Layout
    """(s) The model's layout."""

    def __init__(
        self,
        term: Any,
        hook: str,
        facts: Mapping[str, Any],
        states: States,
        read_only: Mapping[str, Tensor] = {},
    ):
        """`states` may be assigned, `read_only` ones only be read."""
        self.__dict__.update(facts, **read_only, **states)
        self.__dict__["_where"] = f"{type(term).__name__}.{hook}"
        self.__dict__["_mine"], self.__dict__["_in_loss"] = tuple(states), False
        visits = hook in ("start", "gradient", "report")
        self.__dict__["_loggable"] = (*term.logs, *term.diagnostics) if visits else ()
        self.__dict__["_given"] = [x for x in self.__dict__.values() if isinstance(x, Tensor)]

    def __getattr__(self, name: str) -> Tensor:
        known = ", ".join(sorted(k for k in self.__dict__ if not k.startswith("_")))
        if name == "lr" and "span" in self.__dict__:
            raise TermError(
                f"{self._where} reads v.lr, which does not exist, since the steps of a visit may "
                f"differ in it: v.span / v.steps is their mean, of plain SGD. It can read: {known}"
            )
        raise TermError(
            f"{self._where} reads v.{name}, which does not exist there. Declare a state as client, "
            f"server or local = {{'{name}': zeros}}; facts of one client reach the server only in "
            f"the message that `report` returns. It can read: {known}"
        )

    def __setattr__(self, name: str, value: Tensor) -> None:
        if self._in_loss:
            raise TermError(
                f"{self._where}'s loss assigns v.{name}, but a loss may only read: assign it in "
                f"{self._where}, as in v.{name} = v.{name} + oracle.loss(w)"
            )
        if name not in self._mine:
            mine = (name for name in self._mine if not name.startswith(LOGGED))
            allowed = ", ".join(mine) or "no state"
            raise TermError(
                f"{self._where} assigns v.{name}, but may assign {allowed} there: declare it, as "
                f"client = {{'{name}': zeros}} or local = ... for one visit; server states are "
                "assigned in `update` only"
            )
        old = self.__dict__[name]
        if value is old:
            raise TermError(
                f"{self._where} assigns v.{name} to itself, as += does, which changes a shared "
                f"tensor in place: write v.{name} = v.{name} + ..."
            )
        check_like(
            value, old, f"{self._where} assigns v.{name}", "it must keep the {} in which it began"
        )
        self.__dict__[name] = value

    def log(
        self,
        name: str,
        value: float | Tensor | Callable[[], Tensor],
        weight: float | Tensor = 1.0,
    ) -> None:
        """Publish a scalar: `term/<name>` is its mean over the calls of a visit, then the cohort.

        Args:
            name: One of the term's `logs` or `diagnostics`.
            value: A number, a 0-dim tensor, or a function that makes it, called only if it counts:
                diagnostics count with `--callback diagnostics` alone.
            weight: Weight of this call in the mean, e.g. 0 in a step where it has no meaning.

        Raises:
            TermError: If the term does not declare the name, or this is no hook of a visit.
        """
        if name not in self._loggable or self._in_loss:
            raise TermError(
                f"{self._where} logs {name!r}, but can log {', '.join(self._loggable) or 'nothing'}"
                f": declare logs = ({name!r},), and log in start, gradient or report, not in a loss"
            )
        if (key := LOGGED + name) not in self.__dict__:
            return
        total = self.__dict__[key]
        number = value() if callable(value) else value
        part = _scalar(number, total)
        check_shape(part, torch.Size(), f"{self._where} logs as {name!r}", "it is one number")
        share = torch.ones_like(part)
        if isinstance(weight, Tensor) or weight != 1:
            share = _scalar(weight, part)
            part = torch.where(share > 0, part * share, 0)
        self.__dict__[key] = total + torch.stack([part, share])

    def _states(self) -> States:
        return {name: self.__dict__[name] for name in self._mine}

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """A context of evaluating one of the term's losses: no state may be assigned."""
        outer, self.__dict__["_in_loss"] = self._in_loss, True
        try:
            yield
        finally:
            self.__dict__["_in_loss"] = outer


FACTS = frozenset(View.__annotations__)
"""The names of a view's facts; no state can have one."""

LOGGED = "_log "
"""Begins the name of a hidden local state `[sum, weight]` of what a term logs under a name."""

ROUND_FACTS = "anchor", "share", "expected", "round", "rounds", "nominal", "layout"
"""The facts of a round, which the server sees too; the others are of one client's visit."""


def _scalar(number: Any, like: Tensor) -> Tensor:
    """A number as a tensor of the dtype and device of another; a number waits for no device."""
    if isinstance(number, Tensor):
        return number.detach().to(like)
    return torch.full((), float(number), dtype=like.dtype, device=like.device)


def check_like(value: Any, like: Tensor, what: str, rule: str) -> None:
    """Raise a `TermError` unless `value` is a tensor of the shape, dtype and device of another.

    The message begins with `what`, e.g. "SAM.gradient returned"; {} in `rule` stands for the
    property that differs.
    """
    check_shape(value, like.shape, what, rule.format("shape"))
    check_kind(value, like, what, rule)


def check_kind(value: Tensor, like: Tensor, what: str, rule: str) -> None:
    """Raise a `TermError` unless a tensor has another's dtype and device (see `check_like`)."""
    if value.dtype != like.dtype:
        raise TermError(f"{what} a tensor of {value.dtype}; {rule.format('dtype')}, {like.dtype}")
    if value.device != like.device:
        raise TermError(
            f"{what} a tensor on {value.device}; {rule.format('device')}, {like.device}"
        )


def check_shape(value: Any, shape: torch.Size, what: str, rule: str) -> None:
    """Raise a `TermError` unless `value` is a tensor of this shape."""
    if not isinstance(value, Tensor):
        raise TermError(
            f"{what} {type(value).__name__} {value!r}; {rule}, a tensor of shape {tuple(shape)}"
        )
    if value.shape != shape:
        raise TermError(
            f"{what} a tensor of shape {tuple(value.shape)}; {rule}, shape {tuple(shape)}"
        )
