"""Term: one piece of a federated algorithm, written for one client in the paper's letters.

A term turns one gradient oracle into another. It sees flat vectors only: no ranks, devices, modules
or batches, and no client axis, which the StackedExecutor adds with `vmap`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import check
from fl_lightning.core.oracle import Oracle, WrappedOracle
from fl_lightning.core.randomness import seeded_rng
from fl_lightning.core.vector import Layout, Part
from fl_lightning.core.view import States as States
from fl_lightning.core.view import View as View
from fl_lightning.errors import TermError, first_sentence


@dataclass(frozen=True)
class OfLayout:
    """An initializer that sees the model's layout, too.

    Attributes:
        make: Makes a state's first value from w^0, the model received now, and the layout.
    """

    make: Callable[[Tensor, Tensor, Layout], Tensor]


@dataclass(frozen=True)
class OfClients:
    """An initializer that sees the number of clients.

    Attributes:
        make: Makes a state's first value from w^0 and that number, e.g. a number for each client.
    """

    make: Callable[[Tensor, int], Tensor]


Initializer = Callable[[Tensor, Tensor], Tensor] | OfLayout | OfClients
"""Makes a state's first value from the initial global model w^0 and the model received now."""


def zeros(first: Tensor, now: Tensor) -> Tensor:
    """A zero vector like the model."""
    return torch.zeros_like(now)


def scalar(first: Tensor, now: Tensor) -> Tensor:
    """The number 0, as a 0-dim tensor."""
    return now.new_zeros(())


def initial(first: Tensor, now: Tensor) -> Tensor:
    """The initial global model w^0, in whatever round the client comes first."""
    return first.clone()


def received(first: Tensor, now: Tensor) -> Tensor:
    """The global model that the client receives at its first visit."""
    return now.clone()


DRAW_NOTHING = zeros, scalar, initial, received
"""Initializers that draw nothing. To set a seed would take longer than they do."""


class Term:
    """One piece of a federated algorithm. Override the hooks it needs; each default does nothing.

    Subclasses are frozen dataclasses of hyperparameters; those annotated as in
    `fl_lightning.core.constraints`, e.g. `rho: NonNegativeFloat`, are checked. States are declared
    by lifetime and initializer (`zeros`, `scalar`, `initial`, `received`) and are attributes of the
    view `v`; assign them anew, never with `+=`. A declaration that depends on a hyperparameter is a
    property.

    Attributes:
        client: States that each client keeps between rounds.
        server: States that the server keeps; clients may read them.
        local: States of one visit of one client.
        roles: Tags. The command line refuses to combine two terms with the same tag "perturb"
            (where gradients are taken), "start" (where clients start), "server" (what the server
            does with the mean update), "personal" (what clients keep for themselves), "select"
            (which numbers are sent) or "round" (how these are rounded). "unclipped" keeps the
            term's gradients unclipped. A term tagged "measure" trains nothing, and does not count
            in the method's cost. With one tagged "noise" rounds without clients count.
        logs: Names of the scalars that it publishes by `v.log`.
        diagnostics: Names of those that cost more; `--callback diagnostics` publishes them.
        draws: Whether clients draw random numbers, by `v.uniform` and `v.normal`.
        keeps: The part of the model that each client keeps for itself (see `Personal`). The
            executors then leave it the buffers of that part.
        needs_lora: Whether the model must have LoRA layers (`v.layout.lora`).
        needs_cross_entropy: Whether the task's loss must be the mean cross entropy. A module that
            computes its own loss is not asked.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from fl_lightning.core.constraints import NonNegativeFloat
        >>> @dataclass(frozen=True)
        ... class WeightDecay(Term):
        ...     mu: NonNegativeFloat = 0.5
        ...
        ...     def gradient(self, oracle, w, v):
        ...         return oracle(w) + self.mu * w
        >>> WeightDecay().gradient(lambda w: 2 * w, torch.tensor([4.0]), v=None)
        tensor([10.])
    """

    roles: frozenset[str] = frozenset()
    logs: tuple[str, ...] = ()
    diagnostics: tuple[str, ...] = ()
    client: Mapping[str, Initializer] = {}
    server: Mapping[str, Initializer] = {}
    local: Mapping[str, Initializer] = {}
    draws: bool = False
    keeps: Part | None = None
    needs_lora: bool = False
    needs_cross_entropy: bool = False

    def __post_init__(self) -> None:
        check(self, f" of {type(self).__name__}", curves=True)

    def start(self, w: Tensor, v: View) -> Tensor:
        """The model where this client starts. May assign client and local states."""
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        """The direction of one local step at `w`; may call the oracle elsewhere, twice, or never.

        May assign client and local states. `oracle.loss(w)` is the loss, `oracle.of(loss)` the
        oracle of another one (see `fl_lightning.core.oracle`).
        """
        return oracle(w)

    def send(self, delta: Tensor, v: View) -> Tensor:
        """What the server receives of `delta`, the move u_i - v.origin after the last local step.

        It may be clipped, masked or rounded; each term gets what the terms before it left. May
        assign client and local states, `v.weight`, `v.bits` and `v.numbers`.
        """
        return delta

    def report(self, w: Tensor, v: View) -> Any:
        """The message after `send`: a tensor or a tuple of tensors.

        `w` is the client's model as the server sees it: v.origin and what was sent. The server
        averages the message over the cohort. May assign client and local states.
        """
        return ()

    def combine(self, updates: Tensor, v: View) -> Tensor:
        """What the server takes for the mean update, from the updates of v.cohort, (M, d).

        Clients count equally. One term of a method may have this hook; the server then keeps all
        updates of a round, on its device. May assign server states.
        """
        return updates.mean(0)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        """The mean model update, on the server, from the mean message. May assign server states."""
        return delta

    def personal(self, w: Tensor, v: View) -> Tensor:
        """The model that a client uses for itself; `w` is the global one."""
        return w

    def summary_lines(self, first: View, last: View) -> Iterable[str]:
        """Lines for the summary of a run, as on what its coefficients amount to.

        The views hold facts of the first and the last round, for a client of mean size; no states.
        """
        return ()


