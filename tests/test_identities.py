"""One method is another when a coefficient vanishes; what stays true in every round; what the order of terms means."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from problems import (
    EVERY_ALGORITHM,
    all_three,
    close,
    federation,
    hard,
    mean_gradient,
    regression,
    rows,
    server,
    trained,
    vec,
)
from torch import Tensor
from torch.optim import SGD

from fl_lightning import (
    Algorithm,
    Federation,
    Sequential,
    Stacked,
    Term,
    by_size,
    catalogue,
)
from fl_lightning.oracle import Oracle
from fl_lightning.terms import (
    SAM,
    Clip,
    Proximal,
)

STACKED = partial(Stacked, width=3)


NEARLY_NO_GAP = 1e-12
C = catalogue
SAME = {
    "FedProx without its pull is FedAvg": (C.fedprox(mu=0), C.fedavg()),
    "FedSAM without radius is FedAvg": (C.fedsam(rho=0), C.fedavg(weighting="uniform")),
    "FedLESAM without radius is FedAvg": (C.fedlesam(rho=0), C.fedavg(weighting="uniform")),
    "FedLESAM, last round, without radius is FedAvg": (
        C.fedlesam(rho=0, reference="last_round"),
        C.fedavg(weighting="uniform"),
    ),
    "FedLESAM-S without radius is SCAFFOLD": (C.fedlesam_s(rho=0), C.scaffold()),
    "FedLESAM-D without radius is FedDyn": (C.fedlesam_d(rho=0), C.feddyn()),
    "FedGAMMA without radius is SCAFFOLD": (C.fedgamma(rho=0), C.scaffold()),
    "MoFedSAM without radius is FedCM": (C.mofedsam(rho=0), C.fedcm()),
    "FedSpeed without radius is FedDyn": (C.fedspeed(rho=0), C.feddyn()),
    "FedCM without momentum is FedAvg": (C.fedcm(alpha=1.0), C.fedavg(weighting="uniform")),
    "FedTOGA without trend and radius is FedDyn": (C.fedtoga(rho=0, kappa=0, beta=0), C.feddyn()),
}


@pytest.mark.parametrize("claim", SAME)
def test_identity(claim: str) -> None:
    general, special = (trained(hard(algorithm)) for algorithm in SAME[claim])
    torch.testing.assert_close(general.w, special.w, rtol=0, atol=NEARLY_NO_GAP)


def test_fedtoga_without_trend_is_fedspeed() -> None:
    toga = C.fedtoga(rho=0.2, kappa=0, beta=0)
    same_eps = Algorithm(replace(toga.terms[0], eps=1e-12), *toga.terms[1:])
    general, special = trained(hard(same_eps)), trained(hard(C.fedspeed(rho=0.2)))
    torch.testing.assert_close(general.w, special.w, rtol=0, atol=NEARLY_NO_GAP)


def test_the_identities_are_not_between_methods_that_never_differ() -> None:
    for general, special in [
        (C.fedprox(), C.fedavg()),
        (C.fedsam(), C.fedavg(weighting="uniform")),
        (C.fedlesam(), C.fedavg(weighting="uniform")),
        (C.fedgamma(), C.scaffold()),
        (C.mofedsam(), C.fedcm()),
        (C.fedspeed(), C.feddyn()),
        (C.fedtoga(), C.fedspeed()),
    ]:
        assert (trained(hard(general)).w - trained(hard(special)).w).abs().max() > 1e-6


def test_feddyn_without_its_multiplier_still_adds_the_mean_dual_on_the_server() -> None:
    """With alpha = 0 the clients are free, but the server goes on by h, the sum of all mean moves, times M/N."""
    run, h = regression(C.feddyn(alpha=0.0)), vec(0, 0)
    for _ in range(4):
        before = run.w.detach().clone()
        plain = regression(C.fedavg(weighting="uniform"))  # FedAvg's round from the same point
        plain.w.data.copy_(before)
        plain.round = run.round
        plain.train_round()
        cohort = run.participation(3, 0, run.round)
        run.train_round()
        delta = plain.w.detach() - before
        h = h + len(cohort) / 3 * delta
        torch.testing.assert_close(run.w.detach(), before + delta + h, rtol=0, atol=1e-12)


def test_with_everybody_taking_part_the_last_active_model_is_the_last_rounds() -> None:
    def everybody(num_clients: int, seed: int, round: int) -> list[int]:
        return list(range(num_clients))

    own, common = (
        trained(hard(C.fedlesam(rho=0.3, reference=reference)), participation=everybody)
        for reference in ("last_active", "last_round")
    )
    torch.testing.assert_close(own.w, common.w, rtol=0, atol=NEARLY_NO_GAP)
    partial_own, partial_common = (
        trained(hard(C.fedlesam(rho=0.3, reference=reference))) for reference in ("last_active", "last_round")
    )
    assert (partial_own.w - partial_common.w).abs().max() > 1e-6


def test_a_first_visit_refers_to_the_first_model_or_to_the_one_received() -> None:
    """Client 2 comes first in round 1 and is not perturbed there if the first participation is skipped."""
    options = {"participation": lambda n, seed, round: [[0, 1], [2]][round]}
    runs = [regression(C.fedlesam(rho=0.3, first_participation=first), **options) for first in ("init", "skip")]
    runs.append(regression(C.fedavg(weighting="uniform"), **options))
    for run in runs:
        run.train_round()
    init, skip, plain = (run.w.detach() for run in runs)
    assert init.equal(skip)
    torch.testing.assert_close(init, plain)  # in round 0 w^0 is what everyone received
    for run in runs:
        run.train_round()
    torch.testing.assert_close(skip, plain, rtol=0, atol=1e-12)
    assert (init - plain).abs().max() > 1e-3


@pytest.mark.parametrize("algorithm", ["scaffold", "fedgamma", "fedlesam_s"])
def test_the_servers_control_variate_is_the_mean_of_all_clients(algorithm: str) -> None:
    run = federation(hard(EVERY_ALGORITHM[algorithm]), executor=STACKED)
    for _ in range(3):
        run.train_round()
        torch.testing.assert_close(server(run, "c"), rows(run, "c_i").mean(0), rtol=0, atol=1e-12)
    assert server(run, "c").norm() > 0.01


@pytest.mark.parametrize("algorithm", ["feddyn", "fedspeed", "fedlesam_d", "fedtoga"])
def test_the_servers_dual_is_the_mean_of_all_clients_and_the_idle_keep_theirs(algorithm: str) -> None:
    run = federation(hard(EVERY_ALGORITHM[algorithm]), executor=STACKED)
    for round in range(3):
        before = rows(run, "h_i")
        run.train_round()
        after = rows(run, "h_i")
        torch.testing.assert_close(server(run, "h"), after.mean(0), rtol=0, atol=1e-12)
        cohort = run.participation(6, 0, round)
        idle = [i for i in range(6) if i not in cohort]
        assert after[idle].equal(before[idle])
        assert (after[cohort] != before[cohort]).any(1).all()


@pytest.mark.parametrize("algorithm", [a for a in EVERY_ALGORITHM if "toga" in a])
def test_round_0_of_fedtoga_knows_no_trend(algorithm: str) -> None:
    term, dual = EVERY_ALGORITHM[algorithm].terms
    runs = [
        federation(hard(Algorithm(replace(term, kappa=kappa, beta=beta), dual))) for kappa, beta in [(1, 0.8), (4, 0)]
    ]
    for run in runs:
        run.train_round()
    assert runs[0].w.equal(runs[1].w)
    for run in runs:
        run.train_round()
    assert not runs[0].w.equal(runs[1].w)


@dataclass(frozen=True)
class Recorder(Term):
    """Innermost: writes down every gradient that is taken, and where."""

    log: list[tuple[Tensor, Tensor]]

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        self.log.append((w.clone(), g.clone()))
        return g


def test_fedtogas_lemmas_hold_on_recorded_gradients() -> None:
    """C.1: u - w = -a sum gamma_k gt_k + gamma a (h_i - beta Delta); C.2: h_i' = (1-gamma) h_i + sum gamma_k gt_k + ...

    In the paper's letters a = 1/lam, and h_i = -lam times our displacement.
    """
    lam, eta, K, beta = 0.5, 0.1, 4, 0.8
    log: list[tuple[Tensor, Tensor]] = []
    algorithm = Algorithm(Recorder(log), *C.fedtoga(rho=0.1, kappa=2.0, beta=beta, lam=lam).terms)
    run = regression(algorithm, participation=lambda n, seed, round: [[0, 1, 2], [1]][min(round, 1)])
    run.train_round()
    anchor, Delta, h_i = run.w.detach().clone(), server(run, "Delta"), -lam * rows(run, "h_i")[1]
    log.clear()
    run.train_round()
    assert len(log) == 2 * K
    gt = [g for _, g in log[-2 * K + 1 :: 2]]  # each step asks twice; the second is the perturbed one
    gammas = [eta * lam * (1 - eta * lam) ** (K - 1 - k) for k in range(K)]
    gamma, pushed = sum(gammas), sum(gamma_k * g for gamma_k, g in zip(gammas, gt, strict=True))
    moved = -pushed / lam + gamma / lam * (h_i - beta * Delta)
    dual = (1 - gamma) * h_i + pushed + gamma * beta * Delta
    h_new, Delta_new = -lam * rows(run, "h_i")[1], server(run, "Delta")
    torch.testing.assert_close(h_new, dual, rtol=0, atol=1e-12)
    torch.testing.assert_close(-Delta_new * K, moved, rtol=0, atol=1e-12)  # one client: Delta tells its movement
    h = server(run, "h")
    torch.testing.assert_close(run.w.detach(), anchor + moved + h, rtol=0, atol=1e-12)
    lengths = [float((w - u).norm()) for (u, _), (w, _) in zip(log[::2], log[1::2], strict=True)]
    assert lengths == pytest.approx([0.1] * K, abs=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "exact"),
    [
        (C.fedtoga(rho=0.0, lam=1.0, beta=0.4), True),
        (C.feddyn(alpha=1.0), True),
        (C.scaffold(), True),
        (C.fedavg(), False),
    ],
    ids=["fedtoga", "feddyn", "scaffold", "fedavg"],
)
def test_duals_and_variates_reach_the_stationary_point_fedavg_misses(algorithm: Algorithm, exact: bool) -> None:
    run = regression(algorithm, rounds=60, lr=0.2, participation=all_three)
    assert mean_gradient(run.w.detach()).norm() > 1
    for _ in range(run.rounds):
        run.train_round()
    distance = float(mean_gradient(run.w.detach()).norm())
    assert distance < 1e-9 if exact else distance > 0.1


def gradient_of_client_1(w: Tensor) -> Tensor:
    return vec(0.5 * 2 * (2 * float(w[0]) - 6), 0.5 * float(w[1]))


def one_step_with_decay(algorithm: Algorithm, decay: float) -> Federation:
    """After one step of client 1 from (1, 2), at rate 0.1."""
    run = regression(algorithm, steps=1, participation=lambda *_: [1])
    run.algorithm = algorithm.and_then(local=partial(SGD, lr=0.1, weight_decay=decay))
    run.w.data.copy_(vec(1.0, 2.0))
    run.train_round()
    return run


def test_clipping_is_outermost_and_leaves_weight_decay_outside() -> None:
    """At w = (1, 2) the gradient is (-4, 1): u = w - lr (clip(g + mu (w - w^t)) + wd w), clipped to length 0.5."""
    g, w = vec(-4.0, 1.0), vec(1.0, 2.0)
    assert gradient_of_client_1(w).equal(g)
    run = one_step_with_decay(Algorithm(Proximal(0.1), Clip(0.5)), decay=3.0)
    close(run.w.detach(), *(w - 0.1 * (0.5 * g / 17**0.5 + 3.0 * w)).tolist(), tolerance=1e-6)


def test_sams_ascent_contains_no_weight_decay() -> None:
    """Decay belongs to the step at the unperturbed point: u = w - lr (g(w + rho g/|g|) + wd w)."""
    w, g = vec(1.0, 2.0), vec(-4.0, 1.0)
    perturbed = gradient_of_client_1(w + 0.5 * g / 17**0.5)
    run = one_step_with_decay(Algorithm(SAM(0.5)), decay=3.0)
    close(run.w.detach(), *(w - 0.1 * (perturbed + 3.0 * w)).tolist())


def test_the_order_of_terms_is_the_algorithm() -> None:
    runs = [trained(hard(Algorithm(*terms))) for terms in [(SAM(0.3), Proximal(1.0)), (Proximal(1.0), SAM(0.3))]]
    assert (runs[0].w - runs[1].w).abs().max() > 1e-6


@pytest.mark.parametrize("executor", [Sequential, STACKED], ids=["sequential", "stacked"])
def test_the_facts_of_a_visit_are_the_clients_own(executor: Any) -> None:
    """Clients 0, 2 and 4 hold 13, 12 and 4 of 55 samples; batches of 5, two epochs, rate 0.1 and then 0.07."""

    @dataclass(frozen=True)
    class Witness(Term):
        client = {"told": lambda first, now: now.new_zeros(5)}

        def report(self, w: Tensor, v: Any) -> Any:
            v.told = torch.stack([v.steps, v.epochs, v.span, v.size, v.weight])
            return ()

    algorithm = Algorithm(Witness(), local=partial(SGD, lr=0.1, momentum=0.5), weight=by_size)
    run = federation(algorithm, participation=lambda *_: [0, 2, 4], executor=executor)
    run.train_round()
    three_and_three = 0.1 * (1 + 1.5 + 1.75) + 0.07 * (1.875 + 1.9375 + 1.96875)
    told = rows(run, "told")
    close(told[0], 6, 2, three_and_three, 13 * 6 / 55, 13 * 3 / 29)
    close(told[2], 6, 2, three_and_three, 12 * 6 / 55, 12 * 3 / 29)
    close(told[4], 2, 2, 0.1 * 1 + 0.07 * 1.5, 4 * 6 / 55, 4 * 3 / 29)


def test_the_round_and_the_share_that_terms_see() -> None:
    seen: list[tuple[int, int, float]] = []

    @dataclass(frozen=True)
    class Witness(Term):
        def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
            seen.append((v.round, v.rounds, v.share))
            return delta

    run = federation(Algorithm(Witness()))
    seen.clear()
    for _ in range(3):
        run.train_round()
    assert seen == [(0, 3, 5 / 6), (1, 3, 2 / 6), (2, 3, 4 / 6)]
