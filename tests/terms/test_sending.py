"""Compression: what is sent, what stays for later, and what it costs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executors import STACKED, TRACED, assert_agree
from problems import (
    everything,
    federation,
    hard,
    on_two_ranks,
    round_after_round,
    rows,
    server,
    term,
    trained,
    vec,
)
from regressions import all_three, regression
from torch import Tensor

from fl_lightning import Algorithm, DivergenceError, Term, algorithms, linear
from fl_lightning.terms import DynamicRegularizer, Personal, Quantize, Sign, TopK

D = 99
"""Parameters of the classifier."""

TERMS: dict[str, tuple[Term, ...]] = {
    "topk": (TopK(0.1),),
    "topk, curve": (TopK(linear(0.2, 0.05)),),
    "quantize": (Quantize(4),),
    "quantize l2": (Quantize(6, "l2"),),
    "sign": (Sign(),),
    "topk, quantize": (TopK(0.1), Quantize(8)),
    "quantize, topk": (Quantize(8), TopK(0.1)),
    "personal, quantize": (Personal("head"), Quantize(8)),
    "personal, sign": (Personal("norm"), Sign()),
}


class Watch(Term):
    """Keeps the moves before and after the terms between two of it."""

    def __init__(self, seen: list[Tensor], bits: list[float]):
        self.seen, self.bits = seen, bits

    def send(self, delta: Tensor, v: Any) -> Tensor:
        self.seen.append(delta.clone())
        self.bits.append(float(v.bits))
        return delta


def sent(*terms: Term, rounds: int = 1) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """The moves of the only client before and after the terms, and the bits of each."""
    (before, _), (after, bits) = watched = ([], []), ([], [])
    first, last = (Watch(*lists) for lists in watched)
    run = federation(Algorithm(first, *terms, last), sampler=lambda *_: [0], rounds=rounds)
    run.prepare()
    for numbers in (before, after, bits):
        numbers.clear()  # those of the rehearsal and of the trial on two samples
    round_after_round(run, rounds)
    return before, after, bits


@pytest.mark.parametrize("executor", [None, STACKED])
def test_all_of_the_numbers_are_fedavg_bit_for_bit(executor: Any) -> None:
    options = {} if executor is None else {"executor": executor}
    run, expected = (
        trained(hard(algorithms.fedavg().with_outer_terms(*terms)), **options)
        for terms in ([TopK(1.0)], [])
    )
    assert run.w.equal(expected.w)
    assert not rows(run, "e_i").any()


def ten_largest(p: Tensor) -> Tensor:
    return p * (p.abs() >= p.abs().sort(descending=True).values[9])


@pytest.mark.parametrize(
    ("compressing", "part"),
    [(TopK(0.1), ten_largest), (Sign(), lambda p: p.abs().mean() * p.sign())],
    ids=["the largest numbers", "the mean size"],
)
def test_a_part_is_sent_and_the_rest_is_kept_for_later(compressing: Term, part: Any) -> None:
    before, after, _ = sent(compressing, rounds=3)
    e = torch.zeros(D, dtype=torch.float64)
    for delta, received in zip(before, after, strict=True):
        torch.testing.assert_close(received, part(delta + e), rtol=0, atol=1e-15)
        e = delta + e - received


@pytest.mark.parametrize("method", [algorithms.moon(), algorithms.fedinit()], ids=str)
def test_the_model_that_a_client_keeps_is_whole(method: Algorithm) -> None:
    whole, kept = (
        rows(trained(method.with_outer_terms(*terms), rounds=1), "w_i")
        for terms in ([], [TopK(0.1)])
    )
    assert kept.equal(whole)


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_quantized_numbers_are_levels_next_to_the_number(norm: Any) -> None:
    (delta,), (received,), _ = sent(Quantize(4, norm))
    step = (delta.abs().max() if norm == "max" else delta.norm()) / 7
    levels = received / step
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-12)
    assert levels.abs().max() <= 7
    assert ((received - delta).abs() < step).all()
    assert (received != delta).any()


def test_quantized_numbers_have_no_bias_and_the_papers_variance() -> None:
    """Of a vector of length 1: at most min(d / s^2, sqrt(d) / s)."""
    x, count = torch.tensor([0.6, -0.48, 0.64, 0.0, 1e-3]), 5_000

    def sent(draw: Tensor) -> Tensor:
        v: Any = SimpleNamespace(bits=vec(0), numbers=vec(0), uniform=lambda like: draw)
        return Quantize(3, "l2").send(x, v)

    seen = torch.vmap(sent)(torch.rand(count, 5, generator=torch.Generator().manual_seed(0)))
    s, d = 3, len(x)
    assert not seen[:, 3].any()
    torch.testing.assert_close(seen.mean(0), x, rtol=0, atol=4 / s / count**0.5)
    assert (seen - x).square().sum(1).mean() <= x.norm() ** 2 * min(d / s**2, d**0.5 / s)


NUMBER = 64  # bits, of float64
PLACE = 7  # bits, of one of 99


@pytest.mark.parametrize(
    ("terms", "bits"),
    [
        ([], D * NUMBER),
        ([TopK(0.1)], 10 * (NUMBER + PLACE)),
        ([Quantize(4)], D * 4 + NUMBER),
        ([Sign()], D + NUMBER),
        ([TopK(0.1), Quantize(8)], 10 * (8 + PLACE) + NUMBER),
        ([Personal("head"), Quantize(8)], (D - 27) * 8 + NUMBER),
        ([Personal("head"), TopK(0.1)], 10 * (NUMBER + PLACE)),
    ],
    ids=str,
)
def test_the_bits_of_what_is_sent(terms: Sequence[Term], bits: int) -> None:
    counted = sent(*terms)[2]
    assert counted == pytest.approx([bits])
    run = federation(Algorithm(*terms), sampler=lambda *_: [0, 2])
    buffers = sum(b.nbytes for b in run.server.buffers.values())
    assert run.train_round()["comm/uplink_mb"] == pytest.approx(2 * (bits / 8 + buffers) / 1e6)
    assert run.cost.uplink == round(bits / NUMBER)


def test_quantized_values_that_topk_drops_cost_nothing() -> None:
    """Ten numbers of 8 bits, or fewer where rounding has made them zero, and their places."""
    _, (received,), (bits,) = sent(Quantize(8), TopK(0.1))
    count = int((received != 0).sum())
    assert bits == pytest.approx(count * (8 + NUMBER / D + PLACE))


@pytest.mark.parametrize(
    ("name", "executor"),
    [
        *((name, STACKED) for name in TERMS),
        ("topk, quantize", partial(TRACED, compiled=5)),
        ("topk, curve", partial(TRACED, width=2)),
    ],
)
def test_executors_agree(name: str, executor: Any, traces: list[Any]) -> None:
    algorithm = hard(Algorithm(DynamicRegularizer(0.1), *TERMS[name]))
    one, other = (federation(algorithm, **o) for o in ({}, {"executor": executor}))
    sizes = [[run.train_round()["comm/uplink_mb"] for _ in range(3)] for run in (one, other)]
    assert sizes[0] == pytest.approx(sizes[1])
    assert_agree(one, other)


def test_feddyns_invariant_holds_under_compression() -> None:
    """The server's dual is the mean of the clients' ones, since both come from what is sent."""
    for terms in ([TopK(0.4)], [Sign()], [Quantize(4)]):
        run = regression(Algorithm(DynamicRegularizer(0.1), *terms), sampler=all_three)
        round_after_round(run, 6)
        torch.testing.assert_close(rows(run, "h_i").mean(0), server(run, "h"), rtol=0, atol=1e-15)


def test_a_move_that_is_not_a_number_is_not_hidden() -> None:
    poisoned = term(send=lambda self, delta, v: delta * torch.nan)
    for compressing in (TopK(0.1), Quantize(), Sign()):
        run = federation(Algorithm(poisoned, compressing))
        with pytest.raises(DivergenceError):
            run.train_round()


@pytest.mark.parametrize("name", ["topk, quantize", "personal, sign"])
def test_two_ranks_send_the_same_bits_as_one(name: str, tmp_path: Path) -> None:
    """Under `deterministic`, draws, rests and sizes included."""

    def run(fabric: Any = None) -> dict[str, Any]:
        algorithm, folder = hard(Algorithm(*TERMS[name])), tmp_path / str(fabric is None)
        made = federation(algorithm, deterministic=True, fabric=fabric, state_dir=folder)
        sizes = [made.train_round()["comm/uplink_mb"] for _ in range(3)]
        return {"sizes": sizes} | {name: kept.tolist() for name, kept in everything(made).items()}

    assert [run()] * 2 == [*on_two_ranks(run)]
