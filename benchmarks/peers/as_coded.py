"""What simulators compute where they leave an equation: the equation with the named change.

If the weights of the simulator equal these, the change is the whole difference.
"""

from typing import Any

import numpy as np
from equations import (
    LR,
    N,
    Path,
    Problem,
    Vector,
    fedadagrad,
    fedadam,
    fedyogi,
    gradient,
    moon,
    variates,
)
from problem import SIZES, Case, start


def pfl_scaffold(p: Problem) -> Path:
    """The move is added to c_i, not subtracted."""
    return variates(p, lambda i, w, u, change: change + (u - w) / (len(p.batches(i)) * LR))


def pfl_scaffold_first(p: Problem) -> Path:
    """c_i becomes minus the gradient, in memory that holds the c_i of all clients.

    So a later visit steps along the gradient minus its new c_i, and does not move c.
    """
    w, c, known = start(), np.zeros_like(start()), set[int]()
    for S in p.rounds():
        moves, changes = [], np.zeros_like(c)
        for i in S:
            new = -gradient(w, *p.clients[i])
            own = new if i in known else 0.0
            corrected = lambda u, x, y, c=c, own=own: gradient(u, x, y) - own + c  # noqa: E731
            moves.append(p.train(w, i, corrected) - w)
            changes += new - own
            known.add(i)
        w = w + p.mean(S, moves)
        c = c + changes / N
        yield w


def pfl_fedadam(p: Problem, beta1: float, beta2: float, tau: float) -> Path:
    """PyTorch's Adam: v starts at 0, and the bias of both moments is corrected."""
    w = start()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, S in enumerate(p.rounds(), start=1):
        delta = p.mean(S, [p.train(w, i) - w for i in S])
        m = beta1 * m + (1 - beta1) * delta
        v = beta2 * v + (1 - beta2) * delta**2
        w = w + p.case.server_lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + tau)
        yield w


def flower_fedadam(p: Problem, beta1: float, beta2: float, tau: float) -> Path:
    """V starts at 0, and a factor corrects the bias as if the round were the next one."""
    w = start()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, S in enumerate(p.rounds(), start=2):
        delta = p.mean(S, [p.train(w, i) - w for i in S])
        m = beta1 * m + (1 - beta1) * delta
        v = beta2 * v + (1 - beta2) * delta**2
        factor = np.sqrt(1 - beta2**t) / (1 - beta1**t)
        w = w + p.case.server_lr * factor * m / (np.sqrt(v) + tau)
        yield w


def flower_fedyogi(p: Problem, **coefficients: float) -> Path:
    """V starts at 0."""
    return fedyogi(p, **coefficients, v0=0.0)


def flower_fedadagrad(p: Problem, **coefficients: float) -> Path:
    """V starts at 0."""
    return fedadagrad(p, **coefficients, v0=0.0)


def fluke_fedadam(p: Problem, **coefficients: float) -> Path:
    """V starts at 0, and delta is multiplied by the server's rate."""
    return fedadam(p, **coefficients, v0=0.0, scale=p.case.server_lr)


def fluke_fedyogi(p: Problem, **coefficients: float) -> Path:
    """As `fluke_fedadam`."""
    return fedyogi(p, **coefficients, v0=0.0, scale=p.case.server_lr)


def fluke_fedadagrad(p: Problem, **coefficients: float) -> Path:
    """As `fluke_fedadam`."""
    return fedadagrad(p, **coefficients, v0=0.0, scale=p.case.server_lr)


def fluke_scaffold(p: Problem) -> Path:
    """The server's rate multiplies the mean model, not the mean move."""
    w, c = start(), np.zeros_like(start())
    own = np.zeros((N, len(w)))
    for S in p.rounds():
        before, ends = own.copy(), []
        for i in S:
            corrected = lambda u, x, y, c=c, i=i: gradient(u, x, y) - own[i] + c  # noqa: E731
            ends.append(p.train(w, i, corrected))
            own[i] = own[i] - c + (w - ends[-1]) / (len(p.batches(i)) * LR)
        w = p.case.server_lr * p.mean(S, ends)
        c = c + (own - before).sum(0) / N
        yield w


def fluke_fednova(p: Problem) -> Path:
    """The weights p_i tau_eff / a_i, whose sum is not 1, multiply models."""
    w = start()
    for S in p.rounds():
        a = np.array([len(p.batches(i)) for i in S])
        weights = p.weights(S) * (p.weights(S) @ a) / a
        w = weights @ np.array([p.train(w, i) for i in S])
        yield w


def fluke_fedavgm(p: Problem, beta: float) -> Path:
    """The first round leaves the momentum at 0, and the model where it was."""
    w, v = start(), np.zeros_like(start())
    for round, S in enumerate(p.rounds()):
        if round:
            v = beta * v + p.mean(S, [w - p.train(w, i) for i in S])
        w = w - v
        yield w


def fluke_feddyn(p: Problem, alpha: float) -> Path:
    """Alpha by size as in the authors' code; the dual has the other sign and alpha twice.

    The server adds the mean dual of the cohort, and a new client starts at the mean model.
    """
    w = mean = start()
    g, known = np.zeros((N, len(w))), set[int]()
    for S in p.rounds():
        ends = []
        for i in S:
            a = alpha / SIZES[i] * sum(SIZES) / N
            begin = w if i in known else mean
            step = lambda u, x, y, a=a, i=i, begin=begin: gradient(u, x, y) + a * (u - begin + g[i])  # noqa: E731
            ends.append(p.train(begin, i, step))
            g[i] = g[i] + a * (begin - ends[-1])
            known.add(i)
        mean = p.mean(S, ends)
        w = mean + g[S].mean(0)
        yield w


def fluke_moon(p: Problem, mu: float, tau: float) -> Path:
    """A client that never trained has the received model for its last one."""
    return moon(p, mu, tau, first_received=True)


def fluke_fedsam(p: Problem, rho: float) -> Path:
    """The gradient of a step stays, and is added to that of the next ascent."""
    w, left = start(), np.zeros((N, len(start())))

    def step(i: int) -> Any:
        def ascended(u: Vector, x: Vector, y: Vector) -> Vector:
            g = left[i] + gradient(u, x, y)
            left[i] = gradient(u + rho * g / np.linalg.norm(g), x, y)
            return left[i].copy()

        return ascended

    for S in p.rounds():
        w = p.mean(S, [p.train(w, i, step(i)) for i in S])
        yield w


def fedlab_fednova(p: Problem) -> Path:
    """The default option multiplies by N / |S| weights that sum to 1 over S."""
    w = start()
    for S in p.rounds():
        a = np.array([len(p.batches(i)) for i in S])
        normalized = [(p.train(w, i) - w) / a_i for i, a_i in zip(S, a, strict=True)]
        w = w + a.mean() * np.mean(normalized, axis=0) * N / len(S)
        yield w


def fedlab_feddyn(p: Problem, alpha: float) -> Path:
    """Clients take plain steps, and the server subtracts w once from a sum over the cohort."""
    w, h = start(), np.zeros_like(start())
    for S in p.rounds():
        ends = np.array([p.train(w, i) for i in S])
        h = h - alpha / N * (ends.sum(0) - w)
        w = ends.mean(0) - h / alpha
        yield w


def path(peer: str, case: Case) -> Vector | None:
    """The weights after each round as the simulator computes them, if it leaves the equation."""
    method: Any = globals().get(f"{peer}_{case.method}")
    return method and np.array([*method(Problem(case), **case.coefficients())])
