"""FederatedTrainer: a module and data with clients in, a trained module and a run out."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from lightning.fabric import Fabric
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.losses import TaskLoss
from fl_lightning.data import CropFlip
from fl_lightning.data.federated import FederatedData
from fl_lightning.distributed.collectives import load_rank_zero_first
from fl_lightning.distributed.launch import in_one_thread, launch_same_ranks
from fl_lightning.errors import UserError
from fl_lightning.federation.federation import Metrics
from fl_lightning.federation.server import copy_of
from fl_lightning.runs.config import Config
from fl_lightning.runs.run import Run
from fl_lightning.training import arguments, parts
from fl_lightning.training.any_module import task_of
from fl_lightning.training.arguments import named_arguments, speaking_of_arguments
from fl_lightning.training.call_texts import loss_text
from fl_lightning.training.habits import HintsOnAttributes
from fl_lightning.training.lightning_module import set_up
from fl_lightning.training.session import Parts, Session
from fl_lightning.training.together import fit_together

if TYPE_CHECKING:
    from pandas import DataFrame


class FederatedTrainer(HintsOnAttributes):
    """Trains a module on the data of clients, as Lightning's Trainer does on one machine's data.

    Args:
        algorithm: A name of `fl-lightning list`; or a mapping with the name and options, also of
            parts of other methods, such as {"name": "scaffold", "perturb": "lesam"}; or an
            `Algorithm`.
        loss: Of a plain module's output and the target: "cross_entropy", "mse",
            "binary_cross_entropy", or a function that returns one number.
        metrics: Of a plain module: names of `fl_lightning.callbacks.metrics.METRICS`, or
            torchmetrics objects by name. The first chooses the best model.
        augment: Augmentation of images (n, channels, height, width), the first tensor of a row.
        callbacks: Objects with the hooks that `fl_lightning.callbacks` describes; or classes of
            them, such as `fl.callbacks.ClientScores`, which get the parts of the run they take.
        loggers: Further loggers of Fabric, which get the scalars. The option `logger`, such as
            ("wandb",), gives a tracker the options too.
        enable_progress_bar: Print a summary, the rounds and the results.
        **options: The options of the command line (`fl_lightning.runs.options`): rounds,
            participation, local_epochs, batch_size, lr, seed, run_dir, executor and others; and
            Fabric's accelerator, devices, num_nodes, strategy and precision. A LightningModule's
            `configure_optimizers` gives optimizer and scheduler unless lr is given. The seed is of
            the training alone: the module begins as it is, and FederatedData has a seed of its own.

    Attributes:
        run: The run of the last `fit`.

    Raises:
        UserError: If there is no such option, algorithm or loss.

    Example::

        trainer = fl.FederatedTrainer("fedtoga", rounds=300, participation=0.02)
        run = trainer.fit(module, data)
        trainer.test(data=data, per_client=True)
    """

    @speaking_of_arguments()
    def __init__(
        self,
        algorithm: str | Mapping[str, Any] | Algorithm = "fedavg",
        *,
        loss: str | TaskLoss | None = None,
        metrics: Sequence[str] | Mapping[str, Metric] = (),
        augment: CropFlip | None = None,
        callbacks: Sequence[Any] = (),
        loggers: Sequence[Any] = (),
        enable_progress_bar: bool = True,
        **options: Any,
    ):
        self._given = frozenset(options)
        self._arguments = {
            "algorithm": algorithm,
            "loss": loss,
            "metrics": metrics,
            "augment": augment,
            "callbacks": callbacks,
            "loggers": loggers,
            "enable_progress_bar": enable_progress_bar,
            **options,
        }
        self._sampling = arguments.read_sampling(options.get("sampling", "fixed"))
        named = {**options, "sampling": self._sampling.name}
        self.options, self._launch = arguments.read_options(named)
        self._chosen = arguments.read_algorithm(algorithm)
        self.algorithm = parts.algorithm(self._chosen)
        for option in sorted(parts.unused_by(self.algorithm) & self._given):
            raise UserError(f"the algorithm does not use {option}: leave it out")
        self.loss, self.metrics, self.augment = loss, metrics, augment
        arguments.check_objects(callbacks, loggers, augment)
        self.callbacks, self.loggers = callbacks, loggers
        self.enable_progress_bar = enable_progress_bar
        self.run: Run | None = None
        self._module: nn.Module | None = None
        self._fabric: Fabric | None = None

    @property
    def history(self) -> "DataFrame":
        """The scalars of the last `fit`: one row a round, one column a scalar.

        Raises:
            UserError: If nothing was fitted.
        """
        if self.run is None:
            raise UserError("there is no history before fit has ended")
        return self.run.metrics.reset_index()

    @named_arguments
    @in_one_thread()
    def fit(
        self,
        module: nn.Module,
        data: FederatedData | Callable[[], FederatedData] | None = None,
        *,
        datamodule: Any = None,
        clients: Any = None,
        resume: bool | Literal["auto"] = False,
    ) -> Run:
        """Train a module in place, and write the run's folder.

        Args:
            module: A LightningModule, or a plain module.
            data: The data with their clients; or a function that loads them, which is called after
                the launch, on the first rank before the others.
            datamodule: A LightningDataModule instead of data.
            clients: The owners of its training data, as `FederatedData` takes them.
            resume: Continue the run in `run_dir` from its newest checkpoint, or begin one there;
                "auto": if `run_dir` is given.

        Returns:
            The run, whose folder holds scalars, checkpoints, and the weights (`model.pt`; of a
            LightningModule also `model.ckpt`, for `load_from_checkpoint`).

        Raises:
            UserError: If module, data and options do not fit together. Nothing is trained then.
            DivergenceError: If the training is no longer finite (see `on_divergence`).
            RankLostError: If another rank ended.
            SystemExit: With code 75 if SIGTERM or SIGUSR1 has stopped the run after a checkpoint.
        """
        if callable(data):
            data = load_rank_zero_first(self._launched(), data)
        data = arguments.read_data(data, datamodule, clients)
        set_up(module)
        session, make = self._session(module, data, resume)
        self.run, self._module = None, module  # or an interrupted fit would show the former one
        session.fit(make)
        self.run = Run.read(session.run.path)
        return self.run

    @named_arguments
    @in_one_thread()
    def fit_many(
        self,
        module: nn.Module,
        data: FederatedData | None = None,
        runs: Sequence[Mapping[str, Any]] = (),
        *,
        datamodule: Any = None,
        clients: Any = None,
        resume: bool | Literal["auto"] = False,
    ) -> list[Run]:
        """Train a copy of a module in each of several runs, whose clients train as one program.

        Each run has a folder of its own, and the numbers of its `fit` with executor="stacked", to
        rounding; its times count all runs together. Runs may differ in seed, rounds, lr, callbacks,
        participation, and numbers of the algorithm. They share the model, the local steps, the rest
        of the optimizer, and the executor. If one ends or fails, the others continue. A callback
        that several have, such as this trainer's, is copied for each.

        `runs` holds the arguments of FederatedTrainer that differ, for each run. The others are as
        in `fit`. The module is not trained itself: `run.model(module)` loads a run's weights.

        Raises:
            UserError: If the runs cannot train as one program: what differs, or is refused.

        Example::

            trainer = fl.FederatedTrainer("fedavg", rounds=100)
            seeds = trainer.fit_many(module, data, [{"seed": seed} for seed in range(8)])
            sam = [{"name": "fedsam", "rho": rho} for rho in (0.05, 0.1, 0.2)]
            sweep = trainer.fit_many(module, data, [{"algorithm": algorithm} for algorithm in sam])
        """
        data = arguments.read_data(data, datamodule, clients)
        listed = isinstance(runs, Sequence) and all(isinstance(own, Mapping) for own in runs)
        if not (listed and runs):
            raise UserError(
                f"runs is {runs!r:.60}: give what differs in each, as runs=[{{'seed': 0}}, ...]"
            )
        if self.loggers:
            raise UserError("loggers are of one run: give each its own, as runs=[{'loggers': ...}]")
        set_up(module)
        fits, taken = list[tuple[Session, Callable[[], Parts]]](), {*map(id, self.callbacks)}
        for own in runs:
            fit = FederatedTrainer(**{**self._arguments, **own})
            fit.metrics = deepcopy(fit.metrics)
            fit.callbacks = [deepcopy(one) if id(one) in taken else one for one in fit.callbacks]
            taken |= {*map(id, fit.callbacks)}
            fits.append(fit._session(copy_of(module), data, resume))
        for error, own in zip(fit_together(fits), runs, strict=True):
            if error is not None:
                error.add_note(f"in the run with {dict(own)}")
                raise error
        return [Run.read(session.run.path) for session, _ in fits]

    def _session(
        self, module: nn.Module, data: FederatedData, resume: bool | Literal["auto"]
    ) -> tuple[Session, Callable[[], Parts]]:
        """A run that has not begun, and a function that gives what it trains."""
        resume = self.options.run_dir is not None if resume == "auto" else resume
        if not isinstance(resume, bool):
            raise UserError(f'resume is {resume!r}: give True, False or "auto"')
        task = task_of(module, self.loss, self.metrics, self.options.batch_size, self._given)
        loss = loss_text(task.loss)
        o = replace(self.options, clients=data.num_clients, loss=loss, resume=resume)
        with task.attached():
            algorithm = task.with_optimizer(self.algorithm, o.rounds, o.evaluate_every)
        made = arguments.tried(task, algorithm, data, o, self.augment, self.callbacks)
        chosen = self._chosen | arguments.names(task, data, self.augment)
        config = Config.of(o, self._launch.precision, chosen, (), parts.unused_by(algorithm))
        session = Session(
            o,
            self._launched,
            config,
            callbacks=self.callbacks,
            further_loggers=self.loggers,
            augment=self.augment,
            sampling=self._sampling,
            words=arguments.as_arguments,
            quiet=not self.enable_progress_bar,
        )
        return session, lambda: made

    @named_arguments
    def validate(
        self, module: nn.Module | None = None, data: FederatedData | None = None
    ) -> Metrics:
        """The scores of a module, by default the fitted one, on the validation part."""
        return self._scores(module, data, "validation")[0]

    @named_arguments
    def test(
        self,
        module: nn.Module | None = None,
        data: FederatedData | None = None,
        *,
        per_client: bool = False,
    ) -> "Metrics | DataFrame":
        """The scores of a module, by default the fitted one, on the test part.

        With `per_client` each client's own test rows are scored: a data frame, one row a client.
        Models that clients keep for themselves are scored by `finetune_epochs=[0]` instead, or
        during the rounds by `fl_lightning.callbacks.PersonalScores`.

        Raises:
            UserError: If there is no such module or part, or test rows have no owners.
        """
        if not per_client:
            return self._scores(module, data, "test")[0]
        if not isinstance(data, FederatedData) or "test" not in data.parts:
            raise UserError(
                "test rows have no owners: give FederatedData a fraction, such as test=0.2, for "
                "scores of each client"
            )
        from pandas import DataFrame

        owned = data.parts["test"]
        held = [k for k in range(len(owned)) if len(owned[k])]
        rows = self._scores(module, data, "test", [owned[k] for k in held])
        return DataFrame(rows, index=[data.names[k] for k in held]).rename_axis("client")

    def _scores(
        self,
        module: nn.Module | None,
        data: FederatedData | None,
        part: str,
        groups: Sequence[Tensor | None] = (None,),
    ) -> list[Metrics]:
        """The scores on each group of rows of a part; None is all of them."""
        module = self._module if module is None else module
        if module is None:
            raise UserError("there is no module to score: give one, or call fit before")
        if not isinstance(data, FederatedData):
            raise UserError(f"the data are a {type(data).__name__}: give data=FederatedData(...)")
        if module is not self._module:
            set_up(module, {"validation": "validate"}.get(part, part))
        task = task_of(module, self.loss, self.metrics, self.options.batch_size, self._given)
        return task.scores_of_groups(self._fabric or self._launched(), data, part, groups)

    def _launched(self, **given: Any) -> Fabric:
        self._fabric = launch_same_ranks(self._launch, **given)
        return self._fabric
