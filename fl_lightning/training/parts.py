"""The parts of a run from the chosen functions, whose results are checked: users may write them."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, isclass, isfunction, signature
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback as LightningCallback
from torch import Tensor, nn
from torch.optim import SGD
from torchmetrics import Metric

from fl_lightning.algorithms import modifiers
from fl_lightning.callbacks.bases import HOOKS, Measure, Stopping
from fl_lightning.callbacks.personal_models import PersonalWeights
from fl_lightning.callbacks.privacy import check_opacus, is_private
from fl_lightning.core.algorithm import Algorithm, local_sgd
from fl_lightning.core.curves import as_curve
from fl_lightning.core.losses import TaskLoss
from fl_lightning.core.weighting import WEIGHTS, by_size, uniform, with_base
from fl_lightning.data import (
    ClientData,
    CropFlip,
    DeviceDataset,
    Partition,
    hold_out,
    hold_out_of_clients,
)
from fl_lightning.errors import UserError, nearest
from fl_lightning.executors import Executor, GraphExecutor, SequentialExecutor, StackedExecutor
from fl_lightning.federation.sampling import ClientSampler, UniformSampling
from fl_lightning.runs.chosen import Chosen, wrong_result
from fl_lightning.runs.options import Options
from fl_lightning.terms import Clip, ExactAggregation
from fl_lightning.training.task import Task

UNIFORM = Chosen("fixed", UniformSampling, {})
"""The default of `--sampling`."""

OF_OPTIMIZER = "lr", "momentum", "weight_decay"
"""Options of the local optimizer."""

STACKED_BELOW = 5_000_000
"""From so many parameters on, clients train faster side by side on a GPU than as one program.

