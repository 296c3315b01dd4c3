"""The options that every recipe has."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fl_lightning import cli
from fl_lightning.divergence import OnDivergence


@dataclass(frozen=True)
class Options:
    """The options of every recipe.

    Attributes:
        clients: Number of clients.
        participation: Fraction of the clients in a round.
        sampling: A cohort of fixed size, or each client with that probability.
        rounds: Communication rounds.
        local_epochs: Passes over a client's samples in one visit; fractions are allowed.
        local_steps: Steps in one visit, the same for every client, instead of epochs.
        batch_size: Samples a local step.
        lr: Local learning rate.
        lr_decay: Factor on the local learning rate after every round.
        momentum: Of the local SGD; it begins anew at each visit.
        weight_decay: Of the local SGD.
        clip: Largest norm of a local step's direction, without weight decay; none for no clipping.
        executor: Clients of a rank one after another, or several at once.
        width: How many at once.
        evaluate_every: Rounds between evaluations of the global model.
        personalise: After the last round every client fine-tunes for so many epochs, e.g. 1,5, and its own model is
            scored on test samples like its data; none for no such scores.
        finetune_lr: Learning rate of that fine-tuning; none for the rate of the round to come.
        checkpoint_every: Rounds between checkpoints.
        keep_checkpoints: How many of the newest checkpoints are kept, beside the one with the best test accuracy.
        on_divergence: When a client's training is no longer finite: stop; or leave that client out of the round,
            counted in client/skipped; or continue.
        seed: Names every random number of the run.
        data_dir: Where data sets lie, or are downloaded to.
        run_dir: Everything of the run goes there; none for runs/<recipe>/<algorithm>-<number>.
        resume: Go on from the newest checkpoint in --run-dir. SIGTERM and SIGUSR1 let a run finish its round, write a
            checkpoint and leave with exit code 75.
    """

    clients: int = 100
    participation: float = 0.1
    sampling: Literal["fixed", "bernoulli"] = "fixed"
    rounds: int = 100
    local_epochs: float = 1.0
    local_steps: int | None = None
    batch_size: int = 50
    lr: float = 0.1
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    executor: Literal["sequential", "stacked"] = "sequential"
    width: int = 10
    evaluate_every: int = 1
    personalise: tuple[int, ...] | None = None
    finetune_lr: float | None = None
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    on_divergence: OnDivergence = "stop"
    seed: int = 0
    data_dir: Path = Path("data")
    run_dir: Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "lr_decay"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is a positive number, not {getattr(self, name)}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is at least 0 and below 1, not {self.momentum}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay is zero or more, not {self.weight_decay}")


@dataclass(frozen=True)
class Launch:
    """Fabric's own options, for `python recipe.py`; `fabric run` takes them itself.

    Attributes:
        accelerator: Which hardware, e.g. cpu, cuda or auto.
        devices: How many devices, or which.
        strategy: How ranks talk, e.g. auto or ddp.
        precision: Number type of the models' arithmetic; weights and duals stay in 32 bits.
    """

    accelerator: str = "auto"
    devices: str = "1"
    strategy: str = "auto"
    precision: Literal["32-true", "bf16-mixed"] = "32-true"


HARMLESS = frozenset({"rounds", "evaluate_every", "personalise", "finetune_lr", "data_dir", "executor", "width"}) | {
    "checkpoint_every",
    "keep_checkpoints",
    "on_divergence",
}
"""Options that may change between a run and its resumption: they do not change what a finite round computes."""


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the options of a run, as YAML holds them, with those of its resumption.

    Raises:
        ValueError: If others than the harmless ones differ, naming them.
    """
    before, now = cli.flat(before), cli.flat(now)
    changed = [k for k in sorted({*before, *now} - HARMLESS) if before.get(k) != now.get(k)]
    if changed:
        which = ", ".join(f"{k} was {before.get(k)} and is now {now.get(k)}" for k in changed)
        raise ValueError(f"a resumed run keeps its options, but {which}: leave these flags away, or start another run")
