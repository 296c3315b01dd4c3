"""The runs of FedLab: `PYTHON run_fedlab.py OUT`, PYTHON having fedlab."""

import sys
from typing import Any

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer, FedDynServerHandler
from fedlab.contrib.algorithm.fednova import FedNovaSerialClientTrainer, FedNovaServerHandler
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer, FedProxServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from problem import LONG, LR, SIZES, UNEQUAL_STEPS, Case, Net, tensors, weights, write
from torch.utils.data import DataLoader, TensorDataset

CASES = [
    Case("fedavg"),
    Case("fedprox"),
    Case("scaffold"),
    Case("fednova", **UNEQUAL_STEPS),
    Case("feddyn"),
    *(Case(name, **LONG) for name in ("scaffold", "feddyn")),
]
METHODS: dict[str, tuple[Any, Any]] = {
    "fedavg": (SyncServerHandler, SGDSerialClientTrainer),
    "fedprox": (FedProxServerHandler, FedProxSerialClientTrainer),
    "scaffold": (ScaffoldServerHandler, ScaffoldSerialClientTrainer),
    "fednova": (FedNovaServerHandler, FedNovaSerialClientTrainer),
    "feddyn": (FedDynServerHandler, FedDynSerialClientTrainer),
}


class Clients:
    """The data, in the form that trainers ask for."""

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader:
        """The batches of a client, in order."""
        return DataLoader(TensorDataset(*tensors()[id]), batch_size)


def path(case: Case) -> list[list[float]]:
    """The weights after each round."""
    kind, trainer_kind = METHODS[case.method]
    handler = kind(Net(), case.rounds, len(case.cohort(0)) / len(SIZES))
    trainer = trainer_kind(Net(), len(SIZES))
    handler.num_clients = trainer.num_clients
    coefficients = case.coefficients()
    trainer.setup_optim(case.epochs, case.batch_size, LR, **coefficients)
    trainer.setup_dataset(Clients())
    if case.method == "scaffold":
        handler.setup_optim(case.server_lr)
    elif case.method in ("fednova", "feddyn"):
        handler.setup_optim(**coefficients)
    found = []
    for round in range(case.rounds):
        trainer.local_process(handler.downlink_package, case.cohort(round))
        for upload in trainer.uplink_package:
            handler.load(upload)
        found.append(weights(handler.model))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # its weights of clients have the default type
    write(sys.argv[1], [(case, path(case)) for case in CASES])
