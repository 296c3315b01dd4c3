"""The data of a run: over the clients, and the parts that are held out and scored."""

import warnings
from dataclasses import dataclass, replace

import torch

from fl_lightning.data import (
    ClientData,
    CropFlip,
    DeviceDataset,
    Partition,
    hold_out,
    hold_out_of_clients,
)
from fl_lightning.errors import UserError
from fl_lightning.runs.chosen import Chosen, wrong_result
from fl_lightning.runs.options import Options


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

    def scored(self) -> list[tuple[str, DeviceDataset]]:
        """The parts that the global model is scored on, by name; the last one chooses the best."""
        named = ("test", self.test), ("validation", self.validation)
        return [(part, data) for part, data in named if data is not None and len(data)]

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
