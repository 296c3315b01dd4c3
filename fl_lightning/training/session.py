"""A session of a run: from the parts in memory to the last checkpoint, or to a signal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from fl_lightning.callbacks import Checkpoint, Personalization, ProgressBar, TensorBoard
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.schedule import Schedule
from fl_lightning.data import CropFlip
from fl_lightning.distributed.signals import stop_on_signals
from fl_lightning.federation.disk_space import check_disk_space
from fl_lightning.runs.chosen import Chosen
from fl_lightning.runs.converters import parse_interval
from fl_lightning.runs.folder import begin, end
from fl_lightning.runs.metrics_csv import MetricsCSV
from fl_lightning.runs.options import Options
from fl_lightning.runs.run import Run
from fl_lightning.runs.trackers import start_trackers
from fl_lightning.training import parts
from fl_lightning.training.parts import RunData
from fl_lightning.training.summary import results, summary
from fl_lightning.training.task import Task


@dataclass(eq=False)
class Session:
    """What trains in one process a rank, until the run ends or is to be resumed.

    Args:
        run: The run, whose folder is open.
        options: Its options.
        fabric: A launched Fabric.
        task: The model with its loss and scores.
        data: The data, on the device.
        algorithm: The method, with what the general options change in it.
        loggers: Fabric's list of loggers.
        hooks: Fabric's list of callbacks.
        schedule: The factor on the local learning rate; None: that of the options.
        augment: Augmentation of training images.
        callbacks: The user's callbacks.
        components: The chosen callbacks.
        chosen: The chosen functions, which the run's folder names.
        files: The user's files, which are copied into it.
        names: Of data, model and algorithm, for the summary.
        words: Changes the sentences that are printed, which name flags.

    Attributes:
        federation: The simulation, before its first round.
        scored: The evaluations of the global model; the last one chooses the best model.

    Raises:
        UserError: If the parts do not fit together.
    """

    run: Run
    options: Options
    fabric: Fabric
    task: Task
    data: RunData
    algorithm: Algorithm
    loggers: list[Any]
    hooks: list[Any]
    schedule: Schedule | None = None
    augment: CropFlip | None = None
    callbacks: Sequence[Any] = ()
    components: Sequence[Chosen] = ()
    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    files: Iterable[Path] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    words: Callable[[str], str] = str

    def __post_init__(self) -> None:
        o, task, data, folder = self.options, self.task, self.data, self.run.path
        self.scored = [task.evaluation(d, part, o.evaluate_every) for part, d in data.scored()]
        own = parts.callbacks(self.callbacks, self.components, data, folder, task)
        self.own = [*task.callbacks, *own]
        self.monitor = self.scored[-1].monitor if self.scored else "train/loss"
        self.federation = parts.federation(
            self.fabric,
            task.model,
            self.algorithm,
            data,
            self.augment,
            folder / "clients",
            own,
            o,
            task.loss,
            self.schedule,
        )
        self.federation.prepare()

    def train(self, notes: Iterable[str] = ()) -> bool:
        """Run the remaining rounds.

        Args:
            notes: Sentences that are printed before the summary.

        Returns:
            Whether the run is over. If not, a signal has stopped it after a checkpoint.
        """
        o, run, federation, data = self.options, self.run, self.federation, self.data
        checkpoint = Checkpoint(
            run.path,
            parse_interval(o.checkpoint_every),
            o.keep_checkpoints,
            [*self.scored, *self.own],
            monitor=self.monitor,
            mode=self.scored[-1].mode if self.scored else None,
        )
        tuning, scores = list[Any](), run.path / "personal.csv"
        if o.finetune_epochs:
            tuning = [Personalization(data.test, o.finetune_epochs, scores, o.finetune_lr)]
        if o.resume:
            checkpoint.resume(federation)
        check_disk_space(federation, o.keep_checkpoints)
        self._begin(notes)
        done = federation.round
        progress = ProgressBar(self.scored[0].monitor if self.scored else "")
        tensorboard = TensorBoard(run.path, after=done)
        tensorboard.log_hyperparams(run.config)
        if done == 0 and data.train.classes:
            tensorboard.log_partition(data.partition, data.train.labels, data.train.classes)
        self.loggers += [
            # the first, since it names what is no number
            MetricsCSV(run.path / "metrics.csv", done, checkpoint.last_only),
            tensorboard,
            *start_trackers(o.logger or (), run.path, run.config),
        ]
        self.hooks += [
            *self.scored,
            *self.own,
            progress,
            checkpoint,  # saves the states of the others
            *tuning,
        ]
        return self._fit(progress, checkpoint.upwards)

    def _begin(self, notes: Iterable[str]) -> None:
        """Write the options and the partition into the folder, and print notes and the summary."""
        o, fabric, done = self.options, self.federation.fabric, self.federation.round
        if fabric.is_global_zero:
            begin(self.run, fabric, self.chosen, self.files, done)
            self.data.whole.save(self.run.path)
        for note in notes:
            self._say(note)
        self._say(summary(o, self.names, self.data, self.federation))
        if done == o.rounds:
            self._say(f"nothing is left to train after {done} rounds: raise --rounds")

    def _fit(self, progress: ProgressBar, upwards: bool) -> bool:
        federation = self.federation
        fabric, status = federation.fabric, "failed"
        with stop_on_signals(partial(federation.request_stop, preempted=True)) as signals:
            try:
                federation.fit()
                status = "success"
            finally:
                progress.stop()
                for logger in fabric.loggers:
                    logger.finalize(status)
        after = f"after round {federation.round} of {federation.rounds}"
        if not federation.finished or (self.options.finetune_epochs and federation.preempted):
            reason = f"by {signals[0]}" if signals else "as another rank asked"
            self._say(
                f"stopped {reason} {after}, which is saved: "
                f"continue with --run-dir {self.run.path} --resume"
            )
            fabric.barrier()  # the first rank has written everything
            return False
        early = federation.round < federation.rounds
        if early:
            self._say(f"ended early, {after}")
        if fabric.is_global_zero:
            end(self.run, federation.round, "a callback" if early else "the last round")
            monitors, sent = [s.monitor for s in self.scored], federation.cost.uplink > 0
            self._say(results(self.run, monitors, upwards, sent))
        return True

    def _say(self, text: str) -> None:
        self.federation.fabric.print(self.words(text))
