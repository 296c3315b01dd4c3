"""Losses of the received model's outputs and features: distillation and contrast."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.core.constraints import (
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
)
from fl_lightning.core.oracle import ForwardPass, Oracle
from fl_lightning.core.term import Term, View, initial
from fl_lightning.errors import TermError


def check_scores(b: ForwardPass) -> None:
    """Raise a TermError unless the model returned scores of several classes, which are last."""
    out, y = b.out, b.y
    scores = isinstance(out, Tensor) and out.ndim > 1 and out.shape[-1] > 1
    if scores and isinstance(y, Tensor):  # in PyTorch's losses classes are second
        scores = out.shape[:-1] == y.shape or out[:, 0].shape != y.shape
    if not scores:
        raise TermError(
            "the method's loss takes scores of classes, (*targets, classes), which the model's "
            "forward does not return: let it return such, or choose another method"
        )


def divergence(b: ForwardPass, reference: Tensor, tau: float) -> Tensor:
    """`KL(softmax(reference / tau) || softmax(b.out / tau))`, averaged over samples, or tokens.

    Raises:
        TermError: If these are not scores of several classes.
    """
    check_scores(b)
    return _mean_kl(b.out, reference, tau)


def _mean_kl(out: Tensor, reference: Tensor, tau: float) -> Tensor:
    out, reference = out.flatten(0, -2), reference.flatten(0, -2)
    log_q, p = F.log_softmax(out / tau, 1), F.softmax(reference / tau, 1)
    return F.kl_div(log_q, p, reduction="batchmean")


def distilled(oracle: Oracle, w: Tensor, teacher: Tensor, weight: Any, tau: float) -> Tensor:
    """The gradient at `w` of the loss and `weight KL(teacher || w)` at tau."""

    def loss(b: ForwardPass) -> Tensor:
        return b.loss + weight * divergence(b, b.at(teacher).out, tau)

    return oracle.of(loss)(w)


def check_labels(y: Any, *shape: int) -> None:
    """Raise a TermError unless targets are classes in this shape."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.shape != shape:
        raise TermError(
            "the method compares samples by their class, but the targets are no classes: name the "
            "data's target, or choose another method"
        )


@dataclass(frozen=True)
class Distill(Term):
    """FedSOL's distillation of the received model: adds `beta KL(received || local)` at tau."""

    beta: NonNegativeFloat = 1.0
    tau: PositiveFloat = 3.0

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return distilled(oracle, w, v.anchor, self.beta, self.tau)


@dataclass(frozen=True)
class NotTrueDistillation(Term):
    """FedNTD: adds `beta tau^2 KL(received || local)` over the classes that are not true."""

    beta: NonNegativeFloat = 1.0
    tau: PositiveFloat = 1.0

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        def loss(b: ForwardPass) -> Tensor:
            check_scores(b)
            check_labels(b.y, *b.out.shape[:-1])
            true = torch.arange(b.out.shape[-1], device=b.y.device) == b.y[..., None]
            # the softmax forgets the true class
            out, received = (p.out.masked_fill(true, -1e9) for p in (b, b.at(v.anchor)))
            return b.loss + self.beta * self.tau**2 * _mean_kl(out, received, self.tau)

        return oracle.of(loss)(w)


@dataclass(frozen=True)
class Contrastive(Term):
    """MOON: adds `mu softplus((cos(z, z_i) - cos(z, z^t)) / tau)`, z being what enters the head.

    z^t are the received model's features, z_i those of the client's last model w_i, which begins
    as w^0. There is no projection, as in FedSOL's repository.
    """

    mu: NonNegativeFloat = 1.0
    tau: PositiveFloat = 0.5
    client = {"w_i": initial}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        head, differ = v.layout.head, (v.w_i != v.anchor).any()

        def loss(b: ForwardPass) -> Tensor:
            z, z_g, z_p = (p.activations[head][0] for p in (b, b.at(v.anchor), b.at(v.w_i)))
            near, far = (F.cosine_similarity(z, other) / self.tau for other in (z_g, z_p))
            gap = (far - near) * differ  # exact zeros where FedSOL would scale rounding noise up
            return b.loss + self.mu * F.softplus(gap).mean()

        return oracle.of(loss, head)(w)

    def report(self, w: Tensor, v: View) -> Any:
        v.w_i = v.own
        return ()


def cosines(z: Tensor) -> Tensor:
    """(n, n) cosines between the features of n samples, with maps pooled, in float32 at least."""
    z = z.mean((-2, -1)) if z.ndim == 4 else z.flatten(1)
    with torch.autocast(z.device.type, enabled=False):
        z = F.normalize(z.to(torch.promote_types(z.dtype, torch.float32)))
        return z @ z.T


def closeness(S: Tensor, same: Tensor, threshold: float) -> Tensor:
    """Each sample's cosine with its farthest classmate, less 1; -2 if that is below the threshold.

    Args:
        S: (n, n) cosines.
        same: Whether two samples are of one class, (n, n).
        threshold: What the cosine must reach.
    """
    me = torch.eye(len(S), dtype=torch.bool, device=S.device)
    mate = S.masked_fill(~same | me, 2).amin(1)  # 2: there is no other classmate
    return torch.where((mate >= threshold) & (mate < 1.5), mate, -1.0) - S.diagonal()


@dataclass(frozen=True)
class RelaxedContrastive(Term):
    """FedRCL: a supervised contrastive loss of several layers, and a penalty on similar classmates.

    Its attributes are the options of `fl_lightning.algorithms.fedrcl`.
    """

    layers: tuple[str, ...] | None = None
    tau: PositiveFloat = 0.05
    negatives: NonNegativeInt = 2
    threshold: FiniteFloat = 0.7
    attraction: NonNegativeFloat = 1.0
    penalty: NonNegativeFloat = 1.0

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        layers = self.layers or v.layout.body_blocks()
        if not layers:
            raise TermError("the model is all head, without features to contrast: name its layers")

        def loss(b: ForwardPass) -> Tensor:
            levels = [self._level(b.activations[layer][1], b.y) for layer in layers]
            return b.loss + sum(levels) / len(levels)

        return oracle.of(loss, *layers)(w)

    def _level(self, output: Any, y: Tensor) -> Tensor:
        z = tree_leaves(output)[0]  # a GRU returns its last states, too
        check_labels(y, len(z))
        S, same = cosines(z), y[:, None] == y
        farthest = S.masked_fill(~same, 2).amin(1)  # among classmates, oneself included
        others = S.masked_fill(same, -torch.inf).topk(min(self.negatives, len(y)), 1).values
        all_of_them = torch.cat([farthest[:, None], others], 1)
        attraction = torch.logsumexp(all_of_them / self.tau, 1) - farthest / self.tau
        penalty = F.softplus(closeness(S, same, self.threshold) / self.tau)
        return (self.attraction * attraction + self.penalty * penalty).mean()
