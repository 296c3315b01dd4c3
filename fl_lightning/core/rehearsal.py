"""The rehearsal: before the first round, every hook of every term runs once on random vectors.

It finds the mistakes of a term's author, what the algorithm costs, and the shape of a message. The
rounds then run plain hooks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.guarded_term import check_declaration
from fl_lightning.core.randomness import seeded_rng
from fl_lightning.core.rehearsed_round import RehearsedRound, dummy_facts
from fl_lightning.core.term import scalar, zeros
from fl_lightning.core.vector import Layout
from fl_lightning.errors import TermError


@dataclass(frozen=True)
class Cost:
    """Counts of numbers (not bytes) for one client, the larger ones of the first and last round.

    Upper bounds where a message could be part of the model: FedSpeed's paper sends u_i + h_i alone,
    the terms send both. Terms of the role "measure" do not count.

    Attributes:
        uplink: Sent to the server after a visit: the model, as `send` leaves it, and messages that
            are no multiple of what is sent of it.
        messages: The part of `uplink` that messages are.
        downlink: Received before a visit: the model, and the server states that the client's hooks
            read. Those that only decide where to start are one vector together with the model.
            Frozen parameters count if the server moves them.
        client_state: Kept between rounds.
        server_state: Kept by the server besides the model.
        gradients: Gradient evaluations in one local step.
        forward_passes: Its forward passes without a gradient: of `oracle.loss`, and of `b.at` in a
            loss.
        receives: Names of what is received: the model or the start, server states, and "base" for
            frozen parameters.
        keeps: Names of the client's states.
        has_horizon: Whether the method depends on the number of rounds of a run.
        exact: False where a rehearsed round gave numbers that are not finite, or a loss could not
            be evaluated without the model; then everything that may be sent or received counts.
    """

    uplink: int
    messages: int
    downlink: int
    client_state: int
    server_state: int
    gradients: int
    forward_passes: int
    receives: tuple[str, ...]
    keeps: tuple[str, ...]
    has_horizon: bool
    exact: bool


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal finds.

    Attributes:
        cost: What a client sends, receives, keeps and computes.
        message: One message a term; every client's have this structure and these shapes.
        starts_elsewhere: Whether clients start elsewhere than at w^t.
        assigned: Which of `weight` and `bits` terms assign in `send`.
        reads_rates: Whether a term reads the sum of a visit's learning rates.
        uses_updates: Whether the server's step depends on the updates, not on messages alone.
        update_reads: The facts and states that each term reads in `update`.
        moved: Names of the frozen parameters that the server moves.
        idle: The states that begin as 0 and that no hook assigns.
    """

    cost: Cost
    message: list[Any]
    starts_elsewhere: bool
    assigned: set[str]
    reads_rates: bool
    uses_updates: bool
    update_reads: list[set[str]]
    moved: set[str]
    idle: list[str]


def rehearse(
    algorithm: Algorithm,
    layout: Layout,
    w: Tensor,
    classes: int = 10,
    rounds: int = 2,
    parallel: bool = False,
    compiled: bool = False,
    clients: int = 2,
    frozen: Mapping[str, Tensor] = {},
    cohort: int = 100,
) -> Rehearsal:
    """Run the hooks as in the first and in the last round, for a model like `w`.

    Args:
        algorithm: The method.
        layout: The model's layout.
        w: A vector like the model.
        classes: Number of classes in the data.
        rounds: Number of rounds of the run.
        parallel: Whether the hooks of a client run under `vmap`.
        compiled: Whether local steps are compiled.
        clients: Number of clients N.
        frozen: The model's other parameters, by name.
        cohort: Number of updates that a term combines; a rule may need a least number.

    Raises:
        TermError: For a mistake in a term.
        ModelError: For a loss that reads what its term has not asked to record.
    """
    terms = algorithm.at(0, rounds).terms
    for term in terms:
        check_declaration(term)
    of = layout, w, classes
    facts = (dummy_facts(*of, round, rounds, clients) for round in (0, rounds - 1))
    with seeded_rng(0, w.device):  # a loss may draw random numbers
        first, last = played = [RehearsedRound(algorithm, f, frozen, cohort) for f in facts]
        cost = _cost(first, last)
        for round in played if parallel else ():
            round.visit_in_parallel(compiled)
    for term, *messages in zip(algorithm.terms, first.messages, last.messages, strict=True):
        before, after = (tree_map(lambda t: tuple(t.shape), message) for message in messages)
        if before != after:
            raise TermError(
                f"{type(term).__name__}.report returned messages of shapes {before} and {after}: "
                "fill up with zeros, since messages are averaged"
            )
    elsewhere, moved = first.starts_elsewhere or last.starts_elsewhere, {*first.moved, *last.moved}
    assigned, reads = set[str](), [set[str]() for _ in algorithm.terms]
    for view in (*first.views, *last.views):
        if view._hook == "send":
            assigned |= view._assigned & {"weight", "bits"}
        elif view._hook == "update":
            reads[view._term] |= view._read
    rates = {"lr_sum", "base_lr_sum"}
    reads_rates = any(view._read & rates for view in (*first.views, *last.views))
    uses_updates = first.server_uses_progress or last.server_uses_progress
    kept = {(view._term, name) for view in (*first.views, *last.views) for name in view._assigned}
    idle = [
        f"v.{name} of {type(term).__name__}"
        for i, term in enumerate(terms)
        for name, make in {**term.client, **term.server, **term.local}.items()
        if make in (zeros, scalar) and (i, name) not in kept
    ]
    found = assigned, reads_rates, uses_updates, reads, moved, idle
    return Rehearsal(cost, last.messages, elsewhere, *found)


def _cost(*rounds: RehearsedRound) -> Cost:
    first, counted = rounds[0], rounds[0].counted
    of_start, needed = map(set.union, *(r.downlink() for r in rounds))
    of_start = of_start - {name for _, name in needed}
    names = [name for _, name in sorted(needed)]
    if of_start:  # one vector, made of whatever decides where to start
        names.insert(0, "model" if of_start == {"model"} else "start")
    w = first.progress
    received = [w if i < 0 else first.server[i][name] for i, name in needed]
    start = max(r.depends_on_model for r in rounds) or w.numel()
    moved = max(sum(r.moved.values()) for r in rounds)
    messages, uplink = map(max, zip(*(r.uplink() for r in rounds), strict=True))
    return Cost(
        uplink=uplink,
        messages=messages,
        downlink=sum(vector.numel() for vector in received) + start * bool(of_start) + moved,
        client_state=sum(t.numel() for i in counted for t in first.client[i].values()),
        server_state=sum(t.numel() for i in counted for t in first.server[i].values()),
        gradients=max(r.calls["gradients"] for r in rounds),
        forward_passes=max(r.calls["forward passes"] for r in rounds),
        receives=(*names, "base") if moved else tuple(names),
        keeps=tuple(name for i in counted for name in first.client[i]),
        has_horizon=first.algorithm.has_horizon
        or any("rounds" in v._read for r in rounds for v in r.views if v._term in counted),
        exact=all(r.finite and not r.unread for r in rounds),
    )
