"""Each method as its paper writes it, in NumPy, with the gradients written out.

A method is a generator of the global weights after each round. Notation as in
`fl_lightning.algorithms`: w is the global model, u_i what client i ends with, N the number of
clients, S the cohort.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from problem import CLASSES, HIDDEN, INPUTS, LR, SIZES, Case, data, start

Vector = np.ndarray
Direction = Callable[[Vector, Vector, Vector], Vector]
Path = Iterator[Vector]
N = len(SIZES)


def unpack(w: Vector) -> list[Vector]:
    """Encoder, its bias, head, its bias."""
    shapes = (HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)
    parts = np.split(w, np.cumsum([np.prod(s) for s in shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def features(w: Vector, x: Vector) -> Vector:
    """What enters the head, (n, 8)."""
    A, a, *_ = unpack(w)
    return np.tanh(x @ A.T + a)


def gradient(w: Vector, x: Vector, y: Vector, into_features: Vector | float = 0.0) -> Vector:
    """Of the mean cross-entropy, and of a loss whose gradient at the features is given."""
    _, _, B, b = unpack(w)
    z = features(w, x)
    scores = np.exp(z @ B.T + b)
    wrong = (scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
    back = (wrong @ B + into_features) * (1 - z**2)
    return np.concatenate([(back.T @ x).ravel(), back.sum(0), (wrong.T @ z).ravel(), wrong.sum(0)])


def objective_gradient(w: Vector) -> Vector:
    """Of the mean of the clients' losses."""
    return np.mean([gradient(w, x, y) for x, y in data()], axis=0)


@dataclass
class Problem:
    """A case with what all methods share."""

    case: Case
    clients: list[tuple[Vector, Vector]] = field(default_factory=data)

    def rounds(self) -> Iterator[list[int]]:
        """The cohorts."""
        return map(self.case.cohort, range(self.case.rounds))

    def batches(self, i: int) -> list[tuple[Vector, Vector]]:
        """The steps of a visit of client i."""
        (x, y), B = self.clients[i], self.case.batch_size
        epoch = [(x[k : k + B], y[k : k + B]) for k in range(0, len(y), B)]
        return epoch * self.case.epochs

    def train(self, w: Vector, i: int, direction: Direction = gradient) -> Vector:
        """u_i: steps from w along the direction."""
        u = w
        for x, y in self.batches(i):
            u = u - LR * direction(u, x, y)
        return u

    def mean(self, S: list[int], of: list[Vector]) -> Vector:
        """Over the cohort, equally or by samples."""
        return np.average(of, axis=0, weights=self.weights(S))

    def weights(self, S: list[int]) -> Vector:
        """p_i, which sum to 1."""
        sizes = np.array([SIZES[i] if self.case.by_size else 1.0 for i in S])
        return sizes / sizes.sum()


def fedavg(p: Problem) -> Path:
    """McMahan et al., AISTATS 2017, Algorithm 1; a server rate as in Reddi et al., ICLR 2021."""
    w = start()
    for S in p.rounds():
        w = w + p.case.server_lr * p.mean(S, [p.train(w, i) - w for i in S])
        yield w


def fedprox(p: Problem, mu: float) -> Path:
    """Li et al., MLSys 2020, Algorithm 2: the loss has mu/2 ||u - w||^2."""
    w = start()
    for S in p.rounds():
        pulled = lambda u, x, y, w=w: gradient(u, x, y) + mu * (u - w)  # noqa: E731
        w = p.mean(S, [p.train(w, i, pulled) for i in S])
        yield w


def scaffold(p: Problem) -> Path:
    """Karimireddy et al., ICML 2020, Algorithm 1, option II."""
    return variates(p, lambda i, w, u, change: change + (w - u) / (len(p.batches(i)) * LR))


def scaffold_first(p: Problem) -> Path:
    """Option I: c_i becomes the gradient at w."""
    return variates(p, lambda i, w, u, change: gradient(w, *p.clients[i]))


def variates(p: Problem, new: Callable[[int, Vector, Vector, Vector], Vector]) -> Path:
    """Algorithm 1 with a new c_i of client, w, u_i and c_i - c."""
    w, c = start(), np.zeros_like(start())
    own = np.zeros((N, len(w)))
    for S in p.rounds():
        before, moves = own.copy(), []
        for i in S:
            corrected = lambda u, x, y, c=c, i=i: gradient(u, x, y) - own[i] + c  # noqa: E731
            u = p.train(w, i, corrected)
            own[i] = new(i, w, u, own[i] - c)
            moves.append(u - w)
        w = w + p.case.server_lr * p.mean(S, moves)
        c = c + (own - before).sum(0) / N
        yield w


def fednova(p: Problem) -> Path:
    """Wang et al., NeurIPS 2020, Eq. 6; with plain SGD a_i is the number of steps."""
    w = start()
    for S in p.rounds():
        a = np.array([len(p.batches(i)) for i in S])
        normalized = [(p.train(w, i) - w) / a_i for i, a_i in zip(S, a, strict=True)]
        w = w + p.weights(S) @ a * p.mean(S, normalized)
        yield w


def fedavgm(p: Problem, beta: float) -> Path:
    """Hsu et al., 2019, Section 4.3: v <- beta v + delta, w <- w - v; here with a server rate."""
    w, v = start(), np.zeros_like(start())
    for S in p.rounds():
        v = beta * v + p.mean(S, [w - p.train(w, i) for i in S])
        w = w - p.case.server_lr * v
        yield w


