"""An algorithm: control variates, and a pull towards the received model.

fl-lightning run digits --algorithm algorithm.py:my_algorithm --algorithm.mu 0.3
fl-lightning show algorithm.py:my_algorithm
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fl_lightning import Algorithm, Term, zeros
from fl_lightning.core.oracle import Oracle


@dataclass(frozen=True)
class MyTerm(Term):
    """Steps along g(w) + c - c_i + mu (w - w^t).

    Args:
        mu: The strength of the pull.
    """

    mu: float = 0.1

    client = {"c_i": zeros}  # kept by each client between rounds
    server = {"c": zeros}  # kept by the server; clients may read it

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        """The direction of a local step; `oracle(w)` is the gradient of the batch at w."""
        return oracle(w) + v.c - v.c_i + self.mu * (w - v.anchor)

    def report(self, w: Tensor, v: Any) -> Tensor:
        """After the last local step: what the server receives besides the model."""
        old = v.c_i
        v.c_i = old - v.c + (v.origin - w) / v.lr_sum  # assign anew, never with -=
        return v.c_i - old

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        """On the server: `delta` is the mean move of the clients, `mean` that of the reports."""
        v.c = v.c + v.participation * mean
        return delta


def my_algorithm(mu: float = 0.1) -> Algorithm:
    """My algorithm: one sentence that --help shows.

    Args:
        mu: Each argument becomes an option, here --algorithm.mu.
    """
    return Algorithm(MyTerm(mu))
