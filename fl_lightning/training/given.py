"""The parts of a run that a program gives as objects."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.vector import Layout
from fl_lightning.data import CropFlip
from fl_lightning.data.federated import FederatedData
from fl_lightning.errors import UserError
from fl_lightning.federation.trials import dry_run
from fl_lightning.runs.chosen import Chosen
from fl_lightning.runs.options import Options
from fl_lightning.training import parts
from fl_lightning.training.run_data import RunData, client_data
from fl_lightning.training.session import Parts
from fl_lightning.training.task import Task


def names(task: Task, data: FederatedData, augment: CropFlip | None) -> dict[str, Chosen]:
    """Model, data, partition and augmentation as the run's configuration names them."""
    found = {
        "model": Chosen(type(task.module).__name__, type(task.module), task.recorded),
        "data": Chosen("FederatedData", FederatedData, {}),
    }
    if of := data.scheme:
        options = {name: value for name, value in of.options.items() if name != "clients"}
        found["partition"] = Chosen(of.scheme.__name__, of.scheme, options)
    if augment:
        found["augment"] = Chosen(type(augment).__name__, type(augment), asdict(augment))
    return found


def tried(
    task: Task,
    algorithm: Algorithm,
    data: FederatedData,
    o: Options,
    augment: CropFlip | None,
    callbacks: Sequence[Any],
) -> Parts:
    """What trains, after it was tried: refused before there is a folder or a rank.

    There is an empty test set if the data have none.
    """
    train = task.dataset(data)
    test, validation = (
        None if getattr(data, part) is None else task.dataset(data, part)
        for part in ("test", "validation")
    )
    own_tests = data.parts.get("test")
    if o.finetune_epochs and not (test and (train.classes or own_tests)):
        raise UserError(
            "finetune_epochs scores clients by classes, or on test rows of their own: give "
            "FederatedData test=0.2"
        )
    test = train.subset(slice(0, 0)) if test is None else test
    made = RunData(train, test, data.partition, data.partition, validation, own_tests)
    if task.metrics and not made.scored():
        raise UserError(
            "metrics are scored on a test or validation part: give FederatedData test=0.2"
        )
    Layout(task.model)
    parts.callbacks(callbacks, (), made, Path(), task)
    with task.attached():
        clients = client_data(made, augment, o)
        dry_run(task.model, clients, task.loss, nullcontext)
        for part, dataset in made.scored():
            task.try_out(dataset, part)
    return Parts(task, made, parts.with_general_options(algorithm, o))
