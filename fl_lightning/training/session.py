"""A session of a run: from its folder and ranks to the results, or to a signal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from lightning.fabric import Fabric

from fl_lightning.algorithms.modifiers import method_name
from fl_lightning.callbacks import (
    Checkpoint,
    Personalization,
    PersonalModels,
    PersonalScores,
    PersonalWeights,
    ProgressBar,
    TensorBoard,
)
from fl_lightning.callbacks.privacy import PrivacyAccountant, is_private
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.data import CropFlip, own_test_split
from fl_lightning.distributed.collectives import load_rank_zero_first
from fl_lightning.distributed.launch import deterministic_algorithms
from fl_lightning.distributed.signals import (
    EXIT_PREEMPTED,
    exit_with_launcher,
    leave,
    stop_on_signals,
)
from fl_lightning.federation.federation import Federation
from fl_lightning.federation.lockstep import LockstepExecutor, ask
from fl_lightning.printing import print_any_character
from fl_lightning.runs.chosen import Chosen
from fl_lightning.runs.config import Config
from fl_lightning.runs.converters import parse_bytes, parse_interval
from fl_lightning.runs.folder import begin, end, open_run, shared
from fl_lightning.runs.loggers import MetricsCSV, start_trackers
from fl_lightning.runs.options import Options
from fl_lightning.runs.run import Run
from fl_lightning.training import parts
from fl_lightning.training.parts import RunData, client_data
from fl_lightning.training.summary import effects, results, summary
from fl_lightning.training.task import Task


@dataclass(frozen=True)
class Parts:
    """What trains, in memory.

    Attributes:
        task: The model with its loss and scores.
        data: The clients' data, and those that are scored.
        algorithm: The method, with what the general options change in it.
    """

    task: Task
    data: RunData
    algorithm: Algorithm


@dataclass(eq=False)
class Session:
    """A run in this process: its folder, its ranks, and the rounds until it ends or is stopped.

    Args:
        options: The options.
        launch: Makes a launched Fabric of its loggers and callbacks.
        config: What the folder records of the run.
        chosen: The functions that the folder names, to make data and model again.
        files: The user's files, which are copied into the folder.
        callbacks: The user's callbacks, and the chosen ones.
        further_loggers: The user's loggers.
        augment: Augmentation of training images.
        sampling: What chooses the clients of a round.
        notes: Gives sentences for the summary, from whether clients send anything.
        words: Changes the sentences that are printed, which name flags.
        quiet: Print neither the summary nor rounds nor results.
        lockstep: Whether its clients train with clients of other runs (see `run_in_lockstep`).

    Attributes:
        run: The run, once its folder is open.
        federation: The simulation, once the parts are made.
    """

    options: Options
    launch: Callable[..., Fabric]
    config: Config
    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    files: Iterable[Path] = ()
    callbacks: Sequence[Any] = ()
    further_loggers: Sequence[Any] = ()
    augment: CropFlip | None = None
    sampling: Chosen = parts.UNIFORM
    notes: Callable[[bool], Iterable[str]] = lambda _: ()
    words: Callable[[str], str] = str
    quiet: bool = False
    lockstep: bool = False

    run: Run = field(init=False)
    federation: Federation = field(init=False)

    @property
    def method(self) -> str:
        """The algorithm and its modifiers, as `scaffold+lesam`."""
        names = {option: str(name).rpartition(":")[2] for option, name in self.config.items()}
        return method_name(names)

    def fit(self, make: Callable[[], Parts]) -> None:
        """Open the folder, launch the ranks, and run the remaining rounds.

        Args:
            make: Makes the parts, on each rank; the first one comes before the others.

        Raises:
            UserError: If the parts do not fit together.
            SystemExit: If a signal has stopped the run after a checkpoint (`EXIT_PREEMPTED`).
        """
        print_any_character()
        o = self.options
        with (
            deterministic_algorithms(o.deterministic),
            open_run(o.run_dir, self.method, self.config, o.resume) as self.run,
            exit_with_launcher(),
        ):
            # Fabric keeps these very lists, which are filled when what they need exists
            loggers, hooks = list[Any](), list[Any]()
            fabric = self.launch(loggers=loggers, callbacks=hooks)
            # rank 0 alone knows a new folder, and a script may ask for one that it has just made
            path, resume = fabric.broadcast((str(self.run.path), o.resume))
            self.run, self.options = Run(Path(path), self.config), replace(o, resume=resume)
            with shared(self.run, fabric):
                made = load_rank_zero_first(fabric, make)
                with made.task.lent():
                    over = self._train(fabric, made, loggers, hooks)
                if not over:
                    leave(EXIT_PREEMPTED)

    def _train(self, fabric: Fabric, made: Parts, loggers: list[Any], hooks: list[Any]) -> bool:
        """Run the rounds; returns whether the run is over, and not stopped by a signal."""
        task, data, run = made.task, made.data.to(fabric.device), self.run
        task.to(fabric.device)
        o = self.options = replace(self.options, clients=len(data.partition))
        scored = [task.evaluation(d, part, o.evaluate_every) for part, d in data.scored(task)]
        own = parts.callbacks(self.callbacks, data, run.path, task)
        self.federation = federation = self._simulation(fabric, made, data, own)
        federation.prepare()
        if task.metrics:  # a round later is too late to name a wrong one
            for part, d in data.scored(task):
                task.try_out(d, part)
        if self.lockstep:
            ask(federation)
        private = [PrivacyAccountant(federation)] if is_private(made.algorithm) else []
        own = [*task.callbacks, *private, *own]
        directions = {k: v for s in scored for k, v in s.directions.items()}
        monitors = [s.monitor for s in scored]
        monitor = monitors[-1] if monitors else "train/loss"
        checkpoint = Checkpoint(
            run.path,
            parse_interval(o.checkpoint_every),
            o.keep_checkpoints,
            [*scored, *own],
            monitor=monitor,
            upwards=directions.get(monitor),
            config=run.config,
        )
        if o.resume:
            checkpoint.resume(federation)
        notes = [*task.notes, *(accountant.planned(federation) for accountant in private)]
        of_own_models = any(isinstance(one, PersonalScores | PersonalWeights) for one in own)
        advise = not (o.finetune_epochs or of_own_models)
        # before the folder holds a run: one may not start
        trackers = start_trackers(o.logger or (), run.path, run.config)
        self._begin(data, notes, directions, advise)
        loggers += [*self._loggers(data, checkpoint), *trackers, *self.further_loggers]
        shown = monitors[0] if monitors else ""
        progress = ProgressBar(shown)
        shows = [] if self.quiet else [progress]
        hooks += [*scored, *own, *shows, checkpoint]  # which saves the states of the others
        if o.finetune_epochs:
            hooks.append(self._personalization(task, data, shown))
        over = self._fit(progress)
        if over and fabric.is_global_zero:
            task.export(run.path, federation.round)
            sent = federation.cost.uplink > 0
            self._say(results(run, monitors, checkpoint.upwards, sent, advise))
            for accountant in private:
                self._say(accountant.spent(federation))
        fabric.barrier()  # the first rank has written everything
        return over

    def _loggers(self, data: RunData, checkpoint: Checkpoint) -> list[Any]:
        """The run's own loggers; TensorBoard also gets the options and the partition."""
        run, done = self.run, self.federation.round
        tensorboard = TensorBoard(run.path, after=done)
        tensorboard.log_hyperparams(run.config)
        if done == 0 and data.train.classes:
            tensorboard.log_partition(data.partition, data.train.labels, data.train.classes)
        return [
            # the first, since it names what is no number
            MetricsCSV(run.path / "metrics.csv", done, checkpoint.last_only),
            tensorboard,
        ]

    def _personalization(self, task: Task, data: RunData, monitor: str) -> Personalization:
        """The fine-tuning of the global model on each client, after the last round."""
        o, own = self.options, data.own_tests
        models = PersonalModels(
            data.test,
            o.finetune_lr,
            own=own or own_test_split(data.train, data.test, data.partition),
            task=task,
            tag=monitor,
        )
        path = self.run.path / "personal.csv"
        return Personalization(models, o.finetune_epochs or (), path, self._say)

    def _simulation(
        self, fabric: Fabric, made: Parts, data: RunData, callbacks: Sequence[Any]
    ) -> Federation:
        """The simulation, before its first round, with what the callbacks need in it."""
        o, model = self.options, made.task.model
        clients = client_data(data, self.augment, o)
        make = parts.executor(o, fabric.device, sum(p.numel() for p in model.parameters()))
        private, memory = is_private(made.algorithm), o.client_state_memory
        terms = [term for callback in callbacks for term in getattr(callback, "terms", ())]
        return Federation(
            fabric,
            model,
            made.algorithm.with_outer_terms(*terms),
            clients,
            rounds=o.rounds,
            sampler=parts.sampler(self.sampling, o.participation, clients.sizes, private),
            executor=partial(LockstepExecutor, make) if self.lockstep else make,
            loss=made.task.loss,
            seed=o.seed,
            state_dir=self.run.path / "clients",
            client_state_memory=None if memory is None else parse_bytes(memory),
            on_divergence=o.on_divergence,
            deterministic=o.deterministic,
            diagnostics=any(getattr(callback, "diagnostics", False) for callback in callbacks),
        )

    def _begin(
        self, data: RunData, notes: Sequence[str], scores: Mapping[str, bool], advise: bool
    ) -> None:
        """Write the options and the partition into the folder, and print notes and the summary."""
        o, federation = self.options, self.federation
        if federation.fabric.is_global_zero:
            begin(
                self.run,
                federation.fabric,
                self.chosen,
                self.files,
                federation.round,
                scores,
                [data.train.digest, data.test.digest],
            )
            data.whole.save(self.run.path)
        names = {**self.config, "algorithm": self.method}
        about = summary(o, names, data, federation), *effects(self.method, o, federation, advise)
        for text in (*self.notes(federation.cost.uplink > 0), *notes, *about):
            self._say(text)
        if federation.round == o.rounds:
            self._say(f"nothing is left to train after round {o.rounds}: raise --rounds")

    def _fit(self, progress: ProgressBar) -> bool:
        federation = self.federation
        fabric, status = federation.fabric, "failed"
        with stop_on_signals(partial(federation.request_stop, preempted=True)) as signals:
            try:
                federation.fit()
                status = "success" if federation.finished else "failed"  # as Lightning has it
            finally:
                progress.stop()
                for logger in fabric.loggers:
                    logger.finalize(status)
        after = f"after round {federation.round} of {federation.rounds}"
        if not federation.finished or (self.options.finetune_epochs and federation.preempted):
            reason = f"by {signals[0]}" if signals else "as another rank asked"
            self.quiet = False
            self._say(
                f"stopped {reason} {after}, which is saved: "
                f"continue with --run-dir {quote(str(self.run.path))} --resume"
            )
            return False
        early = federation.round < federation.rounds
        if early:
            self._say(f"ended early, {after}")
        if fabric.is_global_zero:
            end(self.run, federation.round, "a callback" if early else "the last round")
        return True

    def _say(self, text: str) -> None:
        if not self.quiet:
            self.federation.fabric.print(self.words(text))
