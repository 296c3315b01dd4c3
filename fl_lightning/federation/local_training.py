"""The clients' part of a round: who is visited with what, and what all of it sums up to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fl_lightning.core.device import to_device_async
from fl_lightning.core.randomness import derived_seed
from fl_lightning.core.term import States, init_states
from fl_lightning.core.term_checks import check_alike
from fl_lightning.core.weighting import Cohort
from fl_lightning.errors import ModelError
from fl_lightning.executors import Outcome, Visit
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.divergence import stay_finite
from fl_lightning.federation.preflight import single_sample

if TYPE_CHECKING:
    from fl_lightning.federation.federation import Federation


def train(federation: "Federation", cohort: Sequence[int], common: dict[str, Any]) -> RoundSums:
    """Train this rank's part of the cohort, write the clients' rows, and sum up the outcomes.

    Raises:
        ValueError: If the cohort is empty or none of the clients'.
    """
    _check(cohort, federation)
    weights, skips = weights_of(federation, cohort), federation.on_divergence == "skip-client"
    tally = RoundSums(
        common["anchor"],
        federation.message,
        federation.buffers,
        len(cohort),
        federation.sums,
        skips,
    )
    store, behind = federation.store, list[int]()
    for group, ahead in pairwise([*_mine(federation, cohort), []]):
        clients = [cohort[k] for k in group]
        store.prefetch(cohort[k] for k in [*group, *ahead])
        visits = {
            k: partial(_visit, federation, cohort[k], weights[k], common["anchor"]) for k in group
        }
        with _training(federation, clients):
            for k, visit, outcome in _trained(federation, visits, common):
                check_alike(outcome.message, federation.message, federation.algorithm.terms)
                states = stay_finite(federation.began_finite["clients"], outcome.states)
                finite = tally.add(outcome, float(weights[k]), k, states)
                store.write(cohort[k], _kept(visit, outcome, finite) if skips else outcome.states)
        with _training(federation, behind):  # their rows were written while these clients trained
            store.wait_for_writes(but=len(clients))
        behind = clients
    with _training(federation, behind):
        store.wait_for_writes()
    if federation.stop_requested:
        tally.request_stop()
    return tally


def weights_of(federation: "Federation", cohort: Sequence[int]) -> Tensor:
    """The aggregation weights of a cohort, (M,), 1 on average.

    Raises:
        ValueError: If the algorithm gives weights that cannot be averaged with.
    """
    index, clients = torch.tensor(cohort), federation.clients
    sizes = clients.sizes[index] / clients.mean_size
    weights = federation.algorithm.weight(Cohort(sizes, clients.labels_of(index)))
    if not isinstance(weights, Tensor) or weights.shape != sizes.shape:
        raise ValueError(
            f"aggregation weights are a tensor, one for each of {len(cohort)} clients, not {weights}"
        )
    if not (weights.isfinite().all() and weights.min() >= 0 and weights.sum() > 0):
        raise ValueError(
            f"aggregation weights must be finite, not negative and not all zero, but are {weights.tolist()}"
        )
    return weights / weights.mean()


def states_of(federation: "Federation", client: int, anchor: Tensor) -> list[States]:
    """The states that a client's visit begins with, one dictionary a term: its own, and those of one visit."""
    terms, store = federation.algorithm.terms, federation.store
    kept = (
        store.read(client, anchor.device)
        if store.has(client)
        else [init_states(term.client, federation.first, anchor) for term in terms]
    )
    return [
        {**k, **init_states(term.local, federation.first, anchor)}
        for k, term in zip(kept, terms, strict=True)
    ]


def _check(cohort: Sequence[int], federation: "Federation") -> None:
    """A participation of the user's own may give anything."""
    num_clients = federation.clients.num_clients
    if (
        not cohort
        or sorted(set(cohort)) != list(cohort)
        or cohort[0] < 0
        or cohort[-1] >= num_clients
    ):
        shown = ", ".join(map(str, cohort[:5])) + (", ..." if len(cohort) > 5 else "")
        raise ValueError(
            f"{federation.where()}: {federation.participation} gave the cohort [{shown}], but a round has at least one "
            f"client of 0 to {num_clients - 1}, each once and in ascending order"
        )


def _visit(federation: "Federation", client: int, weight: Tensor, anchor: Tensor) -> Visit:
    clients, algorithm, round = federation.clients, federation.algorithm, federation.round
    batches = clients.visit(client, round)
    lrs = [federation.local_lr * federation.schedule(round, epoch) for epoch in batches.epochs]
    facts: dict[str, float | Tensor] = {
        "steps": len(lrs),
        "epochs": len(lrs) / clients.steps_per_epoch(client),
        "span": algorithm.span(lrs),
        "size": clients.sizes[client] / clients.mean_size,
        "weight": weight,
    }
    labels = clients.label_counts(client).to(anchor.dtype)
    numbers = torch.tensor([float(fact) for fact in facts.values()], dtype=anchor.dtype)
    values = to_device_async(torch.cat([labels, numbers]), anchor.device)  # all of them at once
    labels, numbers = values.split([len(labels), len(numbers)])
    own = {**dict(zip(facts, numbers.unbind(), strict=True)), "labels": labels}
    states = states_of(federation, client, anchor)
    return Visit(
        client, own, states, batches, lrs, derived_seed(federation.seed, "dropout", round, client)
    )


