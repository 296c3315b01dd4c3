"""Federation: the server, its clients, and the round."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil, isfinite, nan
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.cost import cost
from fl_lightning.core.device import synchronized_time
from fl_lightning.core.randomness import derived_seed, seeded_rng
from fl_lightning.core.schedule import Decay, Schedule
from fl_lightning.core.term import Term, init_states
from fl_lightning.core.vector import Layout
from fl_lightning.data import ClientData
from fl_lightning.distributed.heartbeat import rendezvous
from fl_lightning.errors import (
    DivergenceError,
    ModelError,
    RankLostError,
    TermError,
    first_sentence,
)
from fl_lightning.executors import Executor, SequentialExecutor
from fl_lightning.executors.executor import TaskLoss
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.client_store import open_store
from fl_lightning.federation.divergence import (
    OnDivergence,
    all_below,
    client_diverged,
    finite,
    server_diverged,
    stay_finite,
)
from fl_lightning.federation.exact_sum import ExactSum, PlainSum, Sum
from fl_lightning.federation.local_training import states_of, train
from fl_lightning.federation.preflight import (
    check_optimizers,
    check_setting,
    dry_run,
    message_template,
    sync_ranks,
)
from fl_lightning.federation.sampling import ClientSampler, UniformSampling
from fl_lightning.federation.server import restore, snapshot

Metrics = dict[str, float]
"""The scalars of one round, by TensorBoard tag."""


class Federation:
    """A federated simulation.

    The model's weights as given are w^0. Every rank of `fabric` holds the whole server; the clients
    of a round are spread over the ranks, one all-reduce adds up what they return, and every rank
    takes the same server step.

    Args:
        fabric: A launched Fabric: its devices train the clients, its precision is theirs, its
            callbacks and loggers get `on_fit_start(federation)`, `on_round_end(federation,
            metrics)` (may add to `metrics`), `on_round_logged(federation, metrics)` and
            `on_fit_end(federation)`.
        module: The model; it is moved to the device and trained in place.
        algorithm: The method.
        clients: The training data of the clients, on the device.
        participation: Who takes part in a round.
        rounds: How many rounds `fit` runs in all.
        schedule: The factor on the local learning rate.
        executor: How clients train: `SequentialExecutor`, or e.g. `partial(StackedExecutor,
            width=...)`.
        loss: The task's loss of the model's output and the targets.
        seed: Names cohorts, dropout, and what terms draw; batch order and augmentation have the
            seed of `clients`.
        state_dir: Where clients' states are kept; a temporary folder if None.
        client_state_memory: Bytes of them that may stay in a machine's memory; None leaves it to
            the system.
        on_divergence: What becomes of a client whose training is no longer finite: "stop" the run;
            "skip-client" leaves it out of the round, with its states as they were, and counts it in
            `client/skipped`; "continue".
        deterministic: Equal to the last bit on any number of ranks with equal hardware, numbers of
            threads and widths, by exact sums (see `ExactSum`); PyTorch's own switches are for the
            program to set.

    Attributes:
        round: Rounds completed.
        stop_requested: Whether this rank asks for it.
        group_size: How many clients train at once: as many as the executor takes, until a device's
            memory is too small.
        stopping: Whether the ranks have agreed to end the run early, after this round (see
            `request_stop`).
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
        participation: ClientSampler = UniformSampling(1.0),
        schedule: Schedule = Decay(),
        executor: Callable[..., Executor] = SequentialExecutor,
        loss: TaskLoss = nn.functional.cross_entropy,
        seed: int = 0,
        state_dir: Path | None = None,
        client_state_memory: int | None = None,
        on_divergence: OnDivergence = "stop",
        deterministic: bool = False,
    ):
        check_setting(fabric, clients, rounds, on_divergence)
        self.fabric, self.module, self.algorithm, self.clients = (
            fabric,
            fabric.to_device(module),
            algorithm,
            clients,
        )
        self.participation, self.rounds, self.schedule, self.seed = (
            participation,
            rounds,
            schedule,
            seed,
        )
        self.layout = Layout(module)
        sync_ranks(fabric, module, clients)
        if not algorithm.trains_head:
            module.get_submodule(self.layout.head).requires_grad_(False)
            self.layout = Layout(module)
        self.new_executor = partial(executor, loss=loss, autocast=fabric.autocast)
        self.executor = self.new_executor(module, self.layout)
        self.w = nn.Parameter(self.layout.read(module))
        self.first = self.w.detach().clone()
        check_optimizers(algorithm, self.first)
        self.buffers = {
            k: b.clone() for k, b in module.named_buffers() if k not in self.executor.keys
        }
        self.cost = cost(algorithm, self.layout, self.first, len(clients.dataset.classes))
        self.shared = [init_states(term.server, self.first, self.first) for term in algorithm.terms]
        self.optimizer = algorithm.server([self.w])
        self.local_lr = float(
            algorithm.local([nn.Parameter(self.first.new_zeros(1))]).param_groups[0]["lr"]
        )
        mean_size = ceil(clients.mean_size / clients.batch_size)
        self.nominal = algorithm.span(
            [self.local_lr] * (clients.steps or max(1, round(clients.epochs * mean_size)))
        )
        begun = [init_states(term.client, self.first, self.first) for term in algorithm.terms]
        self.began_finite = {"clients": finite(begun), "server": finite(self.shared)}
        self.store = open_store(fabric, state_dir, clients.num_clients, begun, client_state_memory)
        self.heartbeat = rendezvous(
            fabric, self.store.folder.with_name(".ranks"), self.executor.width, self.store.row > 0
        )
        classes = len(clients.dataset.classes)
        self.message = message_template(algorithm, self.layout, self.first, self.shared, classes)
        self.group_size = self.executor.width
        dry_run(self, loss)
        self.round, self.on_divergence, self.deterministic = 0, on_divergence, deterministic
        self.sums: type[Sum] = ExactSum if deterministic else PlainSum
        self.should_stop = self.stop_requested = self._training = False

    # ------------------------------------------------------------------------------------------------- the way of a run

    def fit(self) -> None:
        """Run the rounds that remain, or until a rank asks to stop; `on_fit_end` is for a run with all its rounds.

        Raises:
            DivergenceError: If what a client or the server makes is no longer finite.
            RankLostError: If another rank ended.
        """
        self.should_stop = False
        with self.heartbeat.watching(self.where), self._annotate_errors():
            self.fabric.call("on_fit_start", federation=self)
            while self.round < self.rounds and not self.should_stop:
                self._run_round()
            if self.round == self.rounds:
                self.fabric.call("on_fit_end", federation=self)
            self.stop_requested = False  # it has been heard

    @contextmanager
    def _annotate_errors(self) -> Iterator[None]:
        """Let an exception, which may be this rank's alone, say when it came; all ranks agree on what is told so."""
        try:
            yield
        except (
            DivergenceError,
            RankLostError,
            TermError,
            ModelError,
        ):  # a client's is named already, a server's is every rank's
            raise
        except Exception as error:
            if not self._training or not getattr(
                error, "__notes__", []
            ):  # of a client's training the round is told
                error.add_note(self.where())
            raise

    def _run_round(self) -> None:
        started = synchronized_time(self.w.device)
        metrics = self.train_round()
        trained = synchronized_time(self.w.device)
        self.fabric.call("on_round_end", federation=self, metrics=metrics)
        metrics["time/evaluate_s"] = synchronized_time(self.w.device) - trained
        metrics["time/round_s"] = synchronized_time(self.w.device) - started
        self.fabric.log_dict(metrics, step=self.round)
        if self.fabric.world_size == 1:  # one rank agrees with itself, also after the sums
            self.should_stop = self.should_stop or self.stop_requested
        self.fabric.call("on_round_logged", federation=self, metrics=metrics)

    def request_stop(self) -> None:
        """Let `fit` return after this round, or the next one if the ranks have added up this one; any rank may ask."""
        self.stop_requested = True

    def train_round(self) -> Metrics:
        """Run one round: the cohort trains, one all-reduce, the server steps.

        Returns:
            The scalars of the round. `client/drift` is the mean squared distance between a client's
            move and the global model's; `comm/` counts the whole cohort.

        Raises:
            DivergenceError: If what a client or the server makes is no longer finite; the former
                leaves the model unmoved.
            RankLostError: If another rank ended.
        """
        started, self._training = synchronized_time(self.w.device), True
        anchor = self.w.detach().clone()
        cohort = self.participation(self.clients.num_clients, self.seed, self.round)
        common = self.common_facts(anchor, len(cohort))
        tally = train(self, cohort, common)
        trained = synchronized_time(self.w.device)
        self.all_reduce_sum(tally.total)
        verdict = tally.verdict()
        lost = (
            {cohort[k]: what for k, what in verdict.diverged.items()}
            if self.on_divergence != "continue"
            else {}
        )
        if lost and self.on_divergence == "stop":
            raise client_diverged(self.where(), lost, self.algorithm.terms, self._how())
        self.should_stop, train_loss, drift, moved, *well = verdict.stop, nan, 0.0, 0.0
        if not verdict.empty:
            train_loss, drift, moved, *well = self._move(tally, common)
            self.store.commit([client for client in cohort if client not in lost])
        if not all(well) and self.on_divergence != "continue":
            raise server_diverged(
                self.where(), well.index(False), self.algorithm.terms, self._how()
            )
        lr = self.local_lr * self.schedule(self.round, 0)
        self.round, self._training = self.round + 1, False
        return {
            "train/loss": train_loss,
            "client/drift": drift,
            **({"client/skipped": float(len(lost))} if self.on_divergence == "skip-client" else {}),
            "server/update_norm": moved,
            "local/lr": lr,
            "comm/uplink_mb": self._megabytes(self.cost.uplink) * len(cohort),
            "comm/downlink_mb": self._megabytes(self.cost.downlink) * len(cohort),
            "time/train_s": trained - started,
            "time/aggregate_s": synchronized_time(self.w.device) - trained,
        }

    def all_reduce_sum(self, numbers: Tensor) -> None:
        """Add up a vector over the ranks, in place.

        Raises:
            RankLostError: If another rank ended.
        """
        try:
            self.fabric.all_reduce(numbers, reduce_op="sum")
        except RuntimeError as error:
            if self.fabric.world_size == 1:
                raise
            reason, others = first_sentence(error), self.heartbeat.of_others()
            missing = f"; not done: {others}" if others else ", so its clients are missing"
            raise RankLostError(
                f"{self.where()}: another rank ended{missing} ({reason})"
            ) from error

    def _move(self, tally: RoundSums, common: dict[str, Any]) -> list[float]:
        """The server's step; returns training loss, drift, how far the model moved, and what stayed finite."""
        progress, message, self.buffers, (loss, squared) = tally.means()
        with seeded_rng(
            derived_seed(self.seed, "server", self.round), self.w.device
        ):  # alike on every rank
            delta, states = self.algorithm.update(progress, message, common, self.shared)
        stayed = stay_finite(self.began_finite["server"], states)
        self.shared, self.w.grad = states, -delta
        self.optimizer.step()
        move = self.w.detach() - common["anchor"]
        drift = (
            squared - 2 * progress.dot(move) + move.dot(move)
        )  # mean ||progress_i - move||^2, progress_i being gone
        moved = move.norm()
        well = [one.to(moved) for one in (all_below(delta), *stayed, moved.isfinite())]
        return torch.stack([loss, drift.clamp(min=0), moved, *well]).tolist()

    def common_facts(self, anchor: Tensor, cohort: int) -> dict[str, Any]:
        """What is true of every visit of a round with a cohort of this size."""
        return {
            "anchor": anchor,
            "share": cohort / self.clients.num_clients,
            "expected": getattr(
                self.participation, "expected_share", cohort / self.clients.num_clients
            ),
            "round": self.round,
            "rounds": self.rounds,
            "nominal": self.nominal,
            "layout": self.layout,
        }

    def _megabytes(self, numbers: int) -> float:
        buffers = sum(b.numel() * b.element_size() for b in self.buffers.values())
        return (numbers * self.w.element_size() + buffers) / 1e6

    def where(self) -> str:
        """The round that is being trained, or was trained last, for messages."""
        if self._training:
            return f"round {self.round + 1} of {self.rounds}"
        return (
            f"after round {self.round} of {self.rounds}" if self.round else "before the first round"
        )

    def _how(self) -> str:
        limit = (
            f", sums of numbers below {self.sums.limit:,.0f}" if isfinite(self.sums.limit) else ""
        )
        return f"local learning rate {self.local_lr * self.schedule(self.round, 0):.3g}, {self.algorithm}{limit}"

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
        """The model that a client uses before any fine-tuning: the global one unless a term says otherwise."""
        w = self.w.detach()
        if all(type(term).personal is Term.personal for term in self.algorithm.terms):
            return w  # and no row need be read
        states = states_of(self, client, w)
        return self.algorithm.personal(w, self.common_facts(w, 1), states, self.shared)

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on, except the rows of the client store, which lie on disk.

        Before it, call `store.pin()` on every rank, and later rounds leave those rows alone, until
        it is called again; `store.pin(name)` keeps those of several. Like a module's, it holds the
        live tensors: save it, or deepcopy it.

        Raises:
            ValueError: If clients keep states and these rows are not pinned.
        """
        return snapshot(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, on every rank, with the same `state_dir`.

        Raises:
            ValueError: If it is of another model, number of clients or algorithm, or its rows are
                no longer there.
        """
        restore(self, state)
