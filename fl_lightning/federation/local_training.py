"""Local training: one rank's clients of a round, their states, and the sums of what they return."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from fl_lightning.core.device import to_device_async
from fl_lightning.core.network import class_name
from fl_lightning.core.randomness import derived_seed
from fl_lightning.core.term import States, init_states
from fl_lightning.core.view import KEY, unchanged
from fl_lightning.core.weighting import Cohort
from fl_lightning.data import ClientData
from fl_lightning.distributed.collectives import check_shared_folder
from fl_lightning.errors import ModelError, TermError, UserError
from fl_lightning.executors import ClientResult, ClientTask, Executor, RoundInputs
from fl_lightning.executors.executor import Buffers
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.client_store import open_store
from fl_lightning.federation.divergence import OnDivergence, finite, watched
from fl_lightning.federation.exact_sum import ExactSum, PlainSum
from fl_lightning.federation.sampling import ClientSampler, assign_groups
from fl_lightning.federation.sanity_checks import check_one_rate
from fl_lightning.federation.server import Server
from fl_lightning.federation.visits import LocalRates, TermLogs


class LocalTraining:
    """The local training of a federation's clients, with the settings of a `Federation`.

    The server gives model and method.

    Attributes:
        rehearsal: What a rehearsal of the method finds.
        group_size: Number of clients that train in parallel; halved when they do not fit the
            device's memory.
        store: The clients' states, after `open`.
    """

    def __init__(
        self,
        fabric: Fabric,
        server: Server,
        clients: ClientData,
        executor: Executor,
        sampler: ClientSampler,
        on_divergence: OnDivergence,
        deterministic: bool,
        diagnostics: bool,
    ):
        self.fabric, self.server, self.clients = fabric, server, clients
        self.executor, self.sampler, self.group_size = executor, sampler, executor.width
        self.on_divergence, self.deterministic = on_divergence, deterministic
        how = executor.parallel, executor.compiled > 0
        self.rehearsal = server.rehearse(server.scheduled, clients.dataset.num_classes, *how)
        combining = server.scheduled.combining
        if combining is not None and "weight" in self.rehearsal.assigned:
            raise TermError(
                f"a term weighs clients by v.weight, but {type(combining).__name__} combines "
                "updates of clients that count equally: leave one of them out"
            )
        if combining is not None and not self.rehearsal.uses_updates:
            raise TermError(
                f"{type(combining).__name__} combines updates, by which the server does not move, "
                "as in FedVARP and FedADMM, whose clients report: choose another method"
            )
        if self.rehearsal.reads_rates:
            check_one_rate(server.algorithm, server.w.detach())
        self.logs = TermLogs(self.server.algorithm.terms, diagnostics)
        self.sum_type = ExactSum if deterministic else PlainSum
        self.rates = LocalRates(server, clients)

    def open(self, state_dir: Path | None, memory: int | None) -> None:
        """Open the client store. All ranks call this together."""
        states = self._begun("client", 0)
        self._initially_finite = finite(states)
        row = [*states, self._own(self.server.buffers)]
        self.store = open_store(self.fabric, state_dir, self.clients.num_clients, row, memory)
        if self.store.row:
            check_shared_folder(self.fabric, self.store.folder.parent)

    def run(
        self,
        cohort: Sequence[int],
        facts: dict[str, Any],
        position: str,
        finished: Callable[..., object] = lambda **_: None,
    ) -> RoundSums:
        """Train this rank's part of the cohort and write the clients' states.

        `finished` is called with `client` and `result` after each visit.
        """
        weights = self.weights(cohort)
        own_weights = "weight" in self.rehearsal.assigned
        sums = RoundSums(
            self.server.w.detach(),
            self.rehearsal.message,
            self.server.shared_buffers,
            len(cohort),
            self.sum_type,
            self.on_divergence,
            self.rehearsal.starts_elsewhere,
            len(self.logs.tags),
            own_weights,
            self.server.algorithm.combining is not None,
            any("noise" in term.roles for term in self.server.algorithm.terms),
        )
        work = [self.clients.steps_in(client, self.server.round) for client in cohort]
        of_ranks = assign_groups(
            work, self.executor.width, self.fabric.world_size, whole=self.deterministic
        )
        groups = of_ranks[self.fabric.global_rank]
        # groups that do not depend on the number of ranks must not be compiled by it either
        compared = chain(*of_ranks) if self.deterministic else groups
        largest = max(map(len, compared), default=0)
        server, method = self.server, self.server.scheduled
        numbers = method.coefficients(server.round, server.rounds)
        sent = RoundInputs(method, facts, server.states, server.buffers, largest, numbers)

        def finish(k: int, visit: ClientTask, result: ClientResult) -> None:
            weight = result.sent.weight if own_weights else weights[k]
            states = watched(self._initially_finite, result.states)
            sums.add(result, weight, k, states, self.logs.means(result.states))
            row = [*result.states, self._own(result.buffers)]
            if self.on_divergence == "skip-client":
                row = _kept([*visit.states, visit.buffers], row, sums.is_finite(k))
            self.store.write(visit.client, row)
            finished(client=visit.client, result=result)

        visits = self.visits(cohort, weights)
        for group, ahead in pairwise([*groups, []]):
            clients = [cohort[k] for k in group]
            self.store.prefetch(cohort[k] for k in [*group, *ahead])
            try:
                for trained in self._trained({k: visits[k] for k in group}, sent, position):
                    finish(*trained)
                    del trained  # the next clients may need its memory
            except Exception as error:
                plural = "s" * (len(clients) > 1)
                error.add_note(f"in {position}, client{plural} {', '.join(map(str, clients))}")
                raise
            self.store.wait_for_writes(but=len(clients))
        self.store.wait_for_writes()
        return sums

    def settings(self) -> str:
        """Learning rate and algorithm, for messages about divergence."""
        limit = self.sum_type.limit
        bound = f", sums of numbers below {limit:,.0f}" if isfinite(limit) else ""
        lr = self.rates.of_round(self.server.round)
        return f"local learning rate {lr:.3g}, {self.server.algorithm}{bound}"

    def before_visit(self, client: int) -> tuple[list[States], Buffers]:
        """What a client's visit begins with: states, one dictionary a term, and its own buffers."""
        w = self.server.w.detach()
        if self.store.has(client):
            *kept, buffers = self.store.read(client, w.device)
        else:
            kept, buffers = self._begun("client", client), self._own(self.server.buffers)
        local = self._begun("local", client, self.server.round)
        both = zip(kept, local, self.logs.states(w), strict=True)
        return [{**k, **visit, **logged} for k, visit, logged in both], buffers

    def _begun(self, lifetime: str, *ids: int) -> list[States]:
        """The first values of states of a lifetime; what they draw depends on the ids."""
        server, terms = self.server, self.server.algorithm.terms
        of = server.initial_w, server.w.detach(), server.layout, self.clients.num_clients
        return init_states(terms, lifetime, *of, derived_seed(server.seed, lifetime, *ids))

    def _own(self, buffers: Buffers) -> dict[str, Tensor]:
        """The buffers that a client keeps for itself."""
        return {name: buffers[name] for name in self.server.own_buffers}

    def round_facts(self, cohort_size: int) -> dict[str, Any]:
        """The facts of every visit of a round with a cohort of this size (see `View`)."""
        server, clients = self.server, self.clients.num_clients
        participation = cohort_size / clients
        return {
            "anchor": server.w.detach().clone(),
            "participation": participation,
            "inclusion_probability": getattr(self.sampler, "expected_participation", participation),
            "round": server.round,
            "rounds": server.rounds,
            "clients": clients,
            "base_lr_sum": self.rates.base_lr_sum,
            "layout": server.layout,
        }

    def visits(
        self, cohort: Sequence[int], weights: Sequence[float]
    ) -> list[Callable[[], ClientTask]]:
        """The visits of clients with these aggregation weights, each made when it is asked for."""
        if not cohort:
            return []
        server, probabilities = self.server, getattr(self.sampler, "probabilities", None)
        lrs, facts = self.rates.of_cohort(cohort, weights, probabilities)

        def visit(k: int, client: int) -> ClientTask:
            seed = derived_seed(server.seed, "dropout", server.round, client)
            states, buffers = self.before_visit(client)
            for i, term in enumerate(server.algorithm.terms):
                if term.draws:
                    key = torch.tensor(derived_seed(seed, "term", i))
                    states[i][KEY] = to_device_async(key, server.w.device)
            own = {name: each[k] for name, each in facts.items()}
            batches = self.clients.visit(client, server.round)
            return ClientTask(client, own, states, batches, lrs[k], seed, buffers)

        return [partial(visit, k, client) for k, client in enumerate(cohort)]

    def weights(self, cohort: Sequence[int]) -> list[float]:
        """The aggregation weights of a cohort, 1 on average.

        Raises:
            UserError: If the algorithm's weights cannot be averaged with.
        """
        if not cohort:
            return []
        index = torch.tensor(cohort)
        sizes = self.clients.sizes[index] / self.clients.mean_size
        labels = self.clients.labels_of(index).to(sizes)  # whose shares have all digits
        weights = self.server.algorithm.weight(Cohort(sizes, labels))
        fits = isinstance(weights, Tensor) and weights.shape == sizes.shape
        if not (fits and weights.isfinite().all() and weights.min() >= 0 and weights.sum() > 0):
            raise UserError(
                f"aggregation weights must be a tensor of shape ({len(cohort)},), finite, not "
                f"negative and not all zero, not {weights!r:.60}"
            )
        weights = weights.to(sizes)
        return (weights / weights.mean()).tolist()

    def _trained(
        self, waiting: dict[int, Callable[[], ClientTask]], sent: RoundInputs, position: str
    ) -> Iterator[tuple[int, ClientTask, ClientResult]]:
        """Train clients in parallel, fewer from now on where the device's memory is too small."""
        device = self.fabric.device
        while waiting:
            group = [*islice(waiting, self.group_size)]
            try:
                yield from self._trained_together(group, waiting, sent)
                continue
            except torch.OutOfMemoryError as error:
                if len(group) == 1:
                    raise self._too_large(error) from error
            self.group_size = len(group) // 2
            print(
                f"{position}, rank {self.fabric.global_rank}: {len(group)} clients in parallel do "
                f"not fit the memory of {device}: continuing with {self.group_size}, same result "
                "to rounding"
            )
            if device.type == "cuda":
                torch.cuda.empty_cache()  # nothing here refers to the group's tensors any more

    def _trained_together(
        self, group: Sequence[int], waiting: dict[int, Callable[[], ClientTask]], sent: RoundInputs
    ) -> Iterator[tuple[int, ClientTask, ClientResult]]:
        begun = [waiting[k]() for k in group]
        states = [sent.states, *(visit.states for visit in begun)]
        shared = (state for terms in states for term in terms for state in term.values())
        sent = replace(sent, group=min(sent.group, self.group_size))
        with unchanged("a term", [*sent.facts.values(), *shared]):
            results = self.executor(sent, begun)
            for k, visit, result in zip(group, begun, results, strict=True):
                del waiting[k]  # whatever comes, this client is not trained again
                yield k, visit, result

    def _too_large(self, error: torch.OutOfMemoryError) -> ModelError:
        module, clients = self.executor.module, self.clients
        size, shape = sum(p.numel() for p in module.parameters()), clients.dataset.shape
        return ModelError(
            f"{class_name(module)} ({size:,} parameters, batches of {clients.batch_size} x "
            f"{'x'.join(map(str, shape))}) does not fit the memory of {self.fabric.device} "
            f"({str(error).split('. ')[0]}): lower --batch-size or choose a smaller --model"
        )


def _kept(before: Sequence[Buffers], after: Sequence[States], good: Tensor) -> list[States]:
    """A client's row after the visit; that before it if the result is not finite."""
    both = zip(before, after, strict=True)
    return [{k: torch.where(good, new, old[k]) for k, new in term.items()} for old, term in both]
