"""The runs of pfl-research: `PYTHON run_pfl.py OUT`, PYTHON having pfl."""

import sys
from itertools import cycle
from types import MethodType
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from problem import LONG, LR, SIZES, Case, Net, tensors, weights, write
from torch.nn.functional import cross_entropy

CASES = [
    *(Case("fedavg", by_size=by_size) for by_size in (False, True)),
    Case("fedprox"),
    Case("scaffold"),
    Case("scaffold_first"),
    Case("fedavgm"),
    Case("fedadam", server_lr=0.1),
    *(Case(name, **LONG) for name in ("scaffold", "scaffold_first")),
]


class Recorder(TrainingProcessCallback):
    """Keeps the weights after each round."""

    def __init__(self) -> None:
        self.path: list[list[float]] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Keep the global model."""
        self.path.append(weights(model.pytorch_model))
        return False, Metrics()


def federated(case: Case) -> FederatedDataset:
    """The clients, drawn as the cohorts say."""
    clients = tensors()
    order = cycle([i for round in range(case.rounds) for i in case.cohort(round)])
    make = lambda i: Dataset([*clients[i]], user_id=str(i))  # noqa: E731
    return FederatedDataset(make, lambda: next(order))


def network() -> Net:
    """With the loss and the metrics that pfl asks a module for."""
    net = Net()
    net.loss = MethodType(lambda self, x, y, eval=False: cross_entropy(self(x), y), net)
    net.metrics = MethodType(lambda self, x, y, eval=True: {}, net)
    return net


def server(case: Case, net: Net) -> torch.optim.Optimizer:
    """Server optimizers are PyTorch's there."""
    c = case.coefficients()
    if case.method == "fedadam":
        betas = c["beta1"], c["beta2"]
        return torch.optim.Adam(net.parameters(), case.server_lr, betas, eps=c["tau"])
    return torch.optim.SGD(net.parameters(), case.server_lr, c.get("beta", 0.0))


def path(case: Case) -> list[list[float]]:
    """The weights after each round."""
    given: dict[str, Any] = {
        "central_num_iterations": case.rounds,
        "evaluation_frequency": 10**9,
        "train_cohort_size": len(case.cohort(0)),
        "val_cohort_size": 0,
    }
    if case.method == "fedprox":
        algorithm, params = FedProx(), FedProxParams(**given, mu=case.coefficients()["mu"])
    elif case.method.startswith("scaffold"):
        algorithm = SCAFFOLD()
        params = SCAFFOLDParams(
            **given,
            population=len(SIZES),
            use_gradient_as_control_variate=case.method == "scaffold_first",
            user_state_storage=InMemoryUserStateStorage(),
        )
    else:
        algorithm, params = FederatedAveraging(), NNAlgorithmParams(**given)
    net, recorder, users = network(), Recorder(), federated(case)
    weighting = WeightByDatapoints() if case.by_size else WeightByUser()
    algorithm.run(
        algorithm_params=params,
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[weighting]),
        model=PyTorchModel(net, torch.optim.SGD, server(case, net)),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=LR, local_num_epochs=case.epochs, local_batch_size=case.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=100),
        callbacks=[recorder],
    )
    return recorder.path


if __name__ == "__main__":
    torch.set_num_threads(1)
    write(sys.argv[1], [(case, path(case)) for case in CASES])
