"""View: what a term reads and assigns in one hook."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.randomness import next_key, uniform_bits
from fl_lightning.core.vector import Layout
from fl_lightning.errors import TermError

States = dict[str, Tensor]
"""The states of one term, by name."""


class View:
    """The facts that a term may read in one hook, and the states that it may assign there.

    The term's states are further attributes, by their names. `update`, on the server, and
    `personal` see only the facts marked (s). In compiled local steps all numbers are 0-dim tensors,
    `round` too: there and elsewhere `(v.round < 3) * a + (v.round >= 3) * b` works, while
    `if v.round < 3` is refused.
    """

    anchor: Tensor
    """(s) The received global model w^t."""
    origin: Tensor
    """The model where this client starts, after every term's `start`."""
    lr_sum: Tensor
    """Sum of the learning rates of this client's local steps, 0-dim; more with momentum.

    See `Algorithm.lr_sum`.
    """
    steps: Tensor
    """Number of local steps K_i, 0-dim."""
    epochs: Tensor
    """Number of passes over the client's samples, 0-dim."""
    size: Tensor
    """Number of samples over the mean of all clients, om_i = N n_i / n, 0-dim."""
    client: Tensor
    """The client's index, 0-dim int64."""
    weight: Tensor
    """Aggregation weight times the cohort's size, 0-dim: 1 on average, unless clients are skipped.

    `send` may assign it; the mean update is then by what it assigns. A term that weighs a message
    also reports v.weight, at no cost, and divides by its mean (see `NormalizedAveraging`).
    """
    bits: Tensor
    """In `send`: the size of the update that is sent, 0-dim; `send` assigns what it saves."""
    numbers: Tensor
    """In `send`: how many numbers are sent, 0-dim; a term that sends fewer assigns it."""
    own: Tensor
    """In `report`: the client's own model u_i; the server sees what `send` has left of it."""
    cohort: Tensor
    """In `combine`: the clients' numbers in the order of the updates, (M,) int64."""
    labels: Tensor
    """Samples of each class that the client holds, (classes,), in the model's dtype; some are 0.

    `F.cross_entropy(b.out + v.labels.clamp(min=1).log(), b.y)` is a loss calibrated to them.
    """
    participation: float
    """(s) Size of the cohort over the number of clients, M / N."""
    inclusion_probability: Tensor | float
    """(s) The client's probability p_i to take part in a round; their mean on the server."""
    base_lr_sum: float
    """(s) `lr_sum` of a client of average size at the initial learning rate: K eta_0 in FedDC."""
    round: int
    """(s) This round, from 0."""
    rounds: int
    """(s) Number of rounds of the run."""
    clients: int
    """(s) Number of clients N."""
    layout: Layout
    """(s) The model's layout."""
    frozen: Mapping[str, Tensor]
    """In `update`: the parameters that are not trained, by name; see `move`."""

    _where = "a term"

    def __init__(
        self, facts: Mapping[str, Any], states: States, read_only: Mapping[str, Tensor] = {}
    ):
        """`states` may be assigned, `read_only` ones only be read."""
        vars(self).update(facts, **read_only, **states)
        vars(self)["_mine"] = tuple(states)

    def __getattr__(self, name: str) -> Tensor:
        fix = "facts of one client reach the server only in the message that `report` returns"
        if name not in FACTS:
            fix = f"declare a state as client, server or local = {{'{name}': zeros}}; {fix}"
        if name == "origin" and "lr_sum" in vars(self):
            fix = "a client starts at what `start` returns"
        if name == "lr" and "lr_sum" in vars(self):
            fix = "steps may differ in it: v.lr_sum / v.steps is their mean, of plain SGD"
        known = ", ".join(sorted(k for k in vars(self) if k[0] != "_"))
        raise TermError(
            f"{self._where} reads v.{name}, which does not exist there: {fix}. It can read: {known}"
        )

    def __setattr__(self, name: str, value: Tensor) -> None:
        if name not in self._mine:
            mine = (name for name in self._mine if name[0] != "_")
            allowed = ", ".join(mine) or "no state"
            fix = (
                f"declare it, as client = {{'{name}': zeros}} or local = ... for one visit; server "
                "states are assigned in `update` only"
            )
            if name in FACTS:
                fix = "it is a fact; `send` may assign v.weight, v.bits and v.numbers"
            raise TermError(
                f"{self._where} assigns v.{name}, but may assign {allowed} there: {fix}"
            )
        if isinstance(value, int | float) and not vars(self)[name].ndim:
            value = vars(self)[name].new_full((), value)
        check_like(value, vars(self)[name], f"{self._where} assigns v.{name}", "as it began")
        vars(self)[name] = value

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
        total = vars(self).get(LOGGED + name)
        if total is None:
            return
        part = value() if callable(value) else value
        if isinstance(part, Tensor) and part.dtype != torch.bool:  # which adds up as it is
            part = _scalar(part, total)
        if isinstance(weight, Tensor) or weight != 1:
            weight = _scalar(weight, total)
            part = torch.where(weight > 0, part * weight, 0)
        vars(self)[LOGGED + name] = total + part
        vars(self)[LOGGED_WEIGHT + name] = vars(self)[LOGGED_WEIGHT + name] + weight

    def uniform(self, like: Tensor) -> Tensor:
        """Random numbers of [0, 1) in the shape of a tensor, the same in every executor.

        They depend on the run's seed, the round, the client, the term and the call. In `update`,
        torch's own functions draw.

        Raises:
            TermError: If the term does not declare `draws = True`, or this is no hook of a visit.
        """
        if KEY not in vars(self):
            raise TermError(
                f"{self._where} draws random numbers: declare draws = True, and draw by v.uniform "
                "or v.normal in start, gradient, send or report; in `update` by torch.randn_like"
            )
        key = vars(self)[KEY] = next_key(vars(self)[KEY])
        bits = uniform_bits(key, like.numel()) >> 7  # so many fit a float32
        return (bits.to(like) / 2**24).view_as(like)

    def normal(self, like: Tensor) -> Tensor:
        """Random numbers of a standard normal distribution: see `uniform`."""
        length, turn = self.uniform(like) + 2**-25, self.uniform(like)  # Box and Muller
        return (-2 * length.log()).sqrt() * (2 * torch.pi * turn).cos()

    def move(self, name: str, by: Tensor) -> None:
        """Add to a parameter that is not trained, in `update`.

        Clients have it so from the next round on.

        Raises:
            TermError: If there is no such parameter, it has another shape or half precision, or
                this is no `update`.
        """
        if name not in vars(self).get("frozen", ()):
            raise TermError(
                f"{self._where} moves {name!r}: only `update` may move parameters, and only those "
                "that are not trained, v.frozen"
            )
        rule = "move a parameter by a tensor like it"
        check_like(by, self.frozen[name], f"{self._where} moves {name!r} by", rule, ("shape",))
        if (dtype := self.frozen[name].dtype) not in (torch.float32, torch.float64):
            raise TermError(
                f"{self._where} moves {name!r}, and {dtype} rounds small moves to 0: make the "
                "frozen parameters float32, as model.float() does"
            )
        moves = vars(self)[MOVES]
        moves[name] = moves[name] + by if name in moves else by

    def _states(self) -> States:
        return {name: vars(self)[name] for name in self._mine}


