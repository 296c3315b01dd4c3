"""Losses against label skew: features without correlations, scores fitted to a client's classes."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_lightning.core.constraints import NonNegativeFloat, PositiveFloat, UnitInterval
from fl_lightning.core.losses import cross_entropy
from fl_lightning.core.oracle import ForwardPass, Oracle
from fl_lightning.core.term import Term, View
from fl_lightning.errors import TermError
from fl_lightning.terms.distill import check_labels, check_scores


def squared_correlations(z: Tensor, eps: float = 1e-8) -> Tensor:
    """The squared correlations between different features of samples, (n, d), summed over pairs.

    They are made of the (n, n) products of samples, whose squares have the same sum as the (d, d)
    products of features. In float32 at least.
    """
    with torch.autocast(z.device.type, enabled=False):
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        z = (z - z.mean(0)) / (z.var(0) + eps).sqrt()
        of_one = z.square().sum(0).square().sum()
        return ((z @ z.T).square().sum() - of_one) / (len(z) - 1) ** 2


@dataclass(frozen=True)
class Decorrelation(Term):
    """FedDecorr: adds the squared correlations between different features that enter the head.

    Its attributes are the options of `fl_lightning.algorithms.feddecorr`.
    """

    beta: NonNegativeFloat = 0.1
    products: Literal["mean", "sum"] = "sum"

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        head = v.layout.head

        def loss(b: ForwardPass) -> Tensor:
            z = b.activations[head][0]
            if z.ndim != 2:
                raise TermError(
                    f"the method correlates features of whole samples, but {tuple(z.shape)} enters "
                    "the head: name another in the model's attribute `head`, or choose another "
                    "method"
                )
            n, d = z.shape
            if n == 1:  # which has no correlations
                return b.loss
            of_sums = (n - 1) ** 2 / (n * max(1, d * (d - 1)))
            weight = self.beta * (of_sums if self.products == "sum" else d**-2)
            return b.loss + weight * squared_correlations(z)

        return oracle.of(loss, head)(w)


def class_counts(v: View, b: ForwardPass) -> Tensor:
    """The client's samples of each class that the model scores.

    Raises:
        TermError: If the targets are no classes, or the model does not return their scores.
    """
    if len(v.labels) < 2:
        raise TermError(
            "the method looks at the classes that a client holds, but the data have no classes: "
            "give FederatedData target or classes, or choose another method"
        )
    check_scores(b)
    check_labels(b.y, *b.out.shape[:-1])
    return F.pad(v.labels, (0, b.out.shape[-1] - len(v.labels)))


def with_scores(b: ForwardPass, scores: Tensor) -> Tensor:
    """The loss with the cross entropy of other scores in place of that of the model's."""
    return b.loss + cross_entropy(scores, b.y) - cross_entropy(b.out, b.y)


@dataclass(frozen=True)
class RestrictedSoftmax(Term):
    """FedRS: multiplies the scores of classes that the client lacks by alpha in the loss.

    With `restricts="rare"` a class that it holds has a factor between alpha and 1, by how often it
    occurs, as in the authors' code.
    """

    alpha: UnitInterval = 0.5
    restricts: Literal["missing", "rare"] = "missing"
    roles = frozenset({"labels"})
    needs_cross_entropy = True

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        def loss(b: ForwardPass) -> Tensor:
            n = class_counts(v, b)
            held = n / n.amax() if self.restricts == "rare" else (n > 0).to(n)
            return with_scores(b, (self.alpha + (1 - self.alpha) * held) * b.out)

        return oracle.of(loss)(w)


@dataclass(frozen=True)
class LogitCalibration(Term):
    """FedLC: subtracts `tau n_c^(-1/4)` from the score of class c in the loss.

    n_c are the client's samples of the class. One that it lacks drops out of the softmax.
    """

    tau: PositiveFloat = 1.0
    roles = frozenset({"labels"})
    needs_cross_entropy = True

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        def loss(b: ForwardPass) -> Tensor:
            return with_scores(b, b.out - self.tau * class_counts(v, b) ** -0.25)

        return oracle.of(loss)(w)
