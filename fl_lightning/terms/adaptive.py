"""AdamW and Sophia as steps of a client, and the alignment of such steps with the global move."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fl_lightning.core.constraints import BelowOneFloat, NonNegativeFloat, PositiveFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Initializer, OfLayout, Term, View, scalar, zeros

Averaging = Literal["none", "whole", "block"]
"""What clients send of a moment: nothing, all of it, or its mean over each parameter."""


one_a_parameter = OfLayout(lambda first, now, layout: now.new_zeros(len(layout.sizes)))
"""One zero for each parameter, as a vector."""


def unbiased(moment: Tensor, beta: float, steps: Tensor) -> Tensor:
    """The moment without the zero that it began at so many steps ago."""
    return moment / (1 - beta**steps)


class OwnLength(Term):
    """A local optimizer whose steps have the learning rate's length, however small the gradient.

    Attributes:
        usual_lr: A learning rate of published runs; a note warns of ten times as much.
    """

    usual_lr: ClassVar[float] = 1e-3

    def summary_lines(self, first: View, last: View) -> Iterator[str]:
        if (lr := float(first.lr_sum / first.steps)) > 10 * self.usual_lr:
            yield (
                f"steps are as long as the learning rate {lr:g} says, however small the gradient: "
                f"{self.usual_lr:g} is usual"
            )


@dataclass(frozen=True)
class Warm(OwnLength):
    """A local optimizer with a moment that begins a visit as the cohort's last mean of it.

    Subclasses name the moment, a local state: the server's state of this name and `bar` is the
    mean. All other states begin at 0 in each visit.

    Attributes:
        warm: What is averaged; "none" lets the moment begin at 0.
    """

    warm: Averaging = "none"
    moment: ClassVar[str]

    @property
    def server(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        begun = zeros if self.warm == "whole" else one_a_parameter
        return {} if self.warm == "none" else {f"{self.moment}bar": begun}

    def start(self, w: Tensor, v: View) -> Tensor:
        if self.warm != "none":
            mean = getattr(v, f"{self.moment}bar")
            setattr(v, self.moment, mean if self.warm == "whole" else v.layout.spread(mean))
        return w

    def sent(self, moment: Tensor, v: View) -> Tensor:
        """What is averaged of the moment."""
        return moment if self.warm == "whole" else v.layout.reduce(torch.mean, moment)

    def report(self, w: Tensor, v: View) -> Any:
        return () if self.warm == "none" else self.sent(getattr(v, self.moment), v)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        if self.warm != "none":
            setattr(v, f"{self.moment}bar", mean)
        return delta


@dataclass(frozen=True)
class AdamW(Warm):
    """AdamW's direction; with `warm`, FedAdamW's second moment of the cohort.

    `m / (1 - beta1^p) / (sqrt(s / (1 - beta2^q)) + eps) + decay w`, p being the steps of the visit
    so far; q counts the steps of earlier rounds, too, where the second moment is warm.

    Attributes:
        released: Let p count the steps of earlier rounds, too, though m begins at 0.
        count: Steps that a round adds to q; None is the client's own number.
        kept: Let clients keep m, s and k between rounds, as DiLoCo does.
    """

    beta1: BelowOneFloat = 0.9
    beta2: BelowOneFloat = 0.999
    decay: NonNegativeFloat = 0.01
    eps: NonNegativeFloat = 1e-8
    released: bool = False
    count: NonNegativeFloat | None = None
    kept: bool = False
    moment = "s"

    @property
    def client(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {"m": zeros, "s": zeros, "k": scalar} if self.kept else {}

    @property
    def local(self) -> Mapping[str, Initializer]:  # type: ignore[override]
        return {} if self.kept else {"m": zeros, "s": zeros, "k": scalar}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g, v.k = oracle(w), v.k + 1
        v.m, v.s = torch.lerp(g, v.m, self.beta1), torch.lerp(g.square(), v.s, self.beta2)
        earlier = 0 if self.warm == "none" else v.round
        q = earlier * (v.steps if self.count is None else self.count) + v.k
        p = q if self.released else v.k
        root = unbiased(v.s, self.beta2, q).sqrt() + self.eps
        return unbiased(v.m, self.beta1, p) / root + self.decay * w


@dataclass(frozen=True)
class Sophia(Warm):
    """Sophia's direction: `sign(m) min(1, |m| / (rho h)) + decay w`, with the mean h of squares.

    Attributes:
        rho: Scale of the curvature h; the batch size times the rho of the released code.
        curvature: False leaves h at 0, as the released code does: signs of the momentum.
    """

    beta1: BelowOneFloat = 0.9
    beta2: BelowOneFloat = 0.99
    rho: PositiveFloat = 10.0
    decay: NonNegativeFloat = 0.1
    curvature: bool = True
    local = {"m": zeros, "h": zeros}
    moment = "h"

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g = oracle(w)
        if self.curvature:
            v.h = torch.lerp(g.square(), v.h, self.beta2)
        v.m = torch.lerp(g, v.m, self.beta1)
        length = (v.m.abs() / (self.rho * v.h + 1e-15)).clamp(max=1)
        return v.m.sign() * length + self.decay * w


@dataclass(frozen=True)
class Alignment(Term):
    """The last global move in every step: `gain d - gamma / K Delta`.

    Delta is `mean(u_i - w^t) / eta` of the last round.

    Attributes:
        gamma: Weight of the global move.
        gain: Weight of the client's own direction d; None is 1 - gamma.
        steps: K; None is the client's own number of steps.
        current: Divide by the learning rate of the round in which Delta is used, not of its own.
    """

    gamma: NonNegativeFloat = 0.5
    gain: NonNegativeFloat | None = None
    steps: PositiveFloat | None = None
    current: bool = False
    server = {"Delta": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        gain = 1 - self.gamma if self.gain is None else self.gain
        K = v.steps if self.steps is None else self.steps
        eta = v.lr_sum / v.steps if self.current else 1
        return gain * oracle(w) - self.gamma / (K * eta) * v.Delta

    def report(self, w: Tensor, v: View) -> Tensor:
        return (w - v.origin) / (1 if self.current else v.lr_sum / v.steps)

    def update(self, delta: Tensor, mean: Tensor, v: View) -> Tensor:
        v.Delta = mean
        return delta
