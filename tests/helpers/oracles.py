"""Views, oracles and passes that one can see through: what the tests of single terms share."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from problems import vec
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import Term
from fl_lightning.core.network import FunctionalModel
from fl_lightning.core.oracle import BatchOracle, ForwardPass, Loss, Request, objective
from fl_lightning.core.vector import Layout


def view(**attributes: Any) -> Any:
    return SimpleNamespace(log=lambda *_, **__: None, **attributes)


def quadratic(w: Tensor) -> Tensor:
    """The gradient of `w_1^2 / 2 + w_2^2`."""
    return w * vec(1.0, 2.0)


def direction_of(term: Term, v: Any = None) -> Tensor:
    """The term's direction at (3, 2), where the quadratic's gradient is (3, 4)."""
    return term.gradient(quadratic, vec(3, 2), v or view())


class Asked:
    def __init__(self) -> None:
        self.at: list[Tensor] = []

    def __call__(self, w: Tensor) -> Tensor:
        self.at.append(w)
        return quadratic(w)


class _Listener:
    """An oracle that keeps the loss that it is asked about, and what the loss wants to observe."""

    def of(self, loss: Loss, *layers: str) -> "_Listener":
        self.loss, self.layers = loss, layers
        return self

    def __call__(self, w: Tensor) -> Tensor:
        return w


def loss_of(term: Term, v: Any, b: Any) -> float:
    """The value of the loss that a term asks about, for a pass made by hand."""
    listener = _Listener()
    term.gradient(listener, vec(0), v)
    assert set(listener.layers) <= set(getattr(b, "activations", {}))
    return float(listener.loss(b))


def oracle_of(module: nn.Module, x: Tensor, y: Tensor) -> BatchOracle:
    """The gradient oracle of the cross-entropy of a real model on one batch."""
    layout, buffers = Layout(module), dict(module.named_buffers())

    def evaluate(w: Tensor, question: Request) -> Tensor:
        def value(w: Tensor) -> Tensor:
            b = ForwardPass(
                FunctionalModel(module, layout, buffers, layout.named(w)),
                *question.batch(x, y),
                question.layers,
            )
            return objective(b, (lambda b: F.cross_entropy(b.out, b.y), *question.losses))[0]

        answer: Tensor = value(w) if question.loss_only else torch.func.grad(value)(w)
        return answer

    return BatchOracle(evaluate)


def autograd(w: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    w = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(w), w)
    return gradient