def adaptive(
    p: Problem,
    v: Callable[[Vector, Vector], Vector],
    beta1: float,
    tau: float,
    v0: float | None = None,
    scale: float = 1.0,
) -> Path:
    """Reddi et al., ICLR 2021, Algorithm 2: v starts at tau^2, nothing corrects the bias."""
    w, m = start(), np.zeros_like(start())
    second = np.full_like(w, tau**2 if v0 is None else v0)
    for S in p.rounds():
        delta = scale * p.mean(S, [p.train(w, i) - w for i in S])
        m = beta1 * m + (1 - beta1) * delta
        second = v(second, delta**2)
        w = w + p.case.server_lr * m / (np.sqrt(second) + tau)
        yield w


def fedadam(p: Problem, beta1: float, beta2: float, tau: float, **other: float) -> Path:
    """Algorithm 2, line 14."""
    return adaptive(p, lambda v, d: beta2 * v + (1 - beta2) * d, beta1, tau, **other)


def fedyogi(p: Problem, beta1: float, beta2: float, tau: float, **other: float) -> Path:
    """Algorithm 2, line 13."""
    return adaptive(p, lambda v, d: v - (1 - beta2) * d * np.sign(v - d), beta1, tau, **other)


def fedadagrad(p: Problem, beta1: float, tau: float, **other: float) -> Path:
    """Algorithm 2, line 12."""
    return adaptive(p, lambda v, d: v + d, beta1, tau, **other)


def feddyn(p: Problem, alpha: float) -> Path:
    """Acar et al., ICLR 2021, Algorithm 1, with the dual g_i of each client and h of the server."""
    w, h = start(), np.zeros_like(start())
    g = np.zeros((N, len(w)))
    for S in p.rounds():
        ends = []
        for i in S:
            regularized = lambda u, x, y, w=w, i=i: gradient(u, x, y) - g[i] + alpha * (u - w)  # noqa: E731
            ends.append(p.train(w, i, regularized))
            g[i] = g[i] - alpha * (ends[-1] - w)
        h = h - alpha / N * np.sum(np.array(ends) - w, axis=0)
        w = np.mean(ends, axis=0) - h / alpha
        yield w


def moon(p: Problem, mu: float, tau: float, first_received: bool = False) -> Path:
    """Li et al., CVPR 2021, Eq. 3.

    A client that never trained has w^0 for its last model, or the received one; the paper's all
    take part from the first round.
    """
    w, seen = start(), set[int]()
    last = [w] * N
    for S in p.rounds():
        for i in S:
            if first_received and i not in seen:
                last[i] = w
            seen.add(i)
            step = lambda u, x, y, w=w, old=last[i]: _contrast(u, x, y, w, old, mu, tau)  # noqa: E731
            last[i] = p.train(w, i, step)
        w = p.mean(S, [last[i] for i in S])
        yield w


def _contrast(
    u: Vector, x: Vector, y: Vector, w: Vector, old: Vector, mu: float, tau: float
) -> Vector:
    """The gradient with mu times the contrast of the features with those of w and of `old`."""
    z, near, far = (features(model, x) for model in (u, w, old))
    gap = (_cosine(z, far)[0] - _cosine(z, near)[0]) / tau
    slope = mu / len(y) / tau / (1 + np.exp(-gap))
    return gradient(u, x, y, slope[:, None] * (_cosine(z, far)[1] - _cosine(z, near)[1]))


def _cosine(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """Row by row, and its gradient at a."""
    length = np.linalg.norm(a, axis=1, keepdims=True)
    b = b / np.linalg.norm(b, axis=1, keepdims=True)
    cos = (a * b).sum(1, keepdims=True) / length
    return cos[:, 0], (b - cos * a / length) / length


def fedsam(p: Problem, rho: float) -> Path:
    """Qu et al., ICML 2022, Algorithm 1: the gradient at u + rho g / ||g||."""

    def ascended(u: Vector, x: Vector, y: Vector) -> Vector:
        g = gradient(u, x, y)
        return gradient(u + rho * g / np.linalg.norm(g), x, y)

    w = start()
    for S in p.rounds():
        w = p.mean(S, [p.train(w, i, ascended) for i in S])
        yield w


def fedmedian(p: Problem) -> Path:
    """Yin et al., ICML 2018, Definition 1: the median of each number."""
    return _combining(p, lambda d: np.median(d, axis=0))


def trimmed_mean(p: Problem, share: float) -> Path:
    """Yin et al., ICML 2018, Definition 2: the mean without the largest and smallest share."""

    def trimmed(d: Vector) -> Vector:
        k = int(share * len(d))
        return np.sort(d, axis=0)[k : len(d) - k].mean(0)

    return _combining(p, trimmed)


def krum(p: Problem, share: float) -> Path:
    """Blanchard et al., NeurIPS 2017, Section 4, with f = share M attackers."""

    def nearest(d: Vector) -> Vector:
        near = len(d) - int(share * len(d)) - 2
        squares = ((d[:, None] - d) ** 2).sum(2)
        return d[np.sort(squares)[:, 1 : 1 + near].sum(1).argmin()]

    return _combining(p, nearest)


def _combining(p: Problem, rule: Callable[[Vector], Vector]) -> Path:
    w = start()
    for S in p.rounds():
        w = w + rule(np.array([p.train(w, i) - w for i in S]))
        yield w


def path(case: Case) -> Vector:
    """The weights after each round, (rounds, 83)."""
    method: Any = globals()[case.method]
    return np.array([*method(Problem(case), **case.coefficients())])