def init_states(
    terms: Sequence[Term],
    lifetime: str,
    first: Tensor,
    now: Tensor,
    layout: Layout,
    clients: int,
    seed: int = 0,
) -> list[States]:
    """The first values of the terms' states of a lifetime, one dictionary a term.

    They begin from w^0, the model received now, its layout, N clients, and the seed of what they
    draw.

    Raises:
        TermError: If one cannot begin, or is not a tensor on the model's device.
    """

    def begin(term: Term, name: str, make: Initializer) -> Tensor:
        of = f"the state {name!r} of {type(term).__name__}"
        try:
            if isinstance(make, OfClients):
                state = make.make(first, clients)
            elif isinstance(make, OfLayout):
                state = make.make(first, now, layout)
            else:
                state = make(first, now)
        except TypeError as error:
            raise TermError(
                f"{of} cannot begin ({first_sentence(error)}): its initializer takes (first, now), "
                "in OfLayout (first, now, layout), in OfClients (first, clients)"
            ) from error
        if not isinstance(state, Tensor) or state.device != now.device:
            begun = f"on {state.device}" if isinstance(state, Tensor) else f"as {state!r}"
            raise TermError(
                f"{of} begins {begun}, not as a tensor on the model's device, {now.device}: use "
                "`zeros` or `scalar`, or make it of `now`, as now.new_zeros(3)"
            )
        return state

    declared: list[Mapping[str, Initializer]] = [getattr(term, lifetime) for term in terms]
    draws = any(make not in DRAW_NOTHING for states in declared for make in states.values())
    with seeded_rng(seed, now.device) if draws else nullcontext():
        return [
            {name: begin(term, name, make) for name, make in states.items()}
            for term, states in zip(terms, declared, strict=True)
        ]


@dataclass(eq=False)
class TermOracle(WrappedOracle):
    """A term applied to an oracle is again an oracle."""

    term: Term
    view: View

    def __call__(self, w: Tensor) -> Tensor:
        """The term's direction at `w`."""
        return self.term.gradient(self.inner, w, self.view)


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
    combine = _of_inner("combine")
    update = _of_inner("update")
    personal = _of_inner("personal")
    summary_lines = _of_inner("summary_lines")


def overrides(term: Term, hook: str) -> bool:
    """Whether a term does something in a hook."""
    return getattr(getattr(term, hook), "__func__", None) is not getattr(Term, hook)


def combining(terms: Iterable[Term]) -> Term | None:
    """The term that combines the cohort's updates; None if they are averaged.

    Raises:
        TermError: If several do.
    """
    found = [term for term in terms if overrides(term, "combine")]
    if len(found) > 1:
        named = " and ".join(type(term).__name__ for term in found)
        raise TermError(f"{named} both combine the cohort's updates: choose one")
    return found[0] if found else None


def shown(term: Term) -> str:
    """A term with its coefficients; functions by name, without their addresses."""
    names = [field.name for field in fields(term)] if is_dataclass(term) else vars(term)
    values = {name: getattr(term, name) for name in names}
    coefficients = [f"{name}={getattr(value, '__name__', value)}" for name, value in values.items()]
    return f"{type(term).__name__}({', '.join(coefficients)})"


def with_inner(terms: Iterable[Term]) -> Iterator[Term]:
    """The terms, each after the one that it wraps."""
    for term in terms:
        if isinstance(term, WrappedTerm):
            yield from with_inner([term.inner])
        yield term
