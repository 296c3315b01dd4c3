"""The options that every recipe has, in the groups that `--help` shows.

What an option does to a run stands in its annotation, and nowhere else: see `Effect` and `With`.
`rounds: Annotated[PositiveInt, EXTENT] = 100` may change when a run is resumed; `lr: PositiveFloat`
may not.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_type_hints

from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    NonNegativeInt,
    OpenFraction,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Range,
    check,
    metadata,
)
from fl_lightning.core.curves import Curve, as_curve
from fl_lightning.core.draws import Draw
from fl_lightning.errors import UserError
from fl_lightning.federation.divergence import OnDivergence
from fl_lightning.runs.converters import parse_bytes, parse_interval

M = TypeVar("M")


class Effect(Enum):
    """What an option does to a run. One without an `Effect` changes the numbers."""

    NUMBERS = auto()
    """The numbers of the rounds change. A resumed run keeps the option."""

    EXTENT = auto()
    """More or fewer rounds are run or recorded. A resumed run may change the option."""

    ROUNDING = auto()
    """The last bits change. A resumed run keeps the option if it is deterministic."""

    NONE = auto()
    """Nothing that is recorded changes."""


NUMBERS, EXTENT, ROUNDING, NONE = Effect


@dataclass(frozen=True)
class OfProgram:
    """Marks an option that runs share which train as one program (`FederatedTrainer.fit_many`)."""


@dataclass(frozen=True)
class With:
    """Marks an option that has no effect unless another one is given.

    Attributes:
        option: The other option.
        example: A value of it, for the note to the user.
        among: The values that give it an effect; if empty, any that is not none does.
    """

    option: str
    example: str
    among: tuple[str, ...] = ()


Kept = Annotated[int, Range("a whole number from 1 to 100", 1, 100, whole=True)]


@dataclass(frozen=True)
class SimulationOptions:
    """Clients, rounds and where the run lies.

    Attributes:
        clients: Number of clients; none for one a domain, or owner, of the data (--partition
            by_domain).
        participation: Fraction of the clients that are sampled each round; at least one client.
        sampling: fixed: this fraction, drawn uniformly; bernoulli: each client with this
            probability; weighted: this fraction, drawn in proportion to numbers of samples;
            power_of_choice: of candidates, those with the largest losses; or your own,
            file.py:function.
        weighting: Clients' weights in the mean update: equal, or their numbers of samples; none for
            the algorithm's own.
        server_lr: Server learning rate: 1 applies the whole mean update; also a curve over the
            rounds; none for the algorithm's own.
        rounds: Communication rounds.
        seed: Seed of all random numbers.
        data_dir: Folder of the data sets. MNIST, Fashion-MNIST, EMNIST, CIFAR and SVHN are
            downloaded into it.
        run_dir: Folder of the run; none for runs/<recipe>/<algorithm>-<number>.
        resume: Continue the run in --run-dir from its newest checkpoint, or begin one there.
            SIGTERM and SIGUSR1 let a run finish its round, write a checkpoint and leave with exit
            code 75.
    """

    clients: PositiveInt | None = 100
    participation: PositiveFraction = 0.1
    sampling: str = "fixed"
    weighting: Literal["uniform", "by_size"] | None = None
    server_lr: PositiveFloat | Curve | None = None
    rounds: Annotated[PositiveInt, EXTENT] = 100
    seed: NonNegativeInt = 0
    data_dir: Annotated[Path, NONE] = Path("data")
    run_dir: Annotated[Path | None, NONE] = None
    resume: Annotated[bool, NONE] = False


@dataclass(frozen=True)
class TrainingOptions:
    """Local training.

    Attributes:
        local_epochs: Passes over a client's samples in a round; fractions are allowed. Also drawn
            anew for each client and round: "uniform(2, 5)", or "stragglers(20, 0.9)": 1 to 20 for
            90 % of them, else 20.
        local_steps: Steps of every client in a round, instead of epochs; also drawn.
        batch_size: Samples in a local step; a client with fewer takes all of them.
        lr: Local learning rate; also a curve over the rounds, e.g. "cosine(0.1, 0)".
        lr_decay: Factor on the local learning rate after every round, if it is no curve.
        momentum: Momentum of the local SGD; it starts from zero in each round.
        weight_decay: Weight decay of the local SGD.
        loss: The loss of a batch: cross_entropy, mse or binary_cross_entropy; or your own,
            file.py:function.
        clip_norm: Largest norm of a local step's direction, without weight decay; none for no
            clipping.
        on_divergence: What to do if a client's training is no longer finite. client/skipped counts
            the clients that were skipped.
    """

    local_epochs: Annotated[PositiveFloat | Draw, OfProgram()] = 1.0
    local_steps: Annotated[PositiveInt | Draw | None, OfProgram()] = None
    batch_size: Annotated[PositiveInt, OfProgram()] = 50
    lr: PositiveFloat | Curve = 0.1
    lr_decay: PositiveFloat = 1.0
    momentum: Annotated[BelowOneFloat, OfProgram()] = 0.0
    weight_decay: Annotated[NonNegativeFloat, OfProgram()] = 0.0
    loss: Annotated[str, OfProgram()] = "cross_entropy"
    clip_norm: PositiveFloat | None = None
    on_divergence: Annotated[OnDivergence, NONE] = "stop"


@dataclass(frozen=True)
class EvaluationOptions:
    """Evaluation and checkpoints.

    Attributes:
        evaluate_every: Rounds between evaluations of the global model.
        metric: Metrics of the evaluations besides loss and accuracy of classes, e.g. rmse,r2; or
            your own, file.py:function. The first one chooses the model of best.pt.
        validation: Fraction of the data to hold out. Its scores are val/accuracy and val/loss, and
            choose best.pt. None holds nothing out.
        validation_from: What is held out: samples of every client, which it does not train on, or
            samples of the test set.
        finetune_epochs: After the last round, fine-tune every client for these epochs, e.g. 1,5,
            and test its model on its own test samples, or on some like its data; 0 tests it as it
            is; none to skip this.
        finetune_lr: Learning rate of the fine-tuning; none for that of one more round.
        checkpoint_every: Rounds or time between checkpoints, e.g. 10 or 5min. The pause is at least
            20 times as long as the last checkpoint took.
        keep_checkpoints: Number of newest checkpoints that are kept.
        logger: Experiment trackers that get the scalars too, e.g. wandb,mlflow.
    """

    evaluate_every: PositiveInt = 1  # earlier rounds keep their scores
    metric: Annotated[tuple[str, ...] | None, EXTENT] = None
    validation: OpenFraction | None = None
    validation_from: Annotated[Literal["clients", "test"], With("validation", "0.1")] = "clients"
    finetune_epochs: Annotated[tuple[NonNegativeInt, ...] | None, EXTENT] = None
    finetune_lr: Annotated[PositiveFloat | None, EXTENT, With("finetune_epochs", "1,5")] = None
    checkpoint_every: Annotated[str, NONE] = "10"
    keep_checkpoints: Annotated[Kept, NONE] = 2
    logger: Annotated[tuple[Literal["wandb", "mlflow", "trackio"], ...] | None, NONE] = None


@dataclass(frozen=True)
class CallbackOptions:
    """Measures and rules that end a run. They do not change the training.

    Attributes:
        callback: One of these callbacks with its options, e.g. sharpness:rho=0.1,every=5; or your
            own, file.py:Name:key=value.
    """

    callback: Annotated[Sequence[str], EXTENT] = ()


@dataclass(frozen=True)
class ExecutionOptions:
    """Speed and memory.

    Attributes:
        executor: How a rank trains its clients. sequential: one after another; stacked: several as
            one batched program; branches: several side by side. On a GPU the steps of the last two
            are CUDA graphs. auto: sequential on a CPU; on a GPU stacked for models of less than 5
            million parameters, branches for others.
        parallel_clients: Number of clients that train at a time when stacked or in branches.
        compile: Compile the local step of a full batch. It takes some seconds, pays for small
            networks and batches, and needs a C++ compiler.
        client_state_memory: Memory for clients' states on a machine, e.g. 512MiB or 4GiB; the rest
            goes to files. None is a quarter of the free memory.
        deterministic: Make results equal to the last bit on any number of ranks, with the same
            hardware, threads and parallel clients.
    """

    executor: Annotated[
        Literal["auto", "sequential", "stacked", "branches"], ROUNDING, OfProgram()
    ] = "auto"
    parallel_clients: Annotated[
        PositiveInt, ROUNDING, OfProgram(), With("executor", "stacked", ("stacked", "branches"))
    ] = 10
    compile: Annotated[bool, ROUNDING, OfProgram()] = False
    client_state_memory: Annotated[str | None, NONE] = None
    deterministic: Annotated[bool, ROUNDING, OfProgram()] = False


GROUPS: dict[str, type] = {
    "options": SimulationOptions,
    "local training": TrainingOptions,
    "evaluation and checkpoints": EvaluationOptions,
    "callbacks": CallbackOptions,
    "execution": ExecutionOptions,
}
"""The groups by their titles in `--help`."""


@dataclass(frozen=True)
class Options(
    ExecutionOptions, CallbackOptions, EvaluationOptions, TrainingOptions, SimulationOptions
):
    """The options of every recipe."""

    def __post_init__(self) -> None:
        check(self, curves=True)
        if isinstance(self.lr, Curve):
            object.__setattr__(self, "lr_decay", 1.0)
        decay = "" if isinstance(self.lr, Curve) else f" or lr_decay {self.lr_decay}"
        rates = {
            f"lr {self.lr}{decay}": self.lr_of_round,
            f"server_lr {self.server_lr}": as_curve(self.server_lr or 1.0),
        }
        for name, rate in rates.items():
            last = rate(self.rounds - 1, self.rounds)
            if not 1e-37 < last < 1e37:
                raise UserError(
                    f"the learning rate of round {self.rounds:,} would be {last:.1g}, not a "
                    f"positive number of single precision: change {name}"
                )
        further = self.lr_of_round(self.rounds, self.rounds)
        if any(self.finetune_epochs or ()) and self.finetune_lr is None and further <= 0:
            raise UserError(
                f"after {self.lr} the fine-tuning would have the learning rate {further:g}: give "
                "finetune_lr"
            )
        parse_interval(self.checkpoint_every)
        if self.client_state_memory is not None:
            parse_bytes(self.client_state_memory)
        for name in self.logger or ():
            if find_spec(name) is None:
                raise UserError(f"--logger {name} needs a package: pip install {name}")

    @property
    def width(self) -> int:
        """The clients that train at a time: `parallel_clients`, or its default under "auto"."""
        return Options.parallel_clients if self.executor == "auto" else self.parallel_clients

    @property
    def lr_of_round(self) -> Curve:
        """The local learning rate of each round."""
        return as_curve(self.lr, self.lr_decay)


def marks(kind: type[M]) -> dict[str, M]:
    """The marks of one kind, such as `Effect` or `With`, by the option that has it."""
    hints = get_type_hints(Options, include_extras=True)
    return {name: m for name, hint in hints.items() for m in metadata(hint) if isinstance(m, kind)}


def without_effect(given: Collection[str], o: Options) -> Iterator[str]:
    """A sentence for each given option that has no effect beside the others."""
    for option, needed in marks(With).items():
        value = getattr(o, needed.option)
        if option in given and not (value in needed.among if needed.among else value):
            flags = (f"--{name.replace('_', '-')}" for name in (option, needed.option))
            yield f"{' has no effect: add '.join(flags)} {needed.example}"
    if "local_epochs" in given and o.local_steps:
        yield f"--local-epochs has no effect: --local-steps {o.local_steps} takes its place"
    if "lr_decay" in given and isinstance(o.lr, Curve):
        yield f"--lr-decay has no effect: --lr {o.lr} takes its place"
