"""FedSSG's gated memories, and the choices in which its main text, appendix and code differ."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import Term, View, scalar, zeros


@dataclass(frozen=True)
class SSG(Term):
    """FedSSG's gated memories: `g + alpha h_i + d - d_i`.

    A visit counts, then `D = (count / expected + offset) (u_i - w^t)`, `h_i <- h_i + D` and
    `d_i <- d_i - d - D / (K eta_0)`; h and d are the means of all clients.
    """

    alpha: NonNegativeFloat = 0.05
    offset: FiniteFloat = 1.0
    client = {"h_i": zeros, "d_i": zeros, "count": scalar}
    server = {"h": zeros, "d": zeros}

    def start(self, w: Tensor, v: View) -> Tensor:
        v.count = v.count + 1
        return w

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        return oracle(w) + (v.d - v.d_i) + self.alpha * v.h_i

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        D, old = self._gate(v) * (w - v.anchor), v.d_i
        v.h_i, v.d_i = v.h_i + D, v.d_i - v.d - D / v.base_lr_sum
        return D, v.d_i - old

    def update(self, delta: Tensor, mean: tuple[Tensor, ...], v: View) -> Tensor:
        v.h, v.d = v.h + v.participation * mean[0], v.d + v.participation * mean[1]
        return delta + v.h

    def _gate(self, v: View) -> Tensor:
        """Visits so far over those expected in the whole run, 0 to about 1, plus the offset."""
        return v.count / (v.inclusion_probability * v.rounds) + self.offset


@dataclass(frozen=True)
class GatedSSG(SSG):
    """FedSSG with the gates of its main text, and sizes as in its code.

    Attributes:
        gate: What visits so far are divided by: those expected in the whole run, or until now.
        gate_map: Function of that ratio.
        size_weighting: Divide alpha and d by the client's relative size.
    """

    gate: Literal["horizon", "running", "none"] = "horizon"
    gate_map: Literal["identity", "clip01", "logistic"] = "identity"
    size_weighting: bool = False

    def _size(self, v: View) -> Any:
        return v.size if self.size_weighting else 1.0

    def _gate(self, v: View) -> Any:
        return 1.0 if self.gate == "none" else self._mapped(self._ratio(v)) + self.offset

    def _ratio(self, v: View) -> Tensor:
        if self.gate == "horizon":
            return v.count / (v.inclusion_probability * v.rounds)
        # about 1, but 1/p_i in the first round (Eq. 5)
        return v.count / (v.inclusion_probability * (v.round + 1) + 1e-6)

    def _mapped(self, ratio: Tensor) -> Tensor:
        if self.gate_map == "clip01":
            return ratio.clamp(max=1.0)
        return ratio.sigmoid() if self.gate_map == "logistic" else ratio


@dataclass(frozen=True)
class AlignedSSG(GatedSSG):
    """The same with what its main text, appendix and released code let a client align and learn.

    Its attributes are the options of `fl_lightning.algorithms.fedssg`; `base_lr` is the base of
    `correction_lr`.
    """

    gate_alignment: bool = False
    gate_memory: bool = True
    alignment: Literal["inner", "proximal", "none"] = "inner"
    correction: bool = True
    base_lr: bool = True

    def gradient(self, oracle: Oracle, w: Tensor, v: View) -> Tensor:
        g, size = oracle(w), self._size(v)
        if self.correction:
            g = g + (v.d / size - v.d_i)
        if self.alignment == "none":
            return g
        alpha = self.alpha / size * (self._gate(v) if self.gate_alignment else 1.0)
        return g + alpha * (v.h_i if self.alignment == "inner" else v.h_i + w - v.anchor)

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        D, old, size = self._gate(v) * (w - v.anchor), v.d_i, self._size(v)
        learnt = (D if self.gate_memory else w - v.anchor) / (
            v.base_lr_sum if self.base_lr else v.lr_sum
        )
        v.h_i, v.d_i = v.h_i + D, v.d_i - v.d / size - learnt
        return D, size * (v.d_i - old)


@dataclass(frozen=True)
class ReleasedSSG(AlignedSSG):
    """The same with the memories that a server adds.

    Attributes:
        aggregation: The mean of all clients, of the cohort (Eq. 28), or the cohort's sum of models
            and memories over N (Algorithm 1).
    """

    aggregation: Literal["all", "active", "inverse_n"] = "all"

    def report(self, w: Tensor, v: View) -> tuple[Tensor, ...]:
        message = super().report(w, v)
        return message if self.aggregation == "all" else (*message, v.h_i)

    def update(self, delta: Tensor, mean: Any, v: View) -> Tensor:
        moved = super().update(delta, mean, v)
        if self.aggregation == "active":
            return delta + mean[2]
        if self.aggregation == "inverse_n":
            return v.participation * (v.anchor + delta + mean[2]) - v.anchor
        return moved
