"""Algorithm: terms, a local and a server optimizer, aggregation weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import SGD, Optimizer

from fl_lightning.core.curves import Coefficients, Curve, OfRound, Place, curves_in, with_number
from fl_lightning.core.lr_sum import lr_sum
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.prediction import Predict, from_logits
from fl_lightning.core.term import States, Term, TermOracle, View, combining, shown
from fl_lightning.core.vector import Part
from fl_lightning.core.weighting import Weight, uniform
from fl_lightning.errors import TermError, UserError

OptimizerFactory = Callable[[Iterable[Tensor]], Optimizer]
"""Makes an optimizer of given parameters, e.g. `partial(torch.optim.SGD, lr=0.1)`."""

LocalFactory = Callable[..., Optimizer]
"""An `OptimizerFactory` that may need `lr`, `momentum` and `weight_decay` too: the run's options.

Only parameters without a default are given, e.g. all three of
`def local(params, lr, momentum, weight_decay)`.
"""

Rate = Callable[[int, int], float]
"""The factor on the local learning rate in step k of K of a visit: `rate(k, K)`."""

Facts = Mapping[str, Any]
"""The facts of a view, by name (see `View`)."""

AllStates = Sequence[States]
"""The states of all terms, a dictionary for each."""


class Sent(NamedTuple):
    """What the server receives of a client's move.

    Attributes:
        update: The move, or what the terms' `send` made of it, (d,).
        weight: Its weight in the mean, 0-dim.
        bits: Its size, 0-dim.
    """

    update: Tensor
    weight: Tensor
    bits: Tensor


def steady(step: int, steps: int) -> float:
    """The rate 1 in every step."""
    return 1.0


def local_sgd(parameters: Any) -> SGD:
    """The default local optimizer; a function, which copies of an algorithm share."""
    return SGD(parameters, lr=0.1)


def server_sgd(parameters: Any) -> SGD:
    """The default server optimizer, which takes the mean update as it is."""
    return SGD(parameters, lr=1.0)


class Algorithm:
    """A federated algorithm.

    Args:
        *terms: Folded around the gradient oracle from first to last: the last is outermost. The
            order is the algorithm: `(SAM(), ControlVariate())` corrects the sharp gradient,
            `(ControlVariate(), SAM())` perturbs along the corrected one.
        local: Makes each client's optimizer. A client's parameters are one flat vector. On the
            command line the default is SGD with the run's options, and another one gets those
            options that it needs (see `LocalFactory`).
        server: Makes the optimizer that applies the mean update, as the gradient `-delta`, to the
            global model.
        weight: Aggregation weights of the model updates. Messages are always averaged uniformly.
            With a term that combines updates (see `Term.combine`) clients count equally.
        lr: The local learning rate of each round, e.g. `cosine(0.1, 0)`; None: that of `local`.
        rate: Factor on it in step k of K of a visit, from 0: `rate(k, K)`, e.g. FedSWA's
            `lambda k, K: 2 * (1 - k / K)`.
        server_lr: The server's learning rate of each round; None: that of `server`.
        trains: The part of the model that clients train (see `Layout.has`); None is all. The
            others keep their initial values, are not sent, and are no part of the vector.
        predict: The way in which a client's personal model predicts (see
            `fl_lightning.core.prediction`).
        clips: Whether --clip-norm may clip the direction of a local step. False suits normalized
            directions, whose norm is near the square root of the model's size.
        sgd_options: What the default local SGD takes of the run's lr, momentum and weight_decay. A
            term that is an optimizer of its own wants lr alone.

    Example:
        >>> from fl_lightning.terms import SAM, ControlVariate
        >>> fedgamma = Algorithm(SAM(rho=0.1), ControlVariate())
        >>> [type(term).__name__ for term in fedgamma.terms]
        ['SAM', 'ControlVariate']
        >>> fedgamma.lr_sum([0.1, 0.1])
        0.2
    """

    def __init__(
        self,
        *terms: Term,
        local: LocalFactory = local_sgd,
        server: OptimizerFactory = server_sgd,
        weight: Weight = uniform,
        lr: OfRound | None = None,
        rate: Rate = steady,
        server_lr: OfRound | None = None,
        trains: Part | None = None,
        predict: Predict = from_logits,
        clips: bool = True,
        sgd_options: tuple[str, ...] = ("lr", "momentum", "weight_decay"),
    ):
        for term in terms:
            if not isinstance(term, Term):
                raise TermError(
                    f"an algorithm consists of terms such as SAM(rho=0.1), not of {term!r}"
                )
        functions = {"local": local, "server": server, "weight": weight, "rate": rate}
        for name, given in (functions | {"lr": lr, "server_lr": server_lr}).items():
            if given is not None and not callable(given):
                raise TermError(
                    f"{name} of an algorithm is {given!r:.60}: give a function, such as by_size as "
                    "weight, or cosine(0.1, 0.1) as lr or server_lr"
                )
        if (rule := combining(terms)) and weight is not uniform:
            raise TermError(
                f"{type(rule).__name__} combines updates of clients that count equally: choose "
                "uniform weights (--weighting uniform)"
            )
        self.terms, self.local, self.server, self.weight = terms, local, server, weight
        self.lr, self.rate, self.server_lr, self.trains = lr, rate, server_lr, trains
        self.predict, self.clips, self.sgd_options = predict, clips, sgd_options

    def replace(self, **changes: Any) -> "Algorithm":
        """The same algorithm with other arguments, e.g. `replace(weight=by_size)`, or `terms`."""
        given = vars(self) | changes
        return Algorithm(*given.pop("terms"), **given)

    def with_outer_terms(self, *terms: Term, local: LocalFactory | None = None) -> "Algorithm":
        """This algorithm with further outermost terms, and with another local optimizer if given.

        Terms that must stay outside of any clipping (`UnclippedPull`) stay outside of these.
        """
        inner = [term for term in self.terms if "unclipped" not in term.roles]
        outer = [term for term in self.terms if "unclipped" in term.roles]
        return self.replace(terms=(*inner, *terms, *outer), local=local or self.local)

    @property
    def combining(self) -> Term | None:
        """The term that combines the cohort's updates; None if they are averaged."""
        return combining(self.terms)

    @property
    def _parts(self) -> dict[Any, Any]:
        """What may hold coefficients: the terms by index, and arguments by name."""
        parts: dict[Any, Any] = dict(enumerate(self.terms))
        return parts | {name: getattr(self, name) for name in ("weight", "rate", "predict")}

    @property
    def curves(self) -> dict[Place, Curve]:
        """The coefficients that are curves, by place."""
        return {
            (name, *path): curve
            for name, part in self._parts.items()
            for path, curve in curves_in(part).items()
        }

    @property
    def has_horizon(self) -> bool:
        """Whether a curve depends on the number of rounds of the run."""
        curves = self.lr, self.server_lr, *self.curves.values()
        return any(getattr(curve, "has_horizon", False) for curve in curves)

    def coefficients(self, round: int, rounds: int) -> Coefficients:
        """The numbers of the curves in a round."""
        return {place: curve(round, rounds) for place, curve in self.curves.items()}

    def with_coefficients(self, numbers: Coefficients) -> "Algorithm":
        """This algorithm with numbers in the place of its curves."""
        if not numbers:
            return self
        parts = self._parts
        for (name, *path), number in numbers.items():
            parts[name] = with_number(parts[name], tuple(path), number)
        terms = [parts.pop(i) for i in range(len(self.terms))]
        return self.replace(terms=terms, **parts)

    def at(self, round: int, rounds: int) -> "Algorithm":
        """This algorithm as it is in a round: itself, if it has no curves.

        Raises:
            UserError: If a coefficient is out of its range in that round.
        """
        return _at(self, round, rounds)

    def lr_sum(self, lrs: Sequence[float]) -> float:
        """How far local steps of these learning rates would move a weight of constant gradient 1.

        That is their sum for plain SGD, and more with momentum; weight decay is left out. SCAFFOLD,
        FedCM and others divide a displacement by it to estimate the mean gradient.
        """
        return lr_sum(self.local, tuple(lrs))

    def __repr__(self) -> str:
        return f"Algorithm({', '.join(map(shown, self.terms))})"

    # The hooks of all terms as pure functions: views live only inside, so vmap sees tensors only.
    # `states` are one client's (client and local).

    def start(
        self, w: Tensor, facts: Facts, states: AllStates, server_states: AllStates
    ) -> tuple[Tensor, list[States]]:
        """The model where a client starts after receiving `w`, and the client's states."""
        views = self._views(facts, states, server_states)
        for term, view in zip(self.terms, views, strict=True):
            w = term.start(w, view)
        return w, [view._states() for view in views]

    def gradient(
        self, oracle: Oracle, w: Tensor, facts: Facts, states: AllStates, server_states: AllStates
    ) -> tuple[Tensor, list[States]]:
        """The direction of one local step at `w`, and the client's states."""
        views = self._views(facts, states, server_states)
        for term, view in zip(self.terms, views, strict=True):
            oracle = TermOracle(oracle, term, view)
        return oracle(w), [view._states() for view in views]

    def send(
        self, delta: Tensor, w: Tensor, facts: Facts, states: AllStates, server_states: AllStates
    ) -> tuple[Sent, list[Any], list[States]]:
        """What the server receives of a visit that ended at `w`, `delta` away from its start.

        Returns:
            The update, one message a term, and the client's states.
        """
        sent = Sent(delta, facts["weight"], delta.new_full((), 8.0 * delta.nbytes))
        numbers = delta.new_full((), delta.numel())
        states = list(states)
        for i, term in enumerate(self.terms):
            assigned = {"weight": sent.weight, "bits": sent.bits, "numbers": numbers}
            view = View(facts, {**states[i], **assigned}, server_states[i])
            after = term.send(sent.update, view)
            states[i] = view._states()
            weight, bits, numbers = map(states[i].pop, assigned)
            sent = Sent(after, weight, bits)
        seen = w if sent.update is delta else facts["origin"] + sent.update
        facts = {**facts, "weight": sent.weight, "own": w}
        return sent, *self.report(seen, facts, states, server_states)

    def report(
        self, w: Tensor, facts: Facts, states: AllStates, server_states: AllStates
    ) -> tuple[list[Any], list[States]]:
        """One message a term, of the model `w` that the server sees, and the client's states."""
        views = self._views(facts, states, server_states)
        messages = [term.report(w, view) for term, view in zip(self.terms, views, strict=True)]
        return messages, [view._states() for view in views]

    def personal(
        self, w: Tensor, facts: Facts, states: AllStates, server_states: AllStates
    ) -> Tensor:
        """The model that a client uses for itself when the global one is `w`."""
        views = self._views(facts, states, server_states)
        for term, view in zip(self.terms, views, strict=True):
            w = term.personal(w, view)
        return w

    def update(
        self,
        delta: Tensor,
        means: Sequence[Any],
        facts: Facts,
        server_states: AllStates,
        updates: Tensor | None = None,
    ) -> tuple[Tensor, list[States]]:
        """The update for the server's optimizer, from the mean of `updates`, and its states."""
        views = self._views(facts, server_states)
        if self.combining is not None and updates is not None and len(updates):
            delta = self.combining.combine(updates, views[self.terms.index(self.combining)])
        for term, mean, view in zip(self.terms, means, views, strict=True):
            delta = term.update(delta, mean, view)
        return delta, [view._states() for view in views]

    def summary_lines(self, first: Facts, last: Facts) -> list[str]:
        """The terms' lines for the summary of a run, from facts of its first and its last round.

        They are about coefficients that stay, so that a term with curves has none.
        """
        views = View(first, {}), View(last, {})
        steady = (term for term in self.terms if not curves_in(term))
        return [line for term in steady for line in term.summary_lines(*views)]

    def _views(self, facts: Facts, *states: AllStates) -> list[View]:
        """A view for each term, of states to assign and of states to read only."""
        return [View(facts, *of_term) for of_term in zip(*states, strict=True)]


@lru_cache(8)
def _at(algorithm: Algorithm, round: int, rounds: int) -> Algorithm:
    """See `Algorithm.at`; cached, since every visit of a round asks for it."""
    try:
        return algorithm.with_coefficients(algorithm.coefficients(round, rounds))
    except UserError as error:
        raise UserError(f"{error}, in round {round + 1:,} of {rounds:,}") from error
