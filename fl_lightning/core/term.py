"""Term: one piece of a federated algorithm, written for one client in the paper's letters.

A term turns one gradient oracle into another. It sees flat vectors only: no ranks, devices,
    modules, batches, and no
client axis (the StackedExecutor adds that one with `vmap`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import check
from fl_lightning.core.oracle import Oracle
from fl_lightning.errors import TermError

Initializer = Callable[[Tensor, Tensor], Tensor]
"""How a state begins: `init_states(first, now)` of the initial global model w^0 and the model received now."""

States = dict[str, Tensor]
"""The states of one term, by name."""


def zeros(first: Tensor, now: Tensor) -> Tensor:
    """Begins as a zero vector like the model."""
    return torch.zeros_like(now)


def scalar(first: Tensor, now: Tensor) -> Tensor:
    """Begins as the number 0 (a 0-dim tensor)."""
    return now.new_zeros(())


def initial(first: Tensor, now: Tensor) -> Tensor:
    """Begins as the initial global model w^0, whenever the client comes first."""
    return first.clone()


def received(first: Tensor, now: Tensor) -> Tensor:
    """Begins as the global model that the client receives at its first visit."""
    return now.clone()


ROUND_FACTS = "anchor", "share", "expected", "round", "rounds", "nominal", "layout"
"""What a view tells of the round, on the server too."""

CLIENT_FACTS = "origin", "steps", "epochs", "span", "size", "weight", "labels"
"""What it tells of one client's visit."""

FACTS = {*ROUND_FACTS, *CLIENT_FACTS}
"""What a view tells besides states; no state can have such a name."""

INSTEAD = {
    "lr": (
        "span",
        "the steps of a visit may differ in it; v.span / v.steps is their mean, of plain SGD",
    )
}
"""What is asked for and not told: the fact that tells it, and how."""


def init_states(
    declared: Mapping[str, Initializer], first: Tensor, now: Tensor, of: str = ""
) -> States:
    """States as they begin, given w^0 and the model received now.

    Args:
        declared: How each begins.
        first: w^0.
        now: The model received now.
        of: How a message goes on after a state's name, e.g. " of SCAFFOLD".

    Raises:
        TermError: If one does not begin as a tensor on the model's device.
    """
    states = {name: beginning(first, now) for name, beginning in declared.items()}
    for name, state in states.items():
        if not isinstance(state, Tensor) or state.device != now.device:
            begun = (
                f"on {state.device}"
                if isinstance(state, Tensor)
                else f"as {type(state).__name__} {state!r}"
            )
            raise TermError(
                f"the state {name!r}{of} begins {begun}; it must begin as a tensor on the model's device, "
                f"{now.device}: begin it as `zeros` or `scalar`, or make it of `now`, as now.new_zeros(3)"
            )
    return states


