"""The clients' part of a round: who is visited with what, and what all of it sums up to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fl_lightning.algorithm import Cohort
from fl_lightning.clients import share_out
from fl_lightning.executors import Outcome, Visit
from fl_lightning.randomness import derived_seed
from fl_lightning.tally import Tally
from fl_lightning.term import States, begin

if TYPE_CHECKING:
    from fl_lightning.federation import Federation


def train(federation: "Federation", cohort: Sequence[int], common: dict[str, Any]) -> Tally:
    """Train this rank's part of the cohort, write the clients' rows, and sum up the outcomes."""
    clients, fabric = federation.clients, federation.fabric
    weights, skips = weights_of(federation, cohort), federation.on_divergence == "skip-client"
    tally = Tally(common["anchor"], federation.message, federation.buffers, len(cohort), finite_only=skips)
    mine = share_out([clients.num_steps(i) for i in cohort], fabric.world_size)[fabric.global_rank]
    for group in _groups(mine, federation.executor.width):
        with _blame(federation, [cohort[k] for k in group]):
            visits = [_visit(federation, cohort[k], weights[k], common["anchor"]) for k in group]
            outcomes = federation.executor(federation.algorithm, common, visits, federation.shared, federation.buffers)
            for k, visit, outcome in zip(group, visits, outcomes, strict=True):
                finite = tally.add(outcome, float(weights[k]), k)
                federation.store.write(cohort[k], _kept(visit, outcome, finite) if skips else outcome.states)
    if federation.asked_to_stop:
        tally.ask_to_stop()
    return tally


def weights_of(federation: "Federation", cohort: Sequence[int]) -> Tensor:
    """The aggregation weights of a cohort, (M,), 1 on average.

    Raises:
        ValueError: If the algorithm gives weights that cannot be averaged with.
    """
    index, clients = torch.tensor(cohort), federation.clients
    sizes = clients.sizes[index] / clients.sizes.mean()
    weights = federation.algorithm.weight(Cohort(sizes, clients.class_counts[index]))
    if not (weights.isfinite().all() and weights.min() >= 0 and weights.sum() > 0):
        raise ValueError(
            f"aggregation weights must be finite, not negative and not all zero, but are {weights.tolist()}"
        )
    return weights / weights.mean()


def states_of(federation: "Federation", client: int, anchor: Tensor) -> list[States]:
    """The states that a client's visit begins with, one dictionary a term: its own, and those of one visit."""
    terms, store = federation.algorithm.terms, federation.store
    if store.has(client):
        kept = store.read(client, anchor.device)
    else:
        kept = [begin(term.client, federation.first, anchor) for term in terms]
    return [{**k, **begin(term.local, federation.first, anchor)} for k, term in zip(kept, terms, strict=True)]


def _visit(federation: "Federation", client: int, weight: Tensor, anchor: Tensor) -> Visit:
    clients, algorithm, round = federation.clients, federation.algorithm, federation.round
    batches = clients.visit(client, round)
    lrs = [federation.local_lr * federation.schedule(round, epoch) for epoch in batches.epochs]
    facts: dict[str, float | Tensor] = {
        "steps": len(lrs),
        "epochs": len(lrs) / clients.steps_per_epoch(client),
        "span": algorithm.span(lrs),
        "size": clients.sizes[client] / clients.sizes.mean(),
        "weight": weight,
    }
    values = torch.tensor([float(fact) for fact in facts.values()], dtype=anchor.dtype).to(anchor.device)
    own = dict(zip(facts, values.unbind(), strict=True))
    states = states_of(federation, client, anchor)
    return Visit(client, own, states, batches, lrs, derived_seed(federation.seed, "dropout", round, client))


def _kept(visit: Visit, outcome: Outcome, finite: Tensor) -> list[States]:
    """The client's states after the visit; as before it if the outcome is not finite."""
    both = zip(visit.states, outcome.states, strict=True)
    return [{name: torch.where(finite, new, old[name]) for name, new in term.items()} for old, term in both]


@contextmanager
def _blame(federation: "Federation", clients: Sequence[int]) -> Iterator[None]:
    """Let an exception say whose training raised it."""
    try:
        yield
    except Exception as error:
        who = f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}"
        error.add_note(f"in {federation.where()}, {who}")
        raise


def _groups(positions: Sequence[int], width: int) -> Iterator[list[int]]:
    rest = iter(positions)
    while group := list(islice(rest, width)):
        yield group
