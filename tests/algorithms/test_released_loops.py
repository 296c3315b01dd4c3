"""Methods against the loops of their authors' code, in plain PyTorch on the golden problem.

Each loop is written after the files and lines that it names, and calls nothing of the package.
"""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import ragged_problem as ragged
import torch
from problems import rows
from ragged_problem import SIZES, batches, network
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from fl_lightning import Algorithm, Federation, algorithms
from fl_lightning.core.weighting import by_size, uniform
from fl_lightning.federation.fine_tuning import personal_model

LR, ROUNDS = 0.05, 4
COHORTS = ragged.COHORTS[:ROUNDS]

Weights = dict[str, Tensor]


def vector(weights: Weights) -> Tensor:
    return torch.cat([w.detach().flatten() for w in weights.values()])


def begun() -> Weights:
    return {name: w.detach().clone() for name, w in network().named_parameters()}


NETWORK = network()
"""To be called with other weights."""


def loss(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(functional_call(NETWORK, weights, x), y)


def gradient(weights: Weights, x: Tensor, y: Tensor) -> Weights:
    leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
    found = torch.autograd.grad(loss(leaves, x, y), [*leaves.values()])
    return dict(zip(leaves, found, strict=True))


def federation(algorithm: Algorithm, momentum: float = 0.0, **options: Any) -> Federation:
    return ragged.ragged_federation(algorithm.replace(**options), LR, ROUNDS, momentum=momentum)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.detach(), expected, rtol=0, atol=1e-12)


# pFedMe: CharlieDinh/pFedMe at caf24b1


def pfedme_visit(w: Weights, client: int, lam: float, steps: int, mu: float) -> Any:
    """`FLAlgorithms/users/userpFedMe.py` 36-58 and `FLAlgorithms/optimizers/fedoptimizer.py` 64."""
    local, theta = deepcopy(w), deepcopy(w)  # set_parameters, userbase.py 38-41
    for x, y in batches(client):
        for _ in range(steps):
            g = gradient(theta, x, y)
            theta = {k: p - 0.09 * (g[k] + lam * (p - local[k]) + mu * p) for k, p in theta.items()}
        local = {k: p - lam * LR * (p - theta[k]) for k, p in local.items()}
    return local, theta


@pytest.mark.parametrize("released", [True, False], ids=["released", "paper"])
@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_pfedme(released: bool, beta: float) -> None:
    """The server: `FLAlgorithms/servers/serverbase.py` 107-125; the paper averages uniformly."""
    mu = 0.001 if released else 0.0
    run = federation(
        algorithms.pfedme(lam=6.0, inner_steps=3, mu=mu),
        weight=by_size if released else uniform,
        server=partial(SGD, lr=beta),
    )
    w, personal = begun(), {}
    for cohort in COHORTS:
        ended = {}
        for client in cohort:
            ended[client], personal[client] = pfedme_visit(w, client, 6.0, 3, mu)
        total = sum(SIZES[i] for i in cohort)
        share = {i: SIZES[i] / total if released else 1 / len(cohort) for i in cohort}
        mean = {k: sum(share[i] * ended[i][k] for i in cohort) for k in w}
        w = {k: (1 - beta) * p + beta * mean[k] for k, p in w.items()}
        run.train_round()
        assert_equal(run.w, vector(w))
    for client, theta in personal.items():
        assert_equal(personal_model(run, client)[0], vector(theta))


# APFL: MLOPTPSU/FedTorch at ab8068d


def apfl_step(w: Weights, v: Weights, alpha: Tensor, x: Tensor, y: Tensor) -> Any:
    """`fedtorch/comms/trainings/federated/centered/apfl.py` 87-117, and the paper's alpha.

    As in the paper, the models are mixed instead of their outputs (`comms/utils/eval.py` 34-36),
    w has not stepped yet, and alpha steps along its derivative (`comms/utils/flow_utils.py` 240).
    """
    own = {k: p.clone().requires_grad_() for k, p in v.items()}
    weight = alpha.clone().requires_grad_()
    mixed = {k: weight * p + (1 - weight) * w[k] for k, p in own.items()}
    *of_v, of_alpha = torch.autograd.grad(loss(mixed, x, y), [*own.values(), weight])
    v = {k: p - LR * g for (k, p), g in zip(v.items(), of_v, strict=True)}
    g = gradient(w, x, y)
    return {k: p - LR * g[k] for k, p in w.items()}, v, (alpha - LR * of_alpha).clamp(0, 1)


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(adaptive: bool) -> None:
    """The server: `fedtorch/comms/algorithms/federated/centered/fedavg.py` 15-45."""
    run = federation(algorithms.apfl(0.3, adaptive))
    w, own = begun(), {i: begun() for i in range(10)}
    alphas = dict.fromkeys(range(10), torch.tensor(0.3, dtype=torch.float64))
    for cohort in COHORTS:
        ended = []
        for client in cohort:
            local = w
            for x, y in batches(client):
                local, own[client], alpha = apfl_step(local, own[client], alphas[client], x, y)
                alphas[client] = alpha if adaptive else alphas[client]
            ended.append(local)
        w = {k: sum(local[k] for local in ended) / len(ended) for k in w}
        run.train_round()
        assert_equal(run.w, vector(w))
    assert_equal(rows(run, "v_i"), torch.stack([*map(vector, own.values())]))
    for client, alpha in alphas.items():
        mixed = alpha * vector(own[client]) + (1 - alpha) * vector(w)
        assert_equal(personal_model(run, client)[0], mixed)
    assert (min(alphas.values()) < 0.299) == adaptive


# FedADMM: YonghaiGong/FedADMM at 1efef57


@pytest.mark.parametrize("memory", ["none", "change", "start"])
def test_fedadmm(memory: Any) -> None:
    """`FedADMM/src/update.py` 37-77 and `federated_main.py` 73-84, which forget w_i ("none").

    Otherwise `model_prev` is the client's last model. With "start" visits begin there, too.
    """
    rho, momentum = 0.2, 0.5
    eta, option = (1.0, 1.0) if memory == "none" else (4 / 10, None)
    run = federation(algorithms.fedadmm(rho, option, memory), momentum=momentum)
    theta, alpha = begun(), {i: dict.fromkeys(begun(), torch.zeros(())) for i in range(10)}
    last = {i: begun() for i in range(10)}
    for cohort in COHORTS:
        changes = []
        for i in cohort:
            previous = theta if memory == "none" else last[i]
            module = network()
            module.load_state_dict(last[i] if memory == "start" else theta)
            optimizer = SGD(module.parameters(), lr=LR, momentum=momentum)
            for x, y in batches(i):
                module.zero_grad()
                cross_entropy(module(x), y).backward()
                for name, p in module.named_parameters():
                    p.grad += alpha[i][name] + rho * (p.detach() - theta[name])
                optimizer.step()
            last[i] = {k: p.detach().clone() for k, p in module.named_parameters()}
            before = alpha[i]
            alpha[i] = {k: a + rho * (last[i][k] - theta[k]) for k, a in before.items()}
            dual = {k: (1 / rho) * (a - before[k]) for k, a in alpha[i].items()}
            changes.append({k: (p - previous[k]) + dual[k] for k, p in last[i].items()})
        theta = {k: p + eta * sum(c[k] for c in changes) / len(changes) for k, p in theta.items()}
        run.train_round()
        assert_equal(run.w, vector(theta))
    for i in {i for cohort in COHORTS for i in cohort}:
        assert_equal(rho * rows(run, "h_i")[i], vector(alpha[i]))