class View:
    """What a term may read in one hook, and the states that it may assign there.

    Attributes (on a client; `update`, on the server, sees only those marked s):
        anchor (s): The global model w^t that was received.
        origin: Where this client starts, after every term's `start`.
        span: How far a constant unit gradient would travel in this visit (see `Algorithm.span`),
            0-dim.
        steps, epochs: Number of local steps K_i, and of passes over the client's samples; 0-dim.
        size: Number of samples over the mean of all clients, om_i = N n_i / n, 0-dim.
        weight: Aggregation weight times the cohort's size, 0-dim: 1 on average, unless clients are
            skipped. Whoever weighs a message reports v.weight too, which costs nothing, and divides
            by its mean (see `Normalize`).
        labels: How many samples of each class it holds, (classes,), in the model's dtype; some are
            0. A loss calibrated to them is F.cross_entropy(b.out + v.labels.clamp(min=1).log(),
            b.y).
        share (s): Size of the cohort over the number of clients, M / N.
        expected (s): What share is expected to be: the probability of taking part in a round, its
            mean over clients.
        nominal (s): K eta_0 of FedDC's code: the span of a client of mean size at the first round's
            learning rate.
        round, rounds (s): This round, from 0, and how many there are.
        layout (s): The model's `Layout`.
    and the term's own states by their names. In compiled local steps all numbers among these are
    0-dim tensors, `round` too: `(v.round < 3) * a + (v.round >= 3) * b` is the same there and
    elsewhere, `if v.round < 3` is refused.
    """

    def __init__(
        self,
        term: "Term",
        hook: str,
        facts: Mapping[str, Any],
        states: States,
        others: Mapping[str, Tensor] = {},
    ):
        """`states` are those that may be assigned, `others` those that may only be read."""
        self.__dict__.update(facts, **others, **states)
        self.__dict__["_where"] = f"{type(term).__name__}.{hook}"
        self.__dict__["_mine"], self.__dict__["_in_loss"] = tuple(states), False
        self.__dict__["_given"] = (facts["anchor"], *others.values(), *states.values())

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(sorted(k for k in self.__dict__ if not k.startswith("_")))
        fact, told = INSTEAD.get(name, ("", ""))
        if fact in self.__dict__:
            raise TermError(
                f"{self._where} reads v.{name}, which does not exist: {told}. It can read: {known}"
            )
        raise TermError(
            f"{self._where} reads v.{name}, which does not exist there. It can read: {known}. "
            f"Declare a state of your own as client, server or local = {{'{name}': zeros}}; what one client knows "
            "reaches the server only as the message that `report` returns."
        )

    def __setattr__(self, name: str, value: Tensor) -> None:
        if self._in_loss:
            raise TermError(
                f"{self._where}'s loss assigns v.{name}, but a loss may only look: assign it in {self._where} itself, "
                f"where oracle.loss(w) tells the loss, as in v.{name} = v.{name} + oracle.loss(w)"
            )
        if name not in self._mine:
            allowed = ", ".join(self._mine) or "no state"
            raise TermError(
                f"{self._where} assigns v.{name}, but may assign {allowed} there. Declare it, client = "
                f"{{'{name}': zeros}} to keep it between rounds or local = ... for one visit; "
                "server states are assigned in `update` only."
            )
        old = self.__dict__[name]
        if value is old:
            raise TermError(
                f"{self._where} assigns v.{name} to itself, as v.{name} += ... does. That changes the tensor in place, "
                f"for everyone who shares it: write v.{name} = v.{name} + ..."
            )
        check_like(
            value, old, f"{self._where} assigns v.{name}", "it must keep the {} in which it began"
        )
        self.__dict__[name] = value

    def _states(self) -> States:
        return {name: self.__dict__[name] for name in self._mine}

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """While one of the term's losses is evaluated, which may assign nothing."""
        outer, self.__dict__["_in_loss"] = self._in_loss, True
        try:
            yield
        finally:
            self.__dict__["_in_loss"] = outer


class Term:
    """One piece of a federated algorithm. Override the hooks it needs; each default does nothing.

    Subclasses are frozen dataclasses of hyper-parameters; those annotated as in
    `fl_lightning.core.constraints`, e.g. `rho: NonNegativeFloat`, are checked. States are declared
    by lifetime and by how they begin (`zeros`, `scalar`, `initial`, `received`) and are attributes
    of the view `v`; assign them anew, never with `+=`. A declaration that depends on a
    hyper-parameter is a property.

    Attributes:
        client: What each client keeps between rounds.
        server: What the server keeps; clients may read it.
        local: What lives for one visit of one client.
        roles: What only one term of an algorithm should do: "perturb", "start" elsewhere, "server"
            step. The command line refuses to combine two terms of one role.
    """

    roles: frozenset[str] = frozenset()
    client: Mapping[str, Initializer] = {}
    server: Mapping[str, Initializer] = {}
    local: Mapping[str, Initializer] = {}

    def __post_init__(self) -> None:
        check(self, f" of {type(self).__name__}")

    def start(self, w: Tensor, v: Any) -> Tensor:
        """Where this client starts. May assign client and local states."""
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        """The direction of one local step at `w`; may call the oracle elsewhere, or twice, or not at all.

        `oracle.loss(w)` tells the loss, `oracle.of(loss)` is that of another one (see
        `fl_lightning.core.oracle`).
        """
        return oracle(w)

    def report(self, w: Tensor, v: Any) -> Any:
        """The message, after the last local step at `w`: a tensor or a tuple of tensors, averaged over the cohort."""
        return ()

    def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
        """On the server: the mean model update, given the mean message. May assign server states."""
        return delta

    def personal(self, w: Tensor, v: Any) -> Tensor:
        """The model that a client uses for itself, `w` being the global one: before any fine-tuning of its own."""
        return w


def check_like(value: Any, like: Tensor, what: str, rule: str) -> None:
    """Raise a `TermError` unless `value` is a tensor of the shape, dtype and device of another.

    Args:
        value: What is checked.
        like: The other tensor.
        what: Who did what with it, e.g. "SAM.gradient returned".
        rule: What it must do; {} stands for what does not fit.
    """
    check_shape(value, like.shape, what, rule.format("shape"))
    check_kind(value, like, what, rule)


def check_kind(value: Tensor, like: Tensor, what: str, rule: str) -> None:
    """Raise a `TermError` unless a tensor has the dtype and the device of another; see `check_like`."""
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
