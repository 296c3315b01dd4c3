"""Federation: the way of a round, from the sampled cohort to the server's step."""

from collections.abc import Callable, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.cost import cost
from fl_lightning.core.device import synchronized_time
from fl_lightning.core.schedule import Decay, Schedule
from fl_lightning.core.term import Term
from fl_lightning.core.vector import Layout
from fl_lightning.data import ClientData
from fl_lightning.errors import adding_position
from fl_lightning.executors import Executor, SequentialExecutor
from fl_lightning.executors.executor import Buffers, TaskLoss
from fl_lightning.federation import preflight
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.divergence import (
    OnDivergence,
    all_skipped,
    client_diverged,
    server_diverged,
)
from fl_lightning.federation.local_training import LocalTraining
from fl_lightning.federation.sampling import ClientSampler, UniformSampling
from fl_lightning.federation.server import Server

Metrics = dict[str, float]
"""The scalars of one round, by TensorBoard tag."""


DISTANCES = "client/drift", "client/distance", "client/pair_distance", "server/update_norm"
"""How far models have moved in a round."""


class Federation:
    """A federated simulation.

    The model's weights as given are w^0. Every rank of `fabric` holds the whole server. The
    clients of a round are spread over the ranks, one all-reduce adds up what they return, and
    every rank takes the same server step.

    The constructor runs no collective, opens no file and does not evaluate the model. `prepare`
    does, and `fit` begins with it.

    Args:
        fabric: A launched Fabric. Its devices train the clients, with its precision. Its callbacks
            and loggers get the hooks that `fl_lightning.callbacks` describes.
        module: The model; it is moved to the device and trained in place.
        algorithm: The method.
        clients: The training data of the clients, on the device.
        rounds: Number of rounds that `fit` runs in all.
        sampler: Draws the cohort of each round.
        schedule: The factor on the local learning rate.
        executor: How clients train: `SequentialExecutor`, or e.g.
            `partial(StackedExecutor, width=...)`.
        loss: The task's loss of the model's output and the targets.
        seed: Seed of cohorts, dropout, and what terms draw. Batch order and augmentation have the
            seed of `clients`.
        state_dir: Folder of the clients' states; a temporary one if None.
        client_state_memory: Bytes of them that may stay in a machine's memory; None leaves it to
            the system.
        on_divergence: What to do with a client whose training is not finite: "stop" the run;
            "skip-client" leaves it out of the round, keeps its states as they were, and counts it
            in `client/skipped`; "continue".
        deterministic: Equal bits on any number of ranks with equal hardware, threads and executor
            widths, by exact sums (see `ExactSum`). PyTorch's own switches are the caller's.
        diagnostics: Publish the scalars that terms name as `diagnostics`, too.

    Attributes:
        server: The global model, its states and its optimizer.
        local_training: The clients' part of a round.
        loss: The task's loss.
        cost: What a visit sends, keeps and computes.
        stop_requested: Whether this rank asked to stop.
        preempt_requested: Whether it asked so for a run that is to be resumed.
        should_stop: Whether the ranks agreed to end the run after this round. A callback may set it
            on all ranks in `on_fit_start` or `on_round_end`.
        preempted: Whether they agreed that the run is to be resumed.

    Raises:
        ValueError: If these do not make a federation.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: nn.Module,
        algorithm: Algorithm,
        clients: ClientData,
        *,
        rounds: int,
        sampler: ClientSampler = UniformSampling(1.0),
        schedule: Schedule = Decay(),
        executor: Callable[..., Executor] = SequentialExecutor,
        loss: TaskLoss = nn.functional.cross_entropy,
        seed: int = 0,
        state_dir: Path | None = None,
        client_state_memory: int | None = None,
        on_divergence: OnDivergence = "stop",
        deterministic: bool = False,
        diagnostics: bool = False,
    ):
        preflight.check_settings(fabric, clients, rounds, on_divergence)
        self.fabric, self.module, self.algorithm = fabric, fabric.to_device(module), algorithm
        self.clients, self.sampler, self.rounds = clients, sampler, rounds
        self.schedule, self.seed, self.on_divergence = schedule, seed, on_divergence
        if not algorithm.trains_head:
            module.get_submodule(Layout(module).head).requires_grad_(False)
        self.layout = Layout(module)
        preflight.check_optimizers(algorithm, self.layout.read(module))
        self.local_training = LocalTraining(
            fabric,
            module,
            self.layout,
            algorithm,
            clients,
            partial(executor, loss=loss, autocast=fabric.autocast),
            schedule,
            seed,
            skip_diverged=on_divergence == "skip-client",
            deterministic=deterministic,
            diagnostics=diagnostics,
            probabilities=getattr(sampler, "probabilities", None),
        )
        dropout_keys = self.local_training.executor.keys
        self.server = Server(module, self.layout, algorithm, seed, dropout_keys)
        method = algorithm.replace(*(t for t in algorithm.terms if "measure" not in t.roles))
        self.cost = cost(method, self.layout, self.server.initial_w, len(clients.dataset.classes))
        self.loss, self._state_dir, self._memory = loss, state_dir, client_state_memory
        self.should_stop = self.stop_requested = self._training = self._prepared = False
        self.preempted = self.preempt_requested = False

    @property
    def w(self) -> nn.Parameter:
        """The global model, a flat Parameter of the server's optimizer, (d,)."""
        return self.server.w

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.server.round

    @property
    def finished(self) -> bool:
        """Whether the run is over: after its last round, or when a callback ended it."""
        return self.round == self.rounds or (self.should_stop and not self.preempted)

    @property
    def buffers(self) -> Buffers:
        """The global buffers by name."""
        return self.server.buffers

    @property
    def store(self) -> ClientStore:
        """The clients' states."""
        self.prepare()
        return self.local_training.store

    # ------------------------------------------------------------------------- the way of a run

    def prepare(self) -> None:
        """Synchronize the ranks, open the client store and try the model. All ranks call it.

        `fit`, `train_round`, `load_state_dict` and `store` call it when it has not been called.

        Raises:
            ValueError: If a rank has other data than the first.
            ModelError: If the model does not fit the data (see `dry_run`).
        """
        if self._prepared:
            return
        if self.fabric.world_size > 1:
            preflight.sync_ranks(self.fabric, self.module, self.clients)
            self.server.reset(self.module)
        self.local_training.open(self.server, self._state_dir, self._memory)
        preflight.dry_run(self.module, self.clients, self.loss, self.fabric.autocast)
        self._prepared = True

    def fit(self) -> None:
        """Run the remaining rounds, or until a rank asks to stop.

        `on_fit_end` is called when the run is `finished`, not when it is preempted.

        Raises:
            DivergenceError: If what a client or the server makes is no longer finite, or, after the
                last round, if every client of every round was skipped.
            RankLostError: If another rank ended.
        """
        self.prepare()
        self.should_stop = self.preempted = False
        heartbeat = self.local_training.heartbeat
        noted = adding_position(self.position, lambda: self._training)
        with heartbeat.watching(self.position), noted:
            self.fabric.call("on_fit_start", federation=self)
            while self.round < self.rounds and not self.should_stop:
                self._run_round()
            if self.finished:
                self.fabric.call("on_fit_end", federation=self)
            self.stop_requested = self.preempt_requested = False
        trained = self.cost.uplink and self.finished and self.round
        if trained and self.on_divergence == "skip-client" and self.w.equal(self.server.initial_w):
            raise all_skipped(*self._place())

    def _run_round(self) -> None:
        device = self.w.device
        started = synchronized_time(device)
        metrics = self.train_round()
        trained = synchronized_time(device)
        self.fabric.call("on_round_end", federation=self, metrics=metrics)
        metrics["time/evaluate_s"] = synchronized_time(device) - trained
        metrics["time/round_s"] = synchronized_time(device) - started
        self.fabric.log_dict(metrics, step=self.round)
        if self.fabric.world_size == 1:  # nobody else has to agree
            self.should_stop |= self.stop_requested
            self.preempted |= self.preempt_requested
        self.fabric.call("on_round_logged", federation=self, metrics=metrics)

    def request_stop(self, preempted: bool = False) -> None:
        """End `fit` after this round, or after the next if the ranks have added up this one.

        Any rank may ask.

        Args:
            preempted: The run is to be resumed, so `on_fit_end` is not called.
        """
        self.stop_requested = True
        self.preempt_requested |= preempted

    def train_round(self) -> Metrics:
        """Run one round: the cohort trains, one all-reduce, the server steps.

        Returns:
            The scalars of the round. `client/drift` is the mean squared distance between a
            client's last model and the new global one, `client/distance` its mean distance from
            the received one, `client/pair_distance` the root mean square distance of two clients'
            models; `term/` is what terms log; `comm/` counts the whole cohort.

        Raises:
            DivergenceError: If what a client or the server makes is no longer finite. The model
                has not moved if it was a client.
            RankLostError: If another rank ended.
        """
        self.prepare()
        device, server = self.w.device, self.server
        started, self._training = synchronized_time(device), True
        cohort = self.sampler(self.clients.num_clients, self.seed, self.round)
        preflight.check_cohort(
            cohort, self.clients.num_clients, f"{self.position()}: {self.sampler}"
        )
        facts = self.round_facts(len(cohort))
        self.fabric.call("on_round_start", federation=self, cohort=cohort)
        finished = partial(self.fabric.call, "on_client_end", federation=self)
        sums = self.local_training.run(server, cohort, facts, self.position(), finished)
        if self.stop_requested:
            sums.request_stop(self.preempt_requested)
        trained = synchronized_time(device)
        self.all_reduce_sum(sums.total)
        status, watched = sums.status(), self.on_divergence != "continue"
        lost = {cohort[k]: part for k, part in status.diverged.items()} if watched else {}
        if lost and self.on_divergence == "stop":
            raise client_diverged(lost, *self._place())
        self.should_stop, self.preempted = status.stop, status.preempted
        scalars, finite = {"train/loss": nan, **dict.fromkeys(DISTANCES, 0.0)}, list[float]()
        if not status.empty:
            scalars, finite = self._server_step(sums, facts)
            self.store.commit([client for client in cohort if client not in lost])
        if watched and not all(finite):
            raise server_diverged(finite.index(False), *self._place())
        lr = self.local_training.lr(self.round)
        server.round, self._training = server.round + 1, False
        skipped = {"client/skipped": float(len(lost))}
        return {
            **scalars,
            **(skipped if self.on_divergence == "skip-client" else {}),
            "local/lr": lr,
            "comm/uplink_mb": server.megabytes(self.cost.uplink) * len(cohort),
            "comm/downlink_mb": server.megabytes(self.cost.downlink) * len(cohort),
            "time/train_s": trained - started,
            "time/aggregate_s": synchronized_time(device) - trained,
        }

    def _server_step(self, sums: RoundSums, facts: dict[str, Any]) -> tuple[Metrics, list[float]]:
        """Update the model; returns the round's scalars, and whether each part stayed finite."""
        (progress, moved), messages, self.server.buffers, (loss, squared) = sums.means()
        move, flags = self.server.step(progress, messages, facts)
        # mean ||(u_i - w^t) - move||^2, expanded, since each u_i is gone
        drift, length = squared - 2 * moved.dot(move) + move.dot(move), move.norm()
        distances = drift.clamp(min=0), *sums.distances(moved), length
        finite = [flag.to(length) for flag in (*flags, length.isfinite())]
        tags = "train/loss", *DISTANCES, *self.local_training.logs.tags
        numbers = torch.stack([loss, *distances, *sums.logged(), *finite]).tolist()
        return dict(zip(tags, numbers, strict=False)), numbers[len(tags) :]

    def _place(self) -> tuple[str, Sequence[Term], str]:
        """The round, terms and settings, for messages about divergence."""
        return self.position(), self.algorithm.terms, self.local_training.settings(self.round)

    def all_reduce_sum(self, numbers: Tensor) -> None:
        """Add up a vector over the ranks, in place.

        Raises:
            RankLostError: If another rank ended.
        """
        self.prepare()
        with self.local_training.heartbeat.naming_lost_rank(self.position):
            self.fabric.all_reduce(numbers, reduce_op="sum")

    def round_facts(self, cohort_size: int) -> dict[str, Any]:
        """The facts of every visit of a round with a cohort of this size (see `View`)."""
        share = cohort_size / self.clients.num_clients
        return {
            "anchor": self.w.detach().clone(),
            "share": share,
            "expected": getattr(self.sampler, "expected_share", share),
            "round": self.round,
            "rounds": self.rounds,
            "nominal": self.local_training.nominal_span,
            "layout": self.layout,
        }

    def position(self) -> str:
        """The round that is being trained, or was trained last, for messages."""
        if self._training:
            return f"round {self.round + 1} of {self.rounds}"
        return f"after round {self.round} of {self.rounds}" if self.round else "before round 1"

    # ---------------------------------------------------------------------------- the model

    def load_global(self) -> nn.Module:
        """The module, in evaluation mode, with the global weights; valid until the next round."""
        return self.server.load_into(self.module)

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs, except the rows of the client store.

        Call `store.retain()` on every rank before it; later rounds then leave the rows alone until
        it is called again. `store.retain(name)` keeps the rows of several. The tensors are live, as
        in a module's state_dict: save it, or deepcopy it.

        Raises:
            ValueError: If clients keep states and their rows are not retained.
        """
        self.prepare()
        clients = self.local_training.state_dict()
        return {**self.server.state_dict(), **clients, "rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, on every rank, with the same `state_dir`.

        Raises:
            ValueError: If it is of another model, algorithm, data, number of clients or precision,
                of a later round, or the clients' states are gone.
        """
        self.prepare()
        self.server.check_state(state)
        preflight.check_checkpoint_rounds(state, self.rounds, self.cost.has_horizon)
        self.local_training.load_state_dict(state)
        self.server.load_state_dict(state)
