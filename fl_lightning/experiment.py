"""Experiment: what a recipe is made of, from the command line to the last checkpoint."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.optim import SGD

from fl_lightning.algorithms import modifiers
from fl_lightning.callbacks import (
    Checkpoint,
    Evaluation,
    Personalization,
    ProgressBar,
    TensorBoardScalars,
    TensorBoardSummary,
)
from fl_lightning.callbacks.checked import CheckedCallback
from fl_lightning.cli import parser as parser
from fl_lightning.cli.argv import given, with_resumed_options
from fl_lightning.cli.build import build_algorithm, build_data, build_model, build_partition
from fl_lightning.cli.choices import parts
from fl_lightning.cli.converters import parse_bytes
from fl_lightning.cli.error_messages import exit_with_error, exit_with_message
from fl_lightning.cli.options import Options
from fl_lightning.cli.summary import summary
from fl_lightning.cli.unused_options import (
    check_unused_coefficients,
    check_unused_options,
    unused_option_notes,
)
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.schedule import Decay
from fl_lightning.data import ClientData, CropFlip, DeviceDataset, Partition
from fl_lightning.distributed.determinism import deterministic_algorithms
from fl_lightning.distributed.launch import LaunchOptions, PrecisionOption, launch_fabric
from fl_lightning.distributed.launcher_env import precision_of_fabric_run, under_fabric_run
from fl_lightning.distributed.malloc import keep_freed_memory
from fl_lightning.distributed.signals import (
    EXIT_PREEMPTED,
    exit_on_ctrl_c,
    exit_with_launcher,
    exit_without_nccl_teardown,
    leave,
    stop_on_signals,
)
from fl_lightning.distributed.staged_loading import load_rank_zero_first
from fl_lightning.errors import ModelError
from fl_lightning.executors import AutotunedExecutor, Executor, SequentialExecutor, StackedExecutor
from fl_lightning.federation.federation import Federation
from fl_lightning.federation.sampling import UniformSampling, make_sampler
from fl_lightning.runs.config_yaml import flat
from fl_lightning.runs.folder import RunFolder, to_yaml
from fl_lightning.runs.metrics_csv import MetricsCSV
from fl_lightning.terms import Clip

Source = Callable[..., tuple[DeviceDataset, DeviceDataset]]
"""`source(root=...)` gives the training and the test set."""


class Experiment:
    """One run of a recipe.

    Args:
        data: The data sources that the recipe offers; the first is the default.
        models: The model factories that it offers; the first is the default.
        algorithm: The default algorithm, or as in YAML {"name": "fedsam", "rho": 0.1}.
        partition: The default partition scheme, likewise.
        augment: How training images are augmented by default.
        callbacks: Callbacks of your own, called after the recipe's but before the checkpoint, which
            keeps their states.
        small: Whether a round takes so few milliseconds that `--devices auto` is one rank of one
            thread.
        doc: The recipe's docstring, shown by `--help`.
        argv: The command line without the program; that of the process if None. With another one
            `--devices auto` is a single rank: other ranks would run the program around it too.
        **defaults: Options whose default differs from `Options`.

    Attributes:
        options: The resolved options.
        chosen: What was chosen for data, model, algorithm and partition.
    """

    def __init__(
        self,
        data: Sequence[Source],
        models: Sequence[Callable[..., nn.Module]],
        *,
        algorithm: str | Mapping[str, Any] = "fedavg",
        partition: str | Mapping[str, Any] = "dirichlet",
        augment: CropFlip | None = None,
        callbacks: Sequence[Any] = (),
        small: bool = False,
        doc: str | None = None,
        argv: Sequence[str] | None = None,
        **defaults: Any,
    ):
        self._alone, self._small = argv is not None, small
        argv = sys.argv[1:] if argv is None else list(argv)
        offered = parts(data, models, algorithm, partition, augment)
        told: dict[str, Any] = (
            {"precision": precision_of_fabric_run()} if under_fabric_run() else {}
        )
        groups: list[type] = [Options, PrecisionOption if told else LaunchOptions]
        self._default_of = {name: part.default for name, part in offered.items()}
        values, self.chosen = parser.parse(
            groups, offered, with_resumed_options(argv), doc or "", **defaults | told
        )
        self._given = given(argv)
        with exit_with_message():
            self._launch = LaunchOptions(
                **{f.name: values.pop(f.name) for f in fields(LaunchOptions) if f.name in values}
            )
            if "LT_PRECISION" in os.environ and told:  # a flag goes over files
                self._launch = replace(self._launch, **told)
            elif told and told["precision"] != self._launch.precision:
                raise ValueError(
                    f"fabric run takes the precision itself: add --precision {self._launch.precision} to it"
                )
            self.options = Options(**values)
            check_unused_options(self._given, self.options, self.chosen)
        self.callbacks = callbacks

    @property
    def method(self) -> str:
        """The algorithm and what was added to it, as `scaffold+lesam`."""
        added = [
            self.chosen[part].name
            for part in modifiers.PARTS
            if self.chosen[part].name != self._default_of[part]
        ]
        return "+".join([self.chosen["algorithm"].function.__name__, *added])

    def resolved(self) -> dict[str, Any]:
        """Every option as `--config` reads it, except the run's folder."""
        options = {k: v for k, v in asdict(self.options).items() if k not in ("run_dir", "resume")}
        options["precision"] = self._launch.precision
        return {
            **{name: {"name": c.name, **c.options} for name, c in self.chosen.items()},
            **options,
        }

    def run(self) -> None:
        """Train: load the data, split it, run the rounds, tell where the results lie."""
        o = self.options
        with (
            exit_without_nccl_teardown(),
            exit_with_message(),
            deterministic_algorithms(o.deterministic),
            RunFolder.open(o.run_dir, self.method, self.resolved(), o.resume) as folder,
            exit_on_ctrl_c(folder.interrupted),
            exit_with_launcher(),
        ):
            loggers: list[Any] = []
            callbacks: list[
                Any
            ] = []  # Fabric keeps these very lists; they fill up as what they need is made
            fabric = self.fabric(
                loggers, callbacks, folder.ranks_and_threads() if o.resume else None
            )
            with folder.shared(fabric):
                self._run(folder, fabric, loggers, callbacks)

    def _run(
        self, folder: RunFolder, fabric: Fabric, loggers: list[Any], callbacks: list[Any]
    ) -> None:
        o = self.options
        train, test, partition, model, algorithm = load_rank_zero_first(fabric, self.parts)
        try:
            federation = self.federation(fabric, train, partition, model, algorithm, folder.clients)
            federation.prepare()
        except ModelError as error:
            raise ModelError(f"--model {self.chosen['model'].name}: {error}") from error
        options, progress, named = (
            to_yaml(self.resolved()),
            ProgressBar(),
            [*map(CheckedCallback, self.callbacks)],
        )
        checkpoint = Checkpoint(
            folder.path, o.checkpoint_every, o.keep_checkpoints, options, self.callbacks
        )
        test = test.to(fabric.device)
        if o.resume:
            checkpoint.resume(federation)
        for note in unused_option_notes(
            self._given, o, self.chosen, federation.local_training.executor.width
        ):
            fabric.print(note)
        federation.disk_budget(o.keep_checkpoints).check_disk_space()
        folder.write(self.resolved(), fabric)
        if fabric.is_global_zero:
            partition.save(folder.path)
            for file in folder.copy_user_files(
                {c.file for c in self.chosen.values() if c.file}, federation.round
            ):
                print(
                    f"{file} is not what it was when the run began ({folder.path / 'own'}): rounds to come go by it"
                )
        names = {
            **{part: chosen.name for part, chosen in self.chosen.items()},
            "algorithm": self.method,
        }
        fabric.print(summary(o, names, train, test, partition, federation))
        done = federation.round
        if done == o.rounds:
            fabric.print(
                f"nothing is left to train: the run has had its {done} rounds; add --rounds with more"
            )
        events = TensorBoardScalars(folder.path, after=done)
        loggers += [events, MetricsCSV(folder.metrics, after=done)]
        pages = TensorBoardSummary(flat(self.resolved()), partition, train.y, train.classes)
        scores = Evaluation(test, o.evaluate_every)
        callbacks += [
            pages,
            scores,
            progress,
            *named,
            checkpoint,
        ]  # which saves what the others keep
        if o.finetune_epochs:
            callbacks.append(
                Personalization(
                    test, o.finetune_epochs, folder.path / "personal.csv", o.finetune_lr
                )
            )
        with stop_on_signals(federation.request_stop) as signals:
            try:
                federation.fit()
            finally:
                progress.stop()
                events.finalize("")
        if federation.round < federation.rounds or (o.finetune_epochs and federation.should_stop):
            self._leave(federation, folder, signals)
        if fabric.is_global_zero:
            print(folder.results_text(sent=federation.cost.uplink > 0))

    def _leave(self, federation: Federation, folder: RunFolder, signals: Sequence[str]) -> NoReturn:
        """End a run that was asked to stop, on all ranks at once."""
        fabric, why = (
            federation.fabric,
            f"by {signals[0]}" if signals else "as another rank or a callback asked",
        )
        fabric.print(
            f"stopped {why} after round {federation.round} of {federation.rounds}, which is saved: "
            f"go on with --run-dir {folder.path} --resume"
        )
        fabric.barrier()  # the first rank has written everything
        leave(EXIT_PREEMPTED)

    def fabric(
        self, loggers: list[Any], callbacks: list[Any], before: tuple[int, int] | None = None
    ) -> Fabric:
        """A launched Fabric, as the command line has it, or as `before` a resumption where that leaves it open."""
        keep_freed_memory()
        o, own = self.options, {"loggers": loggers, "callbacks": callbacks}
        visits = UniformSampling(o.participation).largest(o.clients)
        if o.executor == "stacked":
            visits //= o.parallel_clients  # on more ranks no group would be full
        launch = self._launch
        if (self._alone or self._small) and launch.devices == "auto":
            launch = replace(launch, devices="1")
        if self._small:
            torch.set_num_threads(1)
        try:
            return launch_fabric(launch, visits, before=before, **own)
        except (TypeError, ValueError, RuntimeError, MisconfigurationException) as error:
            exit_with_error(" ".join(str(error).split()))

    def parts(self) -> tuple[DeviceDataset, DeviceDataset, Partition, nn.Module, Algorithm]:
        """What the chosen functions make, any of which may be a user's: data, partition, model and algorithm."""
        train, test = self.load()
        return train, test, self.split(train), self.model(train), self.algorithm()

    def load(self) -> tuple[DeviceDataset, DeviceDataset]:
        """The training and the test set of the chosen source."""
        return build_data(self.chosen["data"], self.options.data_dir)

    def split(self, train: DeviceDataset) -> Partition:
        """The training set over the clients, by the chosen scheme."""
        o, source = self.options, self.chosen["data"].name
        return build_partition(self.chosen["partition"], train, source, o.clients, o.seed)

    def model(self, train: DeviceDataset) -> nn.Module:
        """The chosen model, for samples of this data set, with weights drawn from the run's seed."""
        return build_model(self.chosen["model"], train, self.options.seed)

    def algorithm(self) -> Algorithm:
        """The chosen algorithm, with the clipping of the options and, unless it brings its own, their local SGD."""
        o, chosen = self.options, build_algorithm(self.chosen)
        check_unused_coefficients(self._given, self.chosen, build_algorithm)
        clip = [] if o.clip_norm is None else [Clip(o.clip_norm)]
        # fused: one pass over the weights for decay, momentum and step
        sgd = partial(SGD, lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay, fused=True)
        return chosen.with_outer_terms(
            *clip, local=sgd if chosen.local is Algorithm().local else None
        )

    def executor(self, device: torch.device) -> Callable[..., Executor]:
        """How clients train on this device."""
        o = self.options
        together = partial(StackedExecutor, compiled=o.batch_size if o.compile else 0)
        makers: dict[str, Callable[..., Executor]] = {
            "sequential": partial(together, width=1) if o.compile else SequentialExecutor,
            "stacked": partial(together, width=o.parallel_clients),
        }
        measured = device.type == "cuda" and not o.deterministic  # a CPU does not wait for Python
        makers["auto"] = (
            partial(AutotunedExecutor, candidates=[*makers.values()])
            if measured
            else makers["sequential"]
        )
        return makers[o.executor]

    def federation(
        self,
        fabric: Fabric,
        train: DeviceDataset,
        partition: Partition,
        model: nn.Module,
        algorithm: Algorithm,
        state_dir: Path,
    ) -> Federation:
        """The simulation."""
        o = self.options
        clients = ClientData(
            train.to(fabric.device),
            partition,
            batch_size=o.batch_size,
            epochs=o.local_epochs,
            steps=o.local_steps,
            augment=self.chosen["augment"](),
            seed=o.seed,
        )
        return Federation(
            fabric,
            model,
            algorithm,
            clients,
            rounds=o.rounds,
            sampler=make_sampler(o.sampling, o.participation, clients.sizes),
            schedule=Decay(o.lr_decay),
            executor=self.executor(fabric.device),
            seed=o.seed,
            state_dir=state_dir,
            client_state_memory=None
            if o.client_state_memory is None
            else parse_bytes(o.client_state_memory),
            on_divergence=o.on_divergence,
            deterministic=o.deterministic,
        )
