"""FedTOGA: its lemmas, its trend, its neighbourhood perturbation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from problems import (
    EVERY_ALGORITHM,
    Recorder,
    all_three,
    federation,
    hard,
    mean_gradient,
    regression,
    round_after_round,
    rows,
    server,
)
from torch import Tensor

from fl_lightning import Algorithm, Term, algorithms
from fl_lightning.terms import SAM, TOGA, DynamicRegularizer, Neighbour

C = algorithms


def with_trend(term: Term, **coefficients: float) -> Term:
    """FedTOGA's term, whatever it ascends along, with other coefficients."""
    if isinstance(term, Neighbour):
        return replace(term, inner=with_trend(term.inner, **coefficients))
    assert isinstance(term, TOGA)
    return replace(term, **coefficients)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", [a for a in EVERY_ALGORITHM if "toga" in a])
def test_round_0_of_fedtoga_knows_no_trend(algorithm: str) -> None:
    term, dual = EVERY_ALGORITHM[algorithm].terms
    runs = [
        federation(hard(Algorithm(with_trend(term, kappa=kappa, beta=beta), dual)))
        for kappa, beta in [(1, 0.8), (4, 0)]
    ]
    for run in runs:
        run.train_round()
    assert runs[0].w.equal(runs[1].w)
    for run in runs:
        run.train_round()
    assert not runs[0].w.equal(runs[1].w)


def test_fedtogas_lemmas_hold_on_recorded_gradients() -> None:
    """C.1: u - w = -a sum gamma_k gt_k + gamma a (h_i - beta Delta), and C.2 for h_i'.

    In the paper's letters a = 1/lam, and h_i = -lam times our displacement.
    """
    lam, eta, K, beta = 0.5, 0.1, 4, 0.8
    log: list[tuple[Tensor, Tensor]] = []
    algorithm = Algorithm(Recorder(log), *C.fedtoga(rho=0.1, kappa=2.0, beta=beta, lam=lam).terms)
    run = regression(algorithm, sampler=lambda n, seed, round: [[0, 1, 2], [1]][min(round, 1)])
    run.train_round()
    anchor, Delta, h_i = run.w.detach().clone(), server(run, "Delta"), -lam * rows(run, "h_i")[1]
    log.clear()
    run.train_round()
    assert len(log) == 2 * K
    gt = [
        g for _, g in log[-2 * K + 1 :: 2]
    ]  # each step asks twice; the second is the perturbed one
    gammas = [eta * lam * (1 - eta * lam) ** (K - 1 - k) for k in range(K)]
    gamma, pushed = sum(gammas), sum(gamma_k * g for gamma_k, g in zip(gammas, gt, strict=True))
    moved = -pushed / lam + gamma / lam * (h_i - beta * Delta)
    dual = (1 - gamma) * h_i + pushed + gamma * beta * Delta
    h_new, Delta_new = -lam * rows(run, "h_i")[1], server(run, "Delta")
    torch.testing.assert_close(h_new, dual, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        -Delta_new * K, moved, rtol=0, atol=1e-12
    )  # one client: Delta tells its movement
    h = server(run, "h")
    torch.testing.assert_close(run.w.detach(), anchor + moved + h, rtol=0, atol=1e-12)
    lengths = [float((w - u).norm()) for (u, _), (w, _) in zip(log[::2], log[1::2], strict=True)]
    assert lengths == pytest.approx([0.1] * K, abs=1e-6)


@dataclass(frozen=True)
class AsPrinted(DynamicRegularizer):
    """The server's dual with the sign that one version of the paper prints."""

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        super().update(delta, mean, v)
        return delta - v.h


def test_the_servers_dual_only_converges_with_its_sign() -> None:
    trend, dual = C.fedtoga(rho=0.0, lam=1.0, beta=0.4).terms
    for algorithm, converges in [
        (Algorithm(trend, dual), True),
        (Algorithm(trend, AsPrinted(1.0)), False),
    ]:
        run = round_after_round(regression(algorithm, lr=0.2, sampler=all_three), 40)
        distance = float(mean_gradient(run.w.detach()).norm())
        assert distance < 1e-6 if converges else distance > 0.1


# neighbourhood perturbation


def displacements(algorithm: Callable[..., Algorithm], **options: bool) -> list[float]:
    # How far from its model client 1 takes the gradient of its last question, at each of
    # three steps of two visits.
    inside: list[tuple[Tensor, Tensor]] = []
    outside: list[tuple[Tensor, Tensor]] = []
    recorded = Algorithm(Recorder(inside), *algorithm(**options).terms, Recorder(outside))
    run = regression(recorded, steps=3, sampler=lambda n, seed, round: [1])
    inside.clear()
    outside.clear()
    round_after_round(run, 2)
    asked = len(inside) // 6
    return [
        float((at - w).norm())
        for (at, _), (w, _) in zip(inside[asked - 1 :: asked], outside, strict=True)
    ]


def test_the_previous_gradient_is_forgotten_between_visits_unless_it_is_carried() -> None:
    def neighbour(**options: bool) -> Algorithm:
        return Algorithm(Neighbour(SAM(0.3), **options))

    assert displacements(neighbour) == pytest.approx([0, 0.3, 0.3] * 2, abs=1e-9)
    assert displacements(neighbour, carry=True) == pytest.approx(
        [0, 0.3, 0.3] + [0.3] * 3, abs=1e-9
    )
    assert displacements(neighbour, fusion=True) == pytest.approx([0.3] * 6, abs=1e-9)


def test_the_first_fusion_is_with_nothing() -> None:
    """One step a visit: without a memory of the last one, fusion and SAM are one."""

    def models(*terms: Term) -> Tensor:
        run = round_after_round(regression(Algorithm(*terms), steps=1), 3)
        return run.w.detach()

    plain = models(SAM(0.3))
    assert models(Neighbour(SAM(0.3), fusion=True)).equal(plain)
    assert (models(Neighbour(SAM(0.3), fusion=True, carry=True)) - plain).abs().max() > 1e-6
