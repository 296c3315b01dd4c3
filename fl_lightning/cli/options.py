"""The options that every recipe has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fl_lightning.cli.converters import parse_bytes
from fl_lightning.core.constraints import (
    BelowOneFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Range,
    check,
)
from fl_lightning.federation.divergence import OnDivergence
from fl_lightning.federation.sampling import Sampling

Epochs = Annotated[float, Range("a number above 0 and at most 10,000", lambda x: 0 < x <= 10_000)]
Kept = Annotated[int, Range("a whole number from 1 to 100", lambda x: 1 <= x <= 100)]
Steps = Annotated[int, Range("a whole number from 1 to a million", lambda x: 1 <= x <= 1_000_000)]


@dataclass(frozen=True)
class Options:
    """The options of every recipe.

    Attributes:
        clients: Number of clients.
        participation: Fraction of the clients in a round, of which there is always one at least.
        sampling: A cohort of fixed size; or each client with that probability; or a fixed size
            drawn with probability proportional to clients' numbers of samples, which then count
            twice if the algorithm's weighting is by_size too: give it uniform.
        rounds: Communication rounds.
        local_epochs: Passes over a client's samples in one visit; fractions are allowed.
        local_steps: Steps in one visit, the same for every client, instead of epochs.
        batch_size: Samples a local step; a client with fewer takes all of them in each.
        lr: Local learning rate.
        lr_decay: Factor on the local learning rate after every round.
        momentum: Of the local SGD; it begins anew at each visit.
        weight_decay: Of the local SGD.
        clip_norm: Largest norm of a local step's direction, without weight decay; none for no
            clipping.
        executor: Clients of a rank one after another, or several at once; auto is the former on a
            CPU and with --deterministic, else whichever proves faster on the GPU in the first
            rounds, as both have one result.
        parallel_clients: How many at once, where several are.
        compile: Compile the local step of a full batch: some seconds once, then fewer passes over
            memory and no Python in between. It pays for small networks and small batches, and needs
            a C++ compiler.
        evaluate_every: Rounds between evaluations of the global model.
        finetune_epochs: After the last round every client fine-tunes for so many epochs, e.g. 1,5,
            and its own model is scored on test samples like its data; none for no such scores.
        finetune_lr: Learning rate of that fine-tuning; none for the rate of the round to come.
        checkpoint_every: Rounds between checkpoints.
        keep_checkpoints: How many of the newest checkpoints are kept, beside the one with the best
            test accuracy.
        client_state_memory: Memory that clients' states may take on a machine, all ranks together,
            e.g. 512MiB or 4GiB; none leaves it to the system, which caches their files and drops
            them when programs need the room.
        on_divergence: When a client's training is no longer finite: stop; or leave that client out
            of the round, counted in client/skipped; or continue.
        deterministic: Equal to the last bit on any number of ranks with equal hardware, numbers of
            threads and width: sums are exact, and stacked clients grouped before they are spread
            over the ranks.
        seed: Names every random number of the run.
        data_dir: Where data sets lie, or are downloaded to.
        run_dir: Everything of the run goes there; none for runs/<recipe>/<algorithm>-<number>.
        resume: Go on from the newest checkpoint in --run-dir. SIGTERM and SIGUSR1 let a run finish
            its round, write a checkpoint and leave with exit code 75.
    """

    clients: PositiveInt = 100
    participation: PositiveFraction = 0.1
    sampling: Sampling = "fixed"
    rounds: PositiveInt = 100
    local_epochs: Epochs = 1.0
    local_steps: Steps | None = None
    batch_size: PositiveInt = 50
    lr: PositiveFloat = 0.1
    lr_decay: PositiveFloat = 1.0
    momentum: BelowOneFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: PositiveFloat | None = None
    executor: Literal["auto", "sequential", "stacked"] = "auto"
    parallel_clients: PositiveInt = 10
    compile: bool = False
    evaluate_every: PositiveInt = 1
    finetune_epochs: tuple[int, ...] | None = None
    finetune_lr: PositiveFloat | None = None
    checkpoint_every: PositiveInt = 10
    keep_checkpoints: Kept = 2
    client_state_memory: str | None = None
    on_divergence: OnDivergence = "stop"
    deterministic: bool = False
    seed: NonNegativeInt = 0
    data_dir: Path = Path("data")
    run_dir: Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        check(self)
        if any(epochs < 1 for epochs in self.finetune_epochs or ()):
            raise ValueError(
                f"finetune_epochs is numbers of epochs of at least 1, not {min(self.finetune_epochs or ())}"
            )
        if self.client_state_memory is not None:
            parse_bytes(self.client_state_memory)
