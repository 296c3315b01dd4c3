"""Federation: the way of a round, from the sampled cohort to the server's step."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.device import Moment
from fl_lightning.core.losses import TaskLoss, cross_entropy
from fl_lightning.core.vector import Layout
from fl_lightning.data import ClientData
from fl_lightning.errors import DivergenceError, RankLostError, adding_position, first_sentence
from fl_lightning.executors import Executor, SequentialExecutor
from fl_lightning.federation import divergence, sampling, sanity_checks, trials
from fl_lightning.federation.aggregation import RoundSums
from fl_lightning.federation.client_store import ClientStore
from fl_lightning.federation.local_training import LocalTraining
from fl_lightning.federation.sampling import ClientSampler, UniformSampling
from fl_lightning.federation.server import Server, load_model
from fl_lightning.federation.state import restore, state_of

Metrics = dict[str, float]
"""The scalars of one round, by TensorBoard tag."""


class Federation:
    """A federated simulation.

    Every rank of `fabric` holds the whole server. The clients of a round are spread over the ranks,
    one all-reduce adds up what they return, and every rank takes the same server step.

    The constructor runs no collective, opens no file and does not evaluate the model: see
    `prepare`, with which `fit` begins.

    Args:
        fabric: A launched Fabric. Its devices train the clients, with its precision. Its callbacks
            and loggers get the hooks that `fl_lightning.callbacks` describes.
        module: The model, w^0; it is moved to the device and trained in place.
        algorithm: The method.
        clients: The training data of the clients, on the device.
        rounds: Number of rounds that `fit` runs in all.
        sampler: Draws the cohort of each round.
        executor: How clients train, e.g. `partial(StackedExecutor, width=...)`.
        loss: The task's loss of the model's output and the targets.
        seed: Seed of cohorts, dropout, and what terms draw. Batch order and augmentation have the
            seed of `clients`.
        state_dir: Folder of the clients' states; a temporary one if None.
        client_state_memory: Bytes of them in a machine's memory; None is a quarter of what is free.
        on_divergence: What to do with a client whose training is not finite: "stop" the run;
            "skip-client" leaves it out of the round, keeps its states as they were, and counts it
            in `client/skipped`; "continue".
        deterministic: Equal bits on any number of ranks with equal hardware, threads and executor
            widths, by exact sums (see `ExactSum`). PyTorch's own switches are the caller's.
        diagnostics: Publish the scalars that terms name as `diagnostics`, too.

    Attributes:
        w: The global model, a flat Parameter of the server's optimizer, (d,).
        server, local_training: The server's and the clients' part of a round.
        untrained: Names of the parameters that the algorithm does not train.
        new_executor: Makes an executor of a module and its layout.
        cost: What a visit sends, keeps and computes.
        stop_requested, preempt_requested: What this rank has asked for by `request_stop`.
        skipped: The clients that the last round left out, under "skip-client".
        last_only: Tags that this round has because it is the last. A run of more rounds has none.
        should_stop: Whether the ranks agreed to end the run after this round. A callback may set it
            on all ranks in `on_fit_start` or `on_round_end`.
        preempted: Whether they agreed that the run is to be resumed.
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
        executor: Callable[..., Executor] = SequentialExecutor,
        loss: TaskLoss = cross_entropy,
        seed: int = 0,
        state_dir: Path | None = None,
        client_state_memory: int | None = None,
        on_divergence: divergence.OnDivergence = "stop",
        deterministic: bool = False,
        diagnostics: bool = False,
    ):
        sanity_checks.check_settings(fabric, on_divergence, sampler)
        self.fabric, self.module = fabric, fabric.to_device(module)
        self.clients, self.sampler, self.rounds = clients, sampler, rounds
        self.seed, self.on_divergence = seed, on_divergence
        self.untrained = sanity_checks.freeze_others(module, algorithm.trains)
        self.layout = Layout(module)
        sanity_checks.check_terms(algorithm.at(0, rounds), self.layout, loss)
        sanity_checks.check_optimizers(algorithm, self.layout.read(module))
        self.new_executor = partial(executor, loss=loss, autocast=fabric.autocast)
        of_run = rounds, clients.num_clients, sampling.largest_cohort(sampler, clients.num_clients)
        self.server = Server(module, self.layout, algorithm, seed, *of_run)
        self.w = self.server.w
        self.local_training = LocalTraining(
            fabric,
            self.server,
            clients,
            self.new_executor(module, self.layout),
            sampler,
            on_divergence=on_divergence,
            deterministic=deterministic,
            diagnostics=diagnostics,
        )
        self.cost = self.local_training.rehearsal.cost
        self.server.saved |= self.local_training.rehearsal.moved | {*self.untrained}
        self.loss, self._state_dir, self._memory = loss, state_dir, client_state_memory
        self.should_stop = self.preempted = self.stop_requested = self.preempt_requested = False
        self._training = self._prepared = False
        self.skipped, self.last_only = frozenset[int](), set[str]()

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.server.round

    @property
    def algorithm(self) -> Algorithm:
        """The method as it is in this round, with numbers in the place of its curves."""
        return self.server.algorithm

    @property
    def finished(self) -> bool:
        """Whether the run is over: after its last round, or when a callback ended it."""
        return self.round == self.rounds or (self.should_stop and not self.preempted)

    @property
    def store(self) -> ClientStore:
        """The clients' states."""
        self.prepare()
        return self.local_training.store

    def prepare(self) -> None:
        """Synchronize the ranks, open the client store, try model and method; all ranks together.

        The other methods call it. A second call does nothing.
        """
        if self._prepared:
            return
        if self.fabric.world_size > 1:
            sanity_checks.sync_ranks(self.fabric, self.module, self.clients)
            self.server.reset(self.module)
        self.local_training.open(self._state_dir, self._memory)
        trials.dry_run(self.module, self.clients, self.loss, self.fabric.autocast)
        self._prepared = True
        trials.try_visit(self.local_training)
        self.load_global()

    def fit(self) -> None:
        """Run the remaining rounds, or until a rank asks to stop.

        `module` is the global model afterwards, also after an error.

        Raises:
            DivergenceError: See `train_round`; or if every client of every round was skipped.
            RankLostError: If another rank ended.
        """
        self.prepare()
        self.should_stop = self.preempted = False
        try:
            with adding_position(self.position, lambda: self._training):
                self.fabric.call("on_fit_start", federation=self)
                while self.round < self.rounds and not self.should_stop:
                    self._run_round()
                if self.finished:
                    self.fabric.call("on_fit_end", federation=self)
                self.stop_requested = self.preempt_requested = False
        finally:
            self.load_global()
        ended = self.finished and self.round
        if ended and self.on_divergence == "skip-client" and not (self.store.slot >= 0).any():
            raise DivergenceError(
                f"{self.position()}: every client of every round was skipped, so the model is the "
                f"initial one ({self.local_training.settings()}): lower the learning rate, or clip"
            )

    def _run_round(self) -> None:
        started = Moment(self.w.device)
        self.last_only = set()
        metrics = self.train_round()
        trained = Moment(self.w.device)
        self.fabric.call("on_round_end", federation=self, metrics=metrics)
        if self.fabric.world_size == 1:  # nobody else has to agree
            self.should_stop |= self.stop_requested
            self.preempted |= self.preempt_requested
        if self.finished:
            self.fabric.call("on_last_round_end", federation=self, metrics=metrics)
        ended = Moment(self.w.device)
        metrics |= {"time/evaluate_s": ended - trained, "time/round_s": ended - started}
        self.fabric.log_dict(metrics, step=self.round)
        self.fabric.call("on_round_logged", federation=self, metrics=metrics)

    def request_stop(self, preempted: bool = False) -> None:
        """End `fit` after this round, or after the next if the ranks have added up this one.

        Any rank may ask. `on_fit_end` is not called if the run is `preempted`, to be resumed.
        """
        self.stop_requested = True
        self.preempt_requested |= preempted

    def train_round(self) -> Metrics:
        """Run one round: the cohort trains, one all-reduce, the server steps.

        Returns:
            `train/loss`, `DISTANCES`, what terms log, `local/lr`, the cohort's communication, and
            seconds; under "skip-client" also `client/skipped`.

        Raises:
            DivergenceError: If what a client or the server makes is no longer finite. The model
                has not moved if it was a client.
        """
        self.prepare()
        device = self.w.device
        started, self._training = Moment(device), True
        cohort = sampling.next_cohort(self.sampler, self)
        sanity_checks.check_cohort(cohort, self.clients, self.sampler, self.position())
        facts = self.local_training.round_facts(len(cohort))
        self.fabric.call("on_round_start", federation=self, cohort=cohort)
        finished = partial(self.fabric.call, "on_client_end", federation=self)
        sums = self.local_training.run(cohort, facts, self.position(), finished)
        if self.stop_requested:
            sums.request_stop(self.preempt_requested)
        trained = Moment(device)
        self.all_reduce_sum(sums.total)
        scalars = self._server_step(cohort, facts, sums)
        times = {"time/train_s": trained - started, "time/aggregate_s": Moment(device) - trained}
        self.server.round += 1
        self._training = False
        return scalars | times

    def _server_step(self, cohort: list[int], facts: dict[str, Any], sums: RoundSums) -> Metrics:
        """Step with the complete sums; gives the scalars of the round."""
        goes_on, skips = (self.on_divergence == mode for mode in ("continue", "skip-client"))
        tags = self.local_training.logs.tags
        status, scalars, finite = self.server.finish_round(sums, facts, cohort, tags)
        lost = {} if goes_on else {cohort[k]: part for k, part in status.diverged.items()}
        if lost and not skips:
            raise divergence.client_diverged(lost, *self._place())
        if not (goes_on or all(finite)):
            raise divergence.server_diverged(finite.index(False), *self._place())
        self.should_stop, self.preempted = status.stop, status.preempted
        self.skipped = frozenset(lost)
        if status.counts:
            self.store.commit([client for client in cohort if client not in lost])
        return {
            **scalars,
            **({"client/skipped": float(len(lost))} if skips else {}),
            "local/lr": self.local_training.rates.of_round(self.round),
            **self.server.traffic(self.local_training.rehearsal, len(cohort), status.bits),
        }

    def _place(self) -> tuple[Any, ...]:
        """The round, terms and settings, for messages about divergence."""
        return self.position(), self.algorithm.terms, self.local_training.settings()

    def all_reduce_sum(self, numbers: Tensor) -> None:
        """Add up a vector over the ranks, in place."""
        try:
            self.fabric.all_reduce(numbers, reduce_op="sum")
        except RuntimeError as error:
            message = f"{self.position()}: another rank ended ({first_sentence(error)})"
            raise RankLostError(message) from error

    def position(self) -> str:
        """The round that is being trained, or was trained last, for messages."""
        if self._training:
            return f"round {self.round + 1} of {self.rounds}"
        return f"after round {self.round} of {self.rounds}" if self.round else "before round 1"

    def load_global(self) -> nn.Module:
        """The module, in evaluation mode, with the global weights; valid until the next round."""
        return load_model(self.module, self.layout, self.w.detach(), self.server.buffers)

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs, except the rows of the client store.

        Call `store.retain()` on every rank before it, with a name for each of several; later rounds
        leave these rows alone. The tensors are live: save the state, or deepcopy it.
        """
        self.prepare()
        return state_of(self.local_training)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, on every rank, with the same `state_dir`.

        Raises:
            UserError: If it is of another run, or the clients' states are gone.
        """
        self.prepare()
        restore(self.local_training, state)