This is calculated, not measured."""


def partition(scheme: Chosen, train: DeviceDataset, clients: int | None, seed: int) -> Partition:
    """The training set over the clients; None: one for each domain."""
    if scheme.wants("domains") and train.domains is None:
        raise UserError("the data have no domains to split by: choose another --partition")
    if clients is None and not scheme.wants("domains"):
        raise UserError(f"--partition {scheme.name} needs a number of clients: add --clients 100")
    if train.domains is not None and not scheme.wants("domains"):
        warnings.warn(
            f"--partition {scheme.name} splits the samples of {len(train.domain_names)} owners, or "
            "domains, anew: --partition by_domain --clients none makes each of them a client",
            stacklevel=2,
        )
    if clients is None and train.domains is not None:
        clients = len(train.domains.unique())
    partition = scheme.call_with(y=train.labels, clients=clients, seed=seed, domains=train.domains)
    if not isinstance(partition, Partition):
        raise UserError(
            wrong_result(scheme, "a Partition, as Partition.from_owners makes", partition)
        )
    if len(partition) != clients:
        raise UserError(
            f"{scheme.name} splits over {len(partition)} clients, but --clients is {clients}: "
            "make them equal"
        )
    return partition


@dataclass(frozen=True)
class RunData:
    """The data of a run, which user-defined callbacks get by these names.

    Attributes:
        train: The training set.
        test: The test set.
        partition: The samples that each client trains on.
        whole: The partition with the samples of the validation part, as it was made.
        validation: The validation part, or None.
        own_tests: The test samples that were taken of each client, or None.
    """

    train: DeviceDataset
    test: DeviceDataset
    partition: Partition
    whole: Partition
    validation: DeviceDataset | None = None
    own_tests: Partition | None = None

    def scored(self, task: Task) -> list[tuple[str, DeviceDataset]]:
        """The parts that the global model is scored on, by name; the last one chooses the best."""
        named = ("test", self.test), ("validation", self.validation)
        held = [(part, data) for part, data in named if data is not None and len(data)]
        return [(part, data) for part, data in held if task.scores_part(part)]

    def to(self, device: torch.device) -> "RunData":
        """Copy the data to another device."""
        moved = {
            name: data.to(device) for name, data in vars(self).items() if hasattr(data, "device")
        }
        return replace(self, **moved)


def run_data(
    train: DeviceDataset, test: DeviceDataset, partition: Partition, o: Options
) -> RunData:
    """The data, with the validation part that the options ask for."""
    if o.validation is None:
        return RunData(train, test, partition, partition)
    whole = partition
    if o.validation_from == "test":
        test, validation = hold_out(test, o.validation, o.seed)
    else:
        partition, held = hold_out_of_clients(partition, o.validation, o.seed)
        validation = train.subset(held)
    if not (len(test) and len(validation)):
        raise UserError(
            f"validation {o.validation:g} leaves {len(validation)} validation and {len(test)} test "
            "samples: choose another fraction"
        )
    return RunData(train, test, partition, whole, validation)


def client_data(data: RunData, augment: CropFlip | None, o: Options) -> ClientData:
    """The training data of the clients."""
    return ClientData(
        data.train,
        data.partition,
        batch_size=o.batch_size,
        epochs=o.local_epochs,
        steps=o.local_steps,
        augment=augment,
        seed=o.seed,
    )


def callbacks(given: Sequence[Any], data: RunData, folder: Path, task: Any) -> list[Any]:
    """All callbacks as objects: classes, functions and chosen ones are called, after the others.

    Each gets the parts of the run that it asks for; a function may return several or none.
    Stopping rules and others with a monitor come last: they compare what the rest measures.
    """
    made = [one for one in given if not _makes_callbacks(one)]
    for maker in filter(_makes_callbacks, given):
        chosen = maker if isinstance(maker, Chosen) else Chosen("callback", maker, {})
        one = chosen.call_with(**vars(data), folder=folder, task=task)
        made += one if isinstance(one, list | tuple) else [] if one is None else [one]
    _check_callbacks(made, data.validation is not None)
    return sorted(made, key=lambda one: isinstance(one, Stopping) or hasattr(one, "monitor"))


def _makes_callbacks(given: Any) -> bool:
    """Whether it is a class or function that makes callbacks."""
    return isclass(given) or isinstance(given, partial | Chosen) or isfunction(given)


def _check_callbacks(made: Sequence[Any], has_validation: bool) -> None:
    """Raise a UserError unless these objects can be callbacks of one run."""
    for new in made:
        name = type(new).__name__
        monitor = getattr(new, "monitor", "")
        if (monitor is None or str(monitor).startswith("val/")) and not has_validation:
            needs = f"monitors {monitor}, which needs" if monitor else "needs"
            raise UserError(
                f"{name} {needs} a validation part: add --validation 0.1, or monitor=test/loss"
            )
        if isinstance(new, LightningCallback):
            raise UserError(
                f"{name} is of Lightning's Trainer, which a federation is not: choose one of "
                "fl_lightning.callbacks, or write an object with on_round_end; checkpoints, "
                "local/lr and a progress bar come without one"
            )
        if isinstance(new, Measure | PersonalWeights) and [*map(type, made)].count(type(new)) > 1:
            raise UserError(f"{name} would write twice under equal names: give it once")
        hooks = [hook for hook in dir(new) if hook.startswith("on_")]
        if unknown := [hook for hook in hooks if hook not in HOOKS]:
            raise UserError(f"{name} has a hook {unknown[0]}{nearest(unknown[0], HOOKS)}")
        for hook in hooks:  # a hook may leave out what it does not need
            given, taken = ("federation", *HOOKS[hook]), signature(getattr(new, hook)).parameters
            rest = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
            needed = [p.name for p in taken.values() if p.default is p.empty and p.kind not in rest]
            if wrong := [argument for argument in needed if argument not in given]:
                raise UserError(
                    f"{name}.{hook} takes {wrong[0]!r}, but gets {', '.join(given)}: use these"
                )
        if not (hooks or hasattr(new, "terms") or hasattr(new, "diagnostics")):
            raise UserError(
                f"{new!r:.60} is no callback: give one of fl_lightning.callbacks, such as "
                f"Sharpness(), or an object with one of {', '.join(HOOKS)}"
            )


def loss(chosen: Chosen) -> TaskLoss:
    """The chosen loss with its options."""
    return partial(chosen.function, **chosen.options) if chosen.options else chosen.function


def metrics(chosen: Sequence[Chosen], classes: int) -> dict[str, Metric]:
    """The chosen metrics by their names in the scalars: `file.py:gini` is `gini`."""
    return {c.name.rpartition(":")[2]: c.call_with(classes=classes) for c in chosen}


def algorithm(chosen: Mapping[str, Chosen]) -> Algorithm:
    """The algorithm with its modifiers."""
    made = chosen["algorithm"]()
    if not isinstance(made, Algorithm):
        raise UserError(wrong_result(chosen["algorithm"], "an Algorithm", made))
    for kind in modifiers.PARTS:
        result = chosen[kind]()
        for modifier in result if isinstance(result, tuple) else (result,):
            if not isinstance(modifier, modifiers.Modifier):
                raise UserError(wrong_result(chosen[kind], "a Modifier", modifier))
            made = modifier.to(made)
    if is_private(made):
        check_opacus()
    return made


def with_general_options(algorithm: Algorithm, o: Options) -> Algorithm:
    """The algorithm with the options' weights, server learning rate, clipping and local SGD."""
    unused = unused_by(algorithm)
    if o.weighting is not None:
        algorithm = algorithm.replace(weight=with_base(algorithm.weight, WEIGHTS[o.weighting]))
    if o.server_lr is not None and "server_lr" not in unused:
        algorithm = algorithm.replace(server_lr=as_curve(o.server_lr))
    outer = [Clip(o.clip_norm)] if algorithm.clips and o.clip_norm is not None else []
    numbers = {**vars(o), "lr": o.lr_of_round(0, o.rounds)}
    taken = {name: numbers[name] for name in OF_OPTIMIZER if name not in unused}
    # fused: one pass over the weights for decay, momentum and step
    make = partial(SGD, fused=True) if algorithm.local is local_sgd else algorithm.local
    algorithm = algorithm.with_outer_terms(*outer, local=partial(make, **taken))
    if algorithm.lr is not None:
        return algorithm
    own = algorithm.local([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    return algorithm.replace(lr=as_curve(own, o.lr_decay) if "lr" in unused else o.lr_of_round)


def unused_by(algorithm: Algorithm) -> set[str]:
    """The general options that an algorithm cannot use (see `LocalFactory` and `Weight`)."""
    unused = set() if algorithm.clips else {"clip_norm"}
    unused |= set() if algorithm.lr is None else {"lr"}
    if with_base(algorithm.weight, uniform) is with_base(algorithm.weight, by_size):
        unused.add("weighting")
    if any(isinstance(term, ExactAggregation) for term in algorithm.terms):
        unused.add("server_lr")  # it would scale the adapters' update, but not the base's
    if algorithm.local is local_sgd:
        return unused | set(OF_OPTIMIZER) - set(algorithm.sgd_options)
    parameters = signature(algorithm.local).parameters
    needed = {name for name, p in parameters.items() if p.default is Parameter.empty}
    return unused | set(OF_OPTIMIZER) - needed


def sampler(chosen: Chosen, fraction: float, sizes: Tensor, may_be_empty: bool) -> ClientSampler:
    """What chooses the clients of a round: a class makes it, a function is it."""
    filled_in = {"fraction": fraction, "sizes": sizes, "may_be_empty": may_be_empty}
    if isclass(getattr(chosen.function, "func", chosen.function)):
        made: ClientSampler = chosen.call_with(**filled_in)
        return made
    taken = {name: part for name, part in filled_in.items() if chosen.wants(name)}
    if not (options := {**chosen.options, **taken}):
        return chosen.function
    bound = partial(chosen.function, **options)
    vars(bound).update(vars(chosen.function))  # such as `may_be_empty`
    return bound


def executor(o: Options, device: torch.device, parameters: int) -> Callable[..., Executor]:
    """The factory of the executor, for a model of so many parameters."""
    on_gpu, compiled = device.type == "cuda", o.batch_size if o.compile else 0
    wide = "stacked" if parameters < STACKED_BELOW else "branches"
    of_device = wide if on_gpu else "sequential"
    kind = of_device if o.executor == "auto" else o.executor
    if kind == "sequential":
        return (
            partial(StackedExecutor, width=1, compiled=compiled) if compiled else SequentialExecutor
        )
    make: Any = StackedExecutor
    if on_gpu or kind == "branches":
        make = partial(GraphExecutor, stacked=kind == "stacked")
    return partial(make, width=o.width, compiled=compiled)
