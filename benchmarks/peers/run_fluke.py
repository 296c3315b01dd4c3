"""The runs of fluke: `PYTHON run_fluke.py OUT`, PYTHON having fluke-fl."""

import sys
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedavgm import FedAVGM
from fluke.algorithms.feddyn import FedDyn
from fluke.algorithms.fednova import FedNova
from fluke.algorithms.fedopt import FedOpt
from fluke.algorithms.fedprox import FedProx
from fluke.algorithms.fedsam import FedSAM
from fluke.algorithms.moon import MOON
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver
from problem import CLASSES, LONG, LR, UNEQUAL_STEPS, Case, Net, tensors, weights, write

CASES = [
    *(Case("fedavg", by_size=by_size) for by_size in (False, True)),
    Case("fedavg", server_lr=0.5),
    Case("fedprox", by_size=True),
    *(Case("scaffold", by_size=by_size) for by_size in (False, True)),
    Case("scaffold", server_lr=0.5),
    Case("fednova", by_size=True, **UNEQUAL_STEPS),
    Case("fedavgm", by_size=True),
    *(Case(name, server_lr=0.1) for name in ("fedadam", "fedyogi", "fedadagrad")),
    Case("feddyn"),
    Case("moon", by_size=True, everyone=True),
    Case("moon", by_size=True),
    Case("fedsam"),
    Case("feddyn", **LONG),
]
METHODS: dict[str, type[CentralizedFL]] = {
    "fedavg": FedAVG,
    "fedprox": FedProx,
    "scaffold": SCAFFOLD,
    "fednova": FedNova,
    "fedavgm": FedAVGM,
    "fedadam": FedOpt,
    "fedyogi": FedOpt,
    "fedadagrad": FedOpt,
    "feddyn": FedDyn,
    "moon": MOON,
    "fedsam": FedSAM,
}


class Split:
    """The data, in the place of a splitter of a data set."""

    def assign(self, clients: int, batch_size: int) -> Any:
        """The loaders of clients for training and testing, and that of the server."""
        loaders = [
            FastDataLoader(
                x, y, num_labels=CLASSES, batch_size=batch_size, shuffle=False, skip_singleton=False
            )
            for x, y in tensors()
        ]
        return (loaders, [None] * clients), None


class Recorder(FederationObserver):
    """Keeps the weights after each round."""

    def __init__(self, algorithm: CentralizedFL) -> None:
        self.algorithm, self.path = algorithm, list[list[float]]()

    def end_round(self, round: int) -> None:
        """Keep the model that clients will start at; FedDyn has another one for scoring."""
        server = self.algorithm.server
        self.path.append(weights(getattr(server, "cld_mdl", server.model)))


def server_options(case: Case) -> dict[str, Any]:
    """The settings of the server."""
    options: dict[str, Any] = {"weighted": case.by_size}
    if METHODS[case.method] is FedOpt:
        given = {"beta2": 0.99} | case.coefficients()
        return options | {"mode": case.method.removeprefix("fed"), "lr": case.server_lr} | given
    if case.method == "scaffold":
        options["global_step"] = case.server_lr
    elif case.method == "fedavgm":
        options["momentum"] = case.coefficients()["beta"]
    elif case.server_lr != 1:
        options["lr"] = case.server_lr
    return options


def path(case: Case) -> list[list[float]]:
    """The weights after each round."""
    of_clients = case.method in ("fedprox", "feddyn", "moon", "fedsam")
    client = {
        "batch_size": case.batch_size,
        "local_epochs": case.epochs,
        "loss": "CrossEntropyLoss",
        "clipping": 0,
        "optimizer": {"name": METHODS[case.method].get_optimizer_class(None), "lr": LR},
        "scheduler": {"step_size": 1, "gamma": 1.0},
    } | (case.coefficients() if of_clients else {})
    options = {"client": client, "server": server_options(case), "model": Net()}
    algorithm = METHODS[case.method](4, Split(), DDict(options))
    rounds = iter(range(case.rounds))
    algorithm.server.get_eligible_clients = lambda share: [
        algorithm.clients[i] for i in case.cohort(next(rounds))
    ]
    recorder = Recorder(algorithm)
    algorithm.set_callbacks([recorder])
    algorithm.run(case.rounds, 1.0, finalize=False)
    return recorder.path


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # FedNova's weights have the default type
    FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    write(sys.argv[1], [(case, path(case)) for case in CASES])
