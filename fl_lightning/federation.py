"""Federation: the server, its clients, and the round."""

import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import ceil, isfinite
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from fl_lightning.algorithm import Algorithm, Cohort, trial_facts
from fl_lightning.clients import ClientStore, FixedSize, Participation, share_out
from fl_lightning.cost import cost
from fl_lightning.data import ClientData
from fl_lightning.executors import Executor, Sequential, Visit
from fl_lightning.executors.visit import TaskLoss
from fl_lightning.randomness import derived_seed
from fl_lightning.schedule import Decay, Schedule
from fl_lightning.tally import Tally
from fl_lightning.term import begin
from fl_lightning.vector import Layout

PRECISIONS = "32-true", "bf16-mixed"
"""What Fabric's precision may be: it rules the arithmetic of forward passes."""

Metrics = dict[str, float]
"""The scalars of one round, by TensorBoard tag."""


class Diverged(Exception):
    """The model left the finite numbers; the last checkpoint is as it was."""


class Federation:
    """A federated simulation.

    The model's weights as given are w^0. Every rank of `fabric` holds the whole server; the clients of a round are
    spread over the ranks, one all-reduce adds up what they return, and every rank takes the same server step.

    Args:
        fabric: A launched Fabric: its devices train the clients, its precision is theirs, its callbacks and loggers get
            `on_fit_start(federation)`, `on_round_end(federation, metrics)` (may add to `metrics`),
            `on_round_logged(federation, metrics)` and `on_fit_end(federation)`.
        module: The model; it is moved to the device and trained in place.
        algorithm: The method.
        clients: The training data of the clients, on the device.
        participation: Who takes part in a round.
        rounds: How many rounds `fit` runs in all.
        schedule: The factor on the local learning rate.
        executor: How clients train: `Sequential`, or `partial(Stacked, width=...)`.
        loss: The task's loss of the model's output and the targets.
        seed: Names cohorts and dropout; batch order and augmentation have the seed of `clients`.
        state_dir: Where clients' states are kept; a temporary folder if None.

    Attributes:
        round: Rounds completed.
        w: The global model, a flat Parameter of the server's optimizer.
        cost: What a visit sends, keeps and computes.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: nn.Module,
        algorithm: Algorithm,
        clients: ClientData,
        *,
        rounds: int,
        participation: Participation = FixedSize(1.0),
        schedule: Schedule = Decay(),
        executor: Callable[..., Executor] = Sequential,
        loss: TaskLoss = nn.functional.cross_entropy,
        seed: int = 0,
        state_dir: Path | None = None,
    ):
        if rounds < 1:
            raise ValueError(f"a simulation has at least one round, not {rounds}")
        precision = fabric.strategy.precision.precision
        if precision not in PRECISIONS:
            raise ValueError(
                f"precision {precision} would not be kept: weights, duals and averages have the module's own "
                f"dtype; choose {' or '.join(PRECISIONS)}, and module.double() for 64 bits"
            )
        self.fabric, self.module, self.algorithm, self.clients = fabric, fabric.to_device(module), algorithm, clients
        self.participation, self.rounds, self.schedule, self.seed = participation, rounds, schedule, seed
        self.layout = Layout(module)
        if not algorithm.trains_head:
            module.get_submodule(self.layout.head).requires_grad_(False)
            self.layout = Layout(module)
        self.new_executor = partial(executor, loss=loss, autocast=fabric.autocast)
        self.executor = self.new_executor(module, self.layout)
        self.w = nn.Parameter(self.layout.read(module))
        self.first = self.w.detach().clone()
        self.buffers = {k: b.clone() for k, b in module.named_buffers() if k not in self.executor.keys}
        self.shared = [begin(term.server, self.first, self.first) for term in algorithm.terms]
        self.optimizer = algorithm.server([self.w])
        self.local_lr = float(algorithm.local([nn.Parameter(self.first.new_zeros(1))]).param_groups[0]["lr"])
        mean_size = ceil(clients.sizes.mean().item() / clients.batch_size)
        self.nominal = algorithm.span([self.local_lr] * (clients.steps or max(1, round(clients.epochs * mean_size))))
        self.store = self._open_store(state_dir)
        self.cost = cost(algorithm, self.layout, self.first)
        self._message = self._trial_message()
        self.round = 0

    def _open_store(self, folder: Path | None) -> ClientStore:
        begun = [begin(term.client, self.first, self.first) for term in self.algorithm.terms]
        if folder is None:
            mine = mkdtemp(prefix="fl_lightning-")
            weakref.finalize(self, shutil.rmtree, mine, ignore_errors=True)
            folder = Path(mine) / "rows"
        shared = Path(
            self.fabric.broadcast(str(folder))
        )  # whatever the others were given: any rank may train any client
        store = ClientStore(shared, self.clients.num_clients, begun)
        self.fabric.barrier()
        return store

    # ------------------------------------------------------------------------------------------------- the way of a run

    def fit(self) -> None:
        """Run the rounds that remain.

        Raises:
            Diverged: If the global model is no longer finite.
        """
        self.fabric.call("on_fit_start", federation=self)
        while self.round < self.rounds:
            started = _now(self.w)
            metrics = self.train_round()
            trained = _now(self.w)
            self.fabric.call("on_round_end", federation=self, metrics=metrics)
            metrics["time/evaluate_s"] = _now(self.w) - trained
            metrics["time/round_s"] = _now(self.w) - started
            self.fabric.log_dict(metrics, step=self.round)
            self.fabric.call("on_round_logged", federation=self, metrics=metrics)
        self.fabric.call("on_fit_end", federation=self)

    def train_round(self) -> Metrics:
        """Run one round: the cohort trains, one all-reduce, the server steps.

        Returns:
            The scalars of the round. `client/drift` is the mean squared distance between a client's move and the global
            model's; `comm/` counts the whole cohort.
        """
        started = _now(self.w)
        anchor = self.w.detach().clone()
        cohort = self.participation(self.clients.num_clients, self.seed, self.round)
        common = self.common_facts(anchor, len(cohort))
        weights = self._weights(cohort)
        tally = Tally(anchor, self._message, self.buffers)
        work = [self.clients.num_steps(i) for i in cohort]
        mine = share_out(work, self.fabric.world_size)[self.fabric.global_rank]
        for group in _groups(mine, self.executor.width):
            visits = [self._visit(cohort[k], weights[k], anchor) for k in group]
            outcomes = self.executor(self.algorithm, common, visits, self.shared, self.buffers)
            for k, outcome in zip(group, outcomes, strict=True):
                self.store.write(cohort[k], outcome.states)
                tally.add(outcome, float(weights[k]))
        self.store.commit(cohort)
        trained = _now(self.w)
        self.fabric.all_reduce(tally.total, reduce_op="sum")
        progress, message, self.buffers, (loss, squared) = tally.means()
        delta, self.shared = self.algorithm.update(progress, message, common, self.shared)
        self.w.grad = -delta
        self.optimizer.step()
        move = self.w.detach() - anchor
        drift = squared - 2 * progress.dot(move) + move.dot(move)  # mean ||progress_i - move||^2, progress_i being gone
        train_loss, drift, moved = torch.stack([loss, drift.clamp(min=0), move.norm()]).tolist()
        if not isfinite(moved):
            raise Diverged(self._divergence(train_loss, common))
        lr = self.local_lr * self.schedule(self.round, 0)
        self.round += 1
        return {
            "train/loss": train_loss,
            "client/drift": drift,
            "server/update_norm": moved,
            "local/lr": lr,
            "comm/uplink_mb": self._megabytes(self.cost.uplink) * len(cohort),
            "comm/downlink_mb": self._megabytes(self.cost.downlink) * len(cohort),
            "time/train_s": trained - started,
            "time/aggregate_s": _now(self.w) - trained,
        }

    def _visit(self, client: int, weight: Tensor, anchor: Tensor) -> Visit:
        batches = self.clients.visit(client, self.round)
        lrs = [self.local_lr * self.schedule(self.round, epoch) for epoch in batches.epochs]
        facts: dict[str, float | Tensor] = {
            "steps": len(lrs),
            "epochs": len(lrs) / self.clients.steps_per_epoch(client),
            "span": self.algorithm.span(lrs),
            "size": self.clients.sizes[client] / self.clients.sizes.mean(),
            "weight": weight,
        }
        values = torch.tensor([float(fact) for fact in facts.values()], dtype=anchor.dtype).to(anchor.device)
        own = dict(zip(facts, values.unbind(), strict=True))
        states = self._states(client, anchor)
        seed = derived_seed(self.seed, "dropout", self.round, client)
        return Visit(client, own, states, batches, lrs, seed)

    def _states(self, client: int, anchor: Tensor) -> list[dict[str, Tensor]]:
        terms = self.algorithm.terms
        if self.store.has(client):
            kept = self.store.read(client, anchor.device)
        else:
            kept = [begin(term.client, self.first, anchor) for term in terms]
        return [{**k, **begin(term.local, self.first, anchor)} for k, term in zip(kept, terms, strict=True)]

    def _weights(self, cohort: Sequence[int]) -> Tensor:
        index = torch.tensor(cohort)
        sizes = self.clients.sizes[index] / self.clients.sizes.mean()
        weights = self.algorithm.weight(Cohort(sizes, self.clients.class_counts[index]))
        if not (weights.isfinite().all() and weights.min() >= 0 and weights.sum() > 0):
            raise ValueError(
                f"aggregation weights must be finite, not negative and not all zero, but are {weights.tolist()}"
            )
        return weights / weights.mean()

    def common_facts(self, anchor: Tensor, cohort: int) -> dict[str, Any]:
        """What is true of every visit of a round with a cohort of this size."""
        return {
            "anchor": anchor,
            "share": cohort / self.clients.num_clients,
            "round": self.round,
            "rounds": self.rounds,
            "nominal": self.nominal,
            "layout": self.layout,
        }

    def _trial_message(self) -> list[Any]:
        """A message of no client, for its structure: a rank may have no client to learn it from."""
        terms, facts = self.algorithm.terms, trial_facts(self.layout, self.first)
        states = [begin({**t.client, **t.local}, self.first, self.first) for t in terms]
        w, states = self.algorithm.start(self.first, facts, states, self.shared)
        return self.algorithm.report(w.clone(), facts, states, self.shared)[0]

    def _megabytes(self, numbers: int) -> float:
        buffers = sum(b.numel() * b.element_size() for b in self.buffers.values())
        return (numbers * self.w.element_size() + buffers) / 1e6

    def _divergence(self, loss: float, common: dict[str, Any]) -> str:
        lr = self.local_lr * self.schedule(self.round, 0)
        return (
            f"round {self.round + 1} of {self.rounds}: the model is no longer finite (training loss {loss:.3g}, local "
            f"learning rate {lr:.3g}, {self.algorithm}). Lower the learning rate or the method's coefficients, or clip."
        )

    # ------------------------------------------------------------------------------------------------ the global model

    def load_global(self) -> nn.Module:
        """The module, in evaluation mode, with the global weights and buffers; valid until the next round."""
        self.layout.load(self.module, self.w.detach())
        live = dict(self.module.named_buffers())
        with torch.no_grad():
            for name, value in self.buffers.items():
                live[name].copy_(value)
        return self.module.eval()

    def personal(self, client: int) -> Tensor:
        """The model that a client uses for itself before any fine-tuning: the global one unless a term says otherwise."""
        w = self.w.detach()
        states = self._states(client, w)
        return self.algorithm.personal(w, self.common_facts(w, 1), states, self.shared)

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on, except the rows of the client store, which lie on disk."""
        return {
            "terms": self._terms(),
            "data": self.clients.digest,
            "precision": self.fabric.strategy.precision.precision,
            "round": self.round,
            "w": self.w.detach(),
            "first": self.first,
            "buffers": self.buffers,
            "shared": self.shared,
            "optimizer": self.optimizer.state_dict(),
            "place": self.store.place,
        }

    def _terms(self) -> list[str]:
        """The terms and their states' names: in what a checkpoint of another algorithm differs."""
        return [f"{type(t).__name__}({', '.join([*t.client, *t.server])})" for t in self.algorithm.terms]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: If the checkpoint is of another model, number of clients or algorithm.
        """
        theirs = state["w"].numel(), len(state["place"]), state["terms"]
        mine = self.w.numel(), self.clients.num_clients, self._terms()
        if theirs != mine:
            raise ValueError(
                "this run has another model, number of clients or algorithm than the checkpoint, which holds {} "
                "parameters, {} clients and terms {}; this run has {}, {} and {}".format(*theirs, *mine)
            )
        precision = self.fabric.strategy.precision.precision
        if state["data"] != self.clients.digest or state["precision"] != precision:
            raise ValueError(
                f"the checkpoint is of data {state['data']} at precision {state['precision']}, this run has data "
                f"{self.clients.digest} at {precision}: resume with the same data, partition and precision"
            )
        if state["round"] > self.rounds:
            raise ValueError(
                f"the checkpoint is of round {state['round']}, this run ends with {self.rounds}: name more"
            )
        device = self.w.device
        with torch.no_grad():
            self.w.copy_(state["w"])
        self.first = state["first"].to(device)
        self.buffers = {k: b.to(device) for k, b in state["buffers"].items()}
        self.shared = [{k: t.to(device) for k, t in s.items()} for s in state["shared"]]
        self.optimizer.load_state_dict(state["optimizer"])
        self.store.restore(state["place"])
        self.round = state["round"]


def _groups(positions: Sequence[int], width: int) -> Iterator[list[int]]:
    rest = iter(positions)
    while group := list(islice(rest, width)):
        yield group


def _now(w: Tensor) -> float:
    """Seconds, once the device has done what it was given."""
    if w.is_cuda:
        torch.cuda.synchronize(w.device)
    return time.perf_counter()