FACTS = frozenset(View.__annotations__)
"""The names of a view's facts; no state can have one."""

DRAWS = "uniform", "normal"
"""The methods of a view that draw; no state can be named so."""

MOVES = "_moves"
"""The hidden fact that holds what `move` adds to parameters, by name."""

KEY = "_key"
"""The hidden local state from which a term draws random numbers."""

LOGGED, LOGGED_WEIGHT = "_log ", "_weight "
"""Begin the names of two hidden local states: the sum of what a term logs, and of the weights."""

ROUND_FACTS = (
    "anchor",
    "participation",
    "inclusion_probability",
    "round",
    "rounds",
    "clients",
    "base_lr_sum",
    "layout",
)
"""The facts of a round, which the server sees too; the others are of one client's visit."""


def _scalar(number: Any, like: Tensor) -> Tensor:
    """A number as a tensor of the dtype and device of another; a number waits for no device."""
    if isinstance(number, Tensor):
        return number.detach().to(like)
    return torch.full((), float(number), dtype=like.dtype, device=like.device)


def check_like(
    value: Any,
    like: Tensor,
    what: str,
    rule: str,
    kinds: Sequence[str] = ("shape", "dtype", "device"),
) -> None:
    """Raise a `TermError` unless `value` is a tensor of the shape, dtype and device of another.

    The message begins with `what`, e.g. "SAM.gradient returned", and ends with the rule.
    """
    for kind in kinds:
        given, wanted = getattr(value, kind, None), getattr(like, kind)
        if given != wanted:
            shown = f"a tensor of {kind} {given}" if isinstance(value, Tensor) else f"{value!r:.60}"
            raise TermError(f"{what} {shown}; {rule}, of {kind} {wanted}")


@contextmanager
def unchanged(where: str, given: Iterable[Any]) -> Iterator[None]:
    """A context in which no tensor among these may change in place; `vmap` hides some changes."""
    tensors = [t for t in given if isinstance(t, Tensor)]
    before = [t._version for t in tensors]
    yield
    check_unchanged(where, zip(tensors, before, strict=True))


def check_unchanged(where: str, before: Iterable[tuple[Tensor, int]]) -> None:
    """Raise a `TermError` if one of the tensors has another version than before."""
    if any(t._version != version for t, version in before):
        raise TermError(
            f"{where} changes a shared tensor in place: instead of v.c += x, v.c.add_(x) or "
            "w[0] = x, write v.c = v.c + x and return w + x"
        )
