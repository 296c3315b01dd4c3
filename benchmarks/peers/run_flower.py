"""The runs of Flower's strategies: `PYTHON run_flower.py OUT`, PYTHON having flwr.

Clients are the user's own code there, so theirs is the SGD of `equations`; a strategy gets what
they send, as in a simulation.
"""

import sys
from typing import Any

import numpy as np
from equations import Problem, gradient
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
)
from flwr.supercore.task_identity import TaskIdentity
from problem import ADAPTIVE, ROBUST, SIZES, Case, start, write

CASES = [
    Case("fedavg", by_size=True),
    Case("fedprox", by_size=True),
    Case("fedavgm", by_size=True),
    Case("fedavgm", by_size=True, server_lr=0.7),
    *(Case(name, by_size=True, server_lr=0.1) for name in ADAPTIVE),
    *(Case(name, everyone=True) for name in ROBUST),
]
METHODS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedmedian": FedMedian,
    "trimmed_mean": FedTrimmedAvg,
    "krum": Krum,
}


class Grid:
    """The connected nodes, which a strategy asks for."""

    def get_node_ids(self) -> list[int]:
        """Those of all clients."""
        return [*range(1, len(SIZES) + 1)]


def options(case: Case) -> dict[str, Any]:
    """The settings of the strategy."""
    c = case.coefficients()
    if case.method in ADAPTIVE:
        betas = {} if case.method == "fedadagrad" else {"beta_1": c["beta1"], "beta_2": c["beta2"]}
        return {"eta": case.server_lr, "tau": c["tau"]} | betas
    if case.method == "fedavgm":
        return {"server_momentum": c["beta"], "server_learning_rate": case.server_lr}
    if case.method == "trimmed_mean":
        return {"beta": c["share"]}
    if case.method == "krum":
        return {"num_malicious_nodes": round(c["share"] * len(SIZES))}
    return {"proximal_mu": c["mu"]} if case.method == "fedprox" else {}


def path(case: Case) -> list[list[float]]:
    """The weights after each round."""
    strategy = METHODS[case.method](fraction_evaluate=0.0, **options(case))
    problem, w, found = Problem(case), start(), list[list[float]]()
    for number, cohort in enumerate(problem.rounds(), start=1):
        config = ConfigRecord()
        sent = [*strategy.configure_train(number, ArrayRecord([w]), config, Grid())]
        mu = float(sent[0].content["config"].get("proximal-mu", 0.0))

        def step(u: np.ndarray, x: np.ndarray, y: np.ndarray, w: Any = w, mu: float = mu) -> Any:
            return gradient(u, x, y) + mu * (u - w)

        replies = [reply(sent[i], problem.train(w, i, step), SIZES[i]) for i in cohort]
        arrays, _ = strategy.aggregate_train(number, replies)
        (w,) = arrays.to_numpy_ndarrays()
        found.append(w.tolist())
    return found


def reply(sent: Message, u: np.ndarray, samples: int) -> Message:
    """What a client answers."""
    metrics = MetricRecord({"num-examples": samples})
    content = RecordDict({"arrays": ArrayRecord([u]), "metrics": metrics})
    return Message(content=content, reply_to=sent)


if __name__ == "__main__":
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # messages carry them
    write(sys.argv[1], [(case, path(case)) for case in CASES])
