"""Compression: terms that send fewer numbers, or numbers of fewer bits.

They compose: `(TopK(0.1), Quantize(8))` sends a tenth of the numbers, their places and 8 bits each.
"""

from dataclasses import dataclass
from math import ceil, log2
from typing import Annotated, Literal

import torch
from torch import Tensor

from fl_lightning.core.constraints import PositiveFraction, Range
from fl_lightning.core.term import Term, View, zeros

Bits = Annotated[int, Range("a whole number from 2 to 16", 2, 16, whole=True)]
Norm = Literal["max", "l2"]


@dataclass(frozen=True)
class TopK(Term):
    """The largest entries of the move and of what earlier visits have not sent (error feedback).

    With `p = u_i - w^t + e_i` the client sends the k entries of p with the largest absolute values,
    and keeps the others as e_i. Each costs its number and `ceil(log2(d))` bits for its place.

    Attributes:
        share: k over the number of entries d of the model.

    References:
        Stich et al., NeurIPS 2018, https://arxiv.org/abs/1809.07599
    """

    share: PositiveFraction = 0.01
    client = {"e_i": zeros}
    roles = frozenset({"select"})

    def send(self, delta: Tensor, v: View) -> Tensor:
        p, d = delta + v.e_i, delta.numel()
        size, k = p.abs(), self.share * d
        if isinstance(k, Tensor):  # of a curve with --compile: no number, which topk needs
            place = k.round().long().clamp(min=1) - 1
            least = size.sort(descending=True).values.gather(0, place[None])
        else:
            least = size.topk(max(1, round(k))).values[-1]
        sent = p * (size >= least)
        v.e_i = p - sent
        count = (sent != 0).sum().to(v.bits)
        count_sent(count, v)
        v.bits = v.bits + count * ceil(log2(d))
        return sent


@dataclass(frozen=True)
class Quantize(Term):
    """QSGD: numbers rounded at random to one of s levels of their norm, without bias.

    With `r = s |x| / norm`, x becomes `sign(x) norm / s` times `floor(r)`, or with the probability
    `r - floor(r)` times `floor(r) + 1`. A number costs its sign and `log2(s + 1)` bits, so
    `s = 2^(bits - 1) - 1`; the norm is sent too.

    Attributes:
        bits: Size of a number.
        norm: "max" is the largest absolute value (paper's experiments), "l2" the length (theorems).

    References:
        Alistarh et al., NeurIPS 2017, https://arxiv.org/abs/1610.02132
    """

    bits: Bits = 8
    norm: Norm = "max"
    roles = frozenset({"round"})
    draws = True

    def send(self, delta: Tensor, v: View) -> Tensor:
        norm = delta.abs().max() if self.norm == "max" else delta.norm()
        norm, s = norm.clamp(min=torch.finfo(delta.dtype).tiny), 2 ** (self.bits - 1) - 1
        r = delta.abs() / norm * s
        level = r.floor() + (v.uniform(delta) < r - r.floor())
        v.bits = _rounded(v, self.bits, delta)
        return delta.sign() * level * (norm / s)


@dataclass(frozen=True)
class Sign(Term):
    """EF-signSGD: the signs of the move and of what earlier visits have not sent.

    With `p = u_i - w^t + e_i` the client sends `mean |p| sign(p)` and keeps the difference to p as
    e_i. A number costs one bit, and the mean is sent too. A zero stays zero, as in released code.
    It does not come after `TopK`: what it keeps would fill the places that `TopK` leaves empty.

    References:
        Karimireddy et al., ICML 2019, https://arxiv.org/abs/1901.09847
    """

    client = {"e_i": zeros}
    roles = frozenset({"select", "round"})

    def send(self, delta: Tensor, v: View) -> Tensor:
        p = delta + v.e_i
        sent = p.abs().sum() / v.numbers.clamp(min=1) * p.sign()
        v.e_i = p - sent
        v.bits = _rounded(v, 1, delta)
        return sent


def count_sent(count: Tensor, v: View) -> None:
    """Count so many numbers as sent, each of as many bits as before."""
    v.bits, v.numbers = v.bits * count / v.numbers.clamp(min=1), count


def _rounded(v: View, bits: int, like: Tensor) -> Tensor:
    """The size of what is sent once each number has so many bits, and one number is sent whole."""
    whole = 8 * like.element_size()
    return v.bits - (whole - bits) * v.numbers + whole