def _trained(
    federation: "Federation", visits: Mapping[int, Callable[[], Visit]], common: dict[str, Any]
) -> Iterator[tuple[int, Visit, Outcome]]:
    """Train clients at once, by their positions; from now on fewer at once where the device's memory does not suffice.

    Raises:
        ModelError: If it does not suffice for one client alone.
    """
    waiting, algorithm = dict(visits), federation.algorithm
    while waiting:
        group = list(islice(waiting, federation.group_size))
        try:
            begun = [waiting[k]() for k in group]
            outcomes = federation.executor(
                algorithm, common, begun, federation.shared, federation.buffers
            )
            for k, visit, outcome in zip(group, begun, outcomes, strict=True):
                del waiting[k]  # whatever comes, this client is not trained again
                yield k, visit, outcome
            continue
        except torch.OutOfMemoryError as error:
            if len(group) == 1:
                raise _too_large(federation, error) from error
        begun, outcomes = [], []  # what they hold is what is lacking
        _train_fewer_at_once(federation, len(group))


def _train_fewer_at_once(federation: "Federation", tried: int) -> None:
    """Halve how many clients train at once on this rank, for the rest of the run, and say so."""
    federation.group_size, device = tried // 2, federation.w.device
    print(
        f"{federation.where()}, rank {federation.fabric.global_rank}: {tried} clients at once do not fit into the "
        f"memory of {device}: going on with {federation.group_size} at once, with the same result to rounding"
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _too_large(federation: "Federation", error: torch.OutOfMemoryError) -> ModelError:
    numbers, clients = sum(p.numel() for p in federation.module.parameters()), federation.clients
    shape = "x".join(map(str, clients.dataset.shape))
    return ModelError(
        f"{type(federation.module).__name__} of {numbers:,} parameters, with batches of {clients.batch_size} samples "
        f"of shape {shape}, does not fit into the memory of {federation.w.device} even for one client at a time "
        f"({str(error).split('. ')[0]}): lower --batch-size or choose a smaller --model"
    )


def _kept(visit: Visit, outcome: Outcome, finite: Tensor) -> list[States]:
    """The client's states after the visit; as before it if the outcome is not finite."""
    both = zip(visit.states, outcome.states, strict=True)
    return [
        {name: torch.where(finite, new, old[name]) for name, new in term.items()}
        for old, term in both
    ]


@contextmanager
def _training(federation: "Federation", clients: Sequence[int]) -> Iterator[None]:
    """Let an exception say whose training raised it, and the other ranks, should this one be killed."""
    federation.heartbeat.set_clients(clients)
    try:
        yield
    except Exception as error:
        told = single_sample(error) or error
        who = f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}"
        told.add_note(f"in {federation.where()}, {who}")
        if told is error:
            raise
        raise told from error
    federation.heartbeat.set_clients([])


def _mine(federation: "Federation", cohort: Sequence[int]) -> list[list[int]]:
    """The positions in the cohort that this rank trains, in groups that train at once."""
    fabric, width = federation.fabric, federation.executor.width
    work = [federation.clients.num_steps(i) for i in cohort]
    if not federation.deterministic:
        return list(_groups(assign_to_ranks(work, fabric.world_size)[fabric.global_rank], width))
    # the last bits of a client's training depend on how many train at once: who trains with whom must not on the ranks
    together = list(_groups(assign_to_ranks(work, 1)[0], width))
    shares = assign_to_ranks([sum(work[k] for k in group) for group in together], fabric.world_size)
    return [together[i] for i in shares[fabric.global_rank]]


def _groups(positions: Sequence[int], width: int) -> Iterator[list[int]]:
    rest = iter(positions)
    while group := list(islice(rest, width)):
        yield group


def assign_to_ranks(work: Sequence[int], ranks: int) -> list[list[int]]:
    """Spread clients over ranks so that ranks finish together: longest first, each to the least loaded rank.

    Args:
        work: Work of each client of the cohort, e.g. its samples times its epochs.
        ranks: How many ranks there are.

    Returns:
        For each rank the positions in `work` that it trains; possibly none.
    """
    load, shares = [0] * ranks, [[] for _ in range(ranks)]  # type: tuple[list[int], list[list[int]]]
    for i in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        rank = min(range(ranks), key=lambda r: (load[r], r))
        shares[rank].append(i)
        load[rank] += work[i]
    return shares
