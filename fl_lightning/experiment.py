"""Experiment: a recipe's run, from the command line to the last checkpoint."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import cached_property, partial
from itertools import chain
from typing import Any

from torch import nn

from fl_lightning.cli.arguments import given, with_resumed_options
from fl_lightning.cli.choices import choices, component_text, read_component
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.cli.parser import parse, refuse_unused_options, unused_option_notes
from fl_lightning.cli.recipes import COLLECTED
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.data import CropFlip, DeviceDataset, FederatedData, Partition
from fl_lightning.data.dataset import TrainTest
from fl_lightning.distributed.launch import launch_fabric
from fl_lightning.distributed.launch_options import (
    LaunchOptions,
    PrecisionOption,
    launch_options,
    under_fabric_run,
)
from fl_lightning.distributed.signals import exit_on_ctrl_c, exit_without_nccl_teardown
from fl_lightning.errors import ModelError
from fl_lightning.printing import ending_with_reader
from fl_lightning.runs.chosen import build_data, build_model
from fl_lightning.runs.config import Config
from fl_lightning.runs.folder import interrupted
from fl_lightning.runs.options import GROUPS, Options
from fl_lightning.training import parts
from fl_lightning.training.session import Parts, Session
from fl_lightning.training.task import Task


class Experiment:
    """One run of a recipe.

    Args:
        data: The recipe's data sources besides the package's; the first is the default.
        models: The recipe's model factories besides the package's; the first is the default.
        algorithm: The default algorithm, or as in YAML {"name": "fedsam", "rho": 0.1}.
        partition: The default partition scheme, likewise.
        augment: The default augmentation of training images.
        callbacks: User-defined callbacks, called before those of `--callback`. The checkpoint saves
            their states.
        doc: The recipe's docstring, shown by `--help`.
        argv: The command line without the program; that of the process if None.
        **defaults: Options whose default differs from `Options` and `LaunchOptions`.

    Attributes:
        offered: What can be chosen, with the recipe's defaults.
        options: The resolved options.
        chosen: The chosen data, model, algorithm, partition and modifiers.
    """

    def __init__(
        self,
        data: Sequence[Callable[..., TrainTest | FederatedData]],
        models: Sequence[Callable[..., nn.Module]],
        *,
        algorithm: str | Mapping[str, Any] = "fedavg",
        partition: str | Mapping[str, Any] = "dirichlet",
        augment: CropFlip | None = None,
        callbacks: Sequence[Any] = (),
        doc: str | None = None,
        argv: Sequence[str] | None = None,
        **defaults: Any,
    ):
        unknown = defaults.keys() - {f.name for f in (*fields(Options), *fields(LaunchOptions))}
        if unknown:
            raise TypeError(f"Experiment has no option {', '.join(sorted(unknown))}")
        argv = sys.argv[1:] if argv is None else list(argv)
        self.offered = choices(data, models, algorithm, partition, augment)
        groups = {**GROUPS, "launch": PrecisionOption if under_fabric_run() else LaunchOptions}
        self._given = given(argv)
        # while `experiment_of` waits, its caller says what is wrong
        with exit_with_message() if COLLECTED.get() is None else nullcontext():
            values, self.chosen = parse(
                groups, self.offered, with_resumed_options(argv), doc or "", **defaults
            )
            named = {
                "loss": [values["loss"]],
                "sampling": [values["sampling"]],
                "metric": values["metric"] or (),
                "callback": [text for text in values["callback"] if text != "none"],
            }
            self._components = {k: [read_component(k, t) for t in of] for k, of in named.items()}
            texts = {k: tuple(map(component_text, made)) for k, made in self._components.items()}
            values |= texts | {kind: texts[kind][0] for kind in ("loss", "sampling")}
            values["metric"] = texts["metric"] or None
            self.options = Options(**{f.name: values.pop(f.name) for f in fields(Options)})
            self._launch = launch_options(**values)
        self.callbacks = callbacks
        every = [*self.chosen.values(), *chain(*self._components.values())]
        self._files = [c.file for c in every if c.file]  # the user's

    @cached_property
    def config(self) -> Config:
        """The options of the run, without those that its algorithm cannot use."""
        unused = parts.unused_by(parts.algorithm(self.chosen))
        return Config.of(self.options, self._launch.precision, self.chosen, self._files, unused)

    def run(self) -> None:
        """Train: load and split the data, run the rounds, print where the results lie."""
        if (collected := COLLECTED.get()) is not None:
            collected.append(self)
            return
        with exit_without_nccl_teardown(), exit_with_message(), ending_with_reader():
            session = self.session()
            with exit_on_ctrl_c(lambda: interrupted(session.run)):
                try:
                    session.fit(self.parts)
                except ModelError as error:
                    error.args = (f"--model {self.chosen['model'].name}: {error}",)
                    raise

    def session(self) -> Session:
        """The run, which has not begun; `parts` makes what it trains.

        Raises:
            UserError: If an option has no effect.
        """
        refuse_unused_options(self._given, self.chosen)
        return Session(
            self.options,
            partial(launch_fabric, self._launch),
            self.config,
            self.chosen,
            self._files,
            [*self.callbacks, *self._components["callback"]],
            augment=self.chosen["augment"](),
            sampling=self._components["sampling"][0],
            notes=partial(unused_option_notes, self._given, self.options, self.chosen),
        )

    def parts(self) -> Parts:
        """What trains: the results of the chosen functions."""
        (loss,), metrics = self._components["loss"], self._components["metric"]
        train, test = self.load()
        data = parts.run_data(train, test, self.split(train), self.options)
        classes = len(train.classes)
        task = Task(self.model(train), parts.loss(loss), parts.metrics(metrics, classes))
        return Parts(task, data, self.algorithm())

    def load(self) -> TrainTest:
        """The training and the test set of the chosen source."""
        return build_data(self.chosen["data"], self.options.data_dir)

    def split(self, train: DeviceDataset) -> Partition:
        """The chosen partition of the training set over the clients."""
        o = self.options
        return parts.partition(self.chosen["partition"], train, o.clients, o.seed)

    def model(self, train: DeviceDataset) -> nn.Module:
        """The chosen model, for samples of this data set, with weights drawn by the run's seed."""
        return build_model(self.chosen["model"], train, self.options.seed)

    def algorithm(self) -> Algorithm:
        """The chosen algorithm with its modifiers and what the general options change in it."""
        return parts.with_general_options(parts.algorithm(self.chosen), self.options)
