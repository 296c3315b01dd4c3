"""One method is another where a coefficient vanishes; invariants of every round."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from problems import (
    EVERY_ALGORITHM,
    Left,
    all_three,
    assert_same_unless,
    classification,
    federation,
    hard,
    mean_gradient,
    regression,
    round_after_round,
    rows,
    server,
    trained,
    vec,
)

from fl_lightning import Algorithm, StackedExecutor, algorithms
from fl_lightning.terms import TOGA, ReleasedControlVariate

STACKED = partial(StackedExecutor, width=3)
C = algorithms
AVG, UNIFORM = C.fedavg(), C.fedavg(weighting="uniform")

SAME = {
    "FedProx without its pull is FedAvg": (C.fedprox(mu=0), AVG, C.fedprox()),
    "FedSAM without radius is FedAvg": (C.fedsam(rho=0), UNIFORM, C.fedsam()),
    "FedASAM without radius is FedAvg": (C.fedasam(rho=0), AVG, C.fedasam()),
    "FedLESAM without radius is FedAvg": (C.fedlesam(rho=0), UNIFORM, C.fedlesam()),
    "FedLESAM, last round, without radius is FedAvg": (
        C.fedlesam(rho=0, reference="last_round"),
        UNIFORM,
        C.fedlesam(reference="last_round"),
    ),
    "FedLESAM-S without radius is SCAFFOLD": (C.fedlesam_s(rho=0), C.scaffold(), C.fedlesam_s()),
    "FedLESAM-D without radius is FedDyn": (C.fedlesam_d(rho=0), C.feddyn(), C.fedlesam_d()),
    "FedGAMMA without radius is SCAFFOLD": (C.fedgamma(rho=0), C.scaffold(), C.fedgamma()),
    "MoFedSAM without radius is FedCM": (C.mofedsam(rho=0), C.fedcm(), C.mofedsam()),
    "MoFedSAM without momentum is FedSAM": (C.mofedsam(alpha=1.0), C.fedsam(rho=0.1), C.mofedsam()),
    "MoFedSAM by a slip without momentum is FedSAM": (
        C.mofedsam(alpha=1.0, gain="one"),
        C.fedsam(rho=0.1),
        C.mofedsam(gain="one"),
    ),
    "FedSpeed without radius is FedDyn": (C.fedspeed(rho=0), C.feddyn(), C.fedspeed()),
    "FedSpeed of plain gradients alone is FedDyn": (
        C.fedspeed(mix=0.0),
        C.feddyn(),
        C.fedspeed(mix=0.1),
    ),
    "FedSMOO without radius is FedDyn": (C.fedsmoo(rho=0), C.feddyn(), C.fedsmoo()),
    "FedCM without momentum is FedAvg": (C.fedcm(alpha=1.0), UNIFORM, C.fedcm()),
    "SCAFFOLD without its correction is FedAvg": (
        Algorithm(ReleasedControlVariate(k=0.0)),
        UNIFORM,
        C.scaffold(),
    ),
    "FedTOGA without trend and radius is FedDyn": (
        C.fedtoga(rho=0, kappa=0, beta=0),
        C.feddyn(),
        C.fedtoga(rho=0),
    ),
    "FedTOGA without dual, trend and radius is FedAvg": (
        Algorithm(TOGA(rho=0, kappa=0, beta=0)),
        UNIFORM,
        Algorithm(TOGA(rho=0, kappa=0)),
    ),
    "FedVRA with a dual step of 1 is FedDyn": (C.fedvra(a=1.0), C.feddyn(), C.fedvra()),
    "FedNTD without distillation is FedAvg": (C.fedntd(beta=0.0), AVG, C.fedntd()),
    "MOON without contrast is FedAvg": (C.moon(mu=0.0), AVG, C.moon()),
    "FedRCL without its weights is FedAvg": (
        C.fedrcl(attraction=0.0, penalty=0.0),
        UNIFORM,
        C.fedrcl(attraction=0.0),
    ),
    "kNN-Per trains FedAvg": (C.knn_per(), AVG, C.knn_per(weighting="uniform")),
    "FedDisco without coefficients is FedAvg": (C.feddisco(a=0.0, b=0.0), AVG, C.feddisco()),
}


@pytest.mark.parametrize("claim", SAME)
def test_identity(claim: str) -> None:
    # The third algorithm is the first one with the coefficient that the second lacks: it
    # differs.
    assert_same_unless(*SAME[claim])


def test_fedtoga_without_trend_is_fedspeed() -> None:
    toga = C.fedtoga(rho=0.2, kappa=0, beta=0)
    same_eps = Algorithm(replace(toga.terms[0], eps=1e-12), *toga.terms[1:])
    assert_same_unless(same_eps, C.fedspeed(rho=0.2), C.fedtoga(rho=0.2))


def test_fedvra_adds_up_to_the_mean_of_the_models_where_d_is_all_clients_over_the_cohort() -> None:
    options = {"participation": lambda n, seed, round: [round, round + 1, round + 2]}
    assert_same_unless(C.fedvra(a=1.0, d=2.0), C.feddyn(), C.fedvra(a=1.0, d=1.5), **options)


def test_feddisco_without_coefficients_on_feddyn_is_feddyn_where_clients_are_equally_large() -> (
    None
):
    special, options = C.feddyn(alpha=0.05), {"clients": classification((10,) * 6)}
    assert_same_unless(
        C.feddisco(a=0.0, b=0.0, alpha=0.05), special, C.feddisco(alpha=0.05), **options
    )
    unequal = [trained(hard(a)).w for a in (C.feddisco(a=0.0, b=0.0, alpha=0.05), special)]
    assert (unequal[0] - unequal[1]).abs().max() > 1e-6


def test_fednova_is_fedavg_where_clients_go_equally_far() -> None:
    """With momentum; not where clients take 2 to 6 steps."""
    for sizes, same in [((10,) * 6, True), (None, False)]:
        options = {"clients": classification(sizes)} if sizes else {}
        nova, plain = (trained(hard(a), **options).w.detach() for a in (C.fednova(), AVG))
        gap = float((nova - plain).abs().max())
        assert gap <= 1e-12 if same else gap > 1e-6


def test_feddyn_without_its_multiplier_still_adds_the_mean_dual_on_the_server() -> None:
    # With alpha = 0 the clients are free, but the server goes on by h, the sum of all mean
    # moves, times M/N.
    run, h = regression(C.feddyn(alpha=0.0)), vec(0, 0)
    for _ in range(4):
        before = run.w.detach().clone()
        plain = regression(UNIFORM)  # FedAvg's round from the same point
        plain.w.data.copy_(before)
        plain.server.round = run.round
        plain.train_round()
        cohort = run.sampler(3, 0, run.round)
        run.train_round()
        delta = plain.w.detach() - before
        h = h + len(cohort) / 3 * delta
        torch.testing.assert_close(run.w.detach(), before + delta + h, rtol=0, atol=1e-12)


MEANS_OF_ALL = {
    "scaffold": ("c", "c_i"),
    "fedgamma": ("c", "c_i"),
    "fedlesam_s": ("c", "c_i"),
    "feddyn": ("h", "h_i"),
    "fedspeed": ("h", "h_i"),
    "fedsmoo": ("h", "h_i"),
    "fedlesam_d": ("h", "h_i"),
    "fedtoga": ("h", "h_i"),
    "fedvra": ("h", "h_i"),
    "feddc": ("h", "h_i"),
    "fedssg": ("h", "h_i"),
    "fednova, mean": ("d", "d_i"),
}


@pytest.mark.parametrize("algorithm", MEANS_OF_ALL)
def test_what_the_server_keeps_is_the_mean_of_all_clients_and_the_idle_keep_theirs(
    algorithm: str,
) -> None:
    mean, own = MEANS_OF_ALL[algorithm]
    run = federation(hard(EVERY_ALGORITHM[algorithm]), executor=STACKED)
    for round in range(3):
        before = rows(run, own)
        run.train_round()
        after = rows(run, own)
        torch.testing.assert_close(server(run, mean), after.mean(0), rtol=0, atol=1e-12)
        cohort = run.sampler(6, 0, round)
        idle = [i for i in range(6) if i not in cohort]
        assert after[idle].equal(before[idle])
        assert (after[cohort] != before[cohort]).any(1).all()


@pytest.mark.parametrize(
    ("algorithm", "mean", "own"), [("feddc", "c", "c_i"), ("fedssg", "d", "d_i")]
)
def test_gradient_memories_of_unequal_clients_count_by_size(
    algorithm: str, mean: str, own: str
) -> None:
    run = federation(hard(EVERY_ALGORITHM[algorithm]))
    om = run.clients.sizes / run.clients.sizes.mean()
    for _ in range(3):
        run.train_round()
        weighed = (om[:, None] * rows(run, own)).mean(0)
        torch.testing.assert_close(server(run, mean), weighed, rtol=0, atol=1e-12)
    assert (rows(run, own).mean(0) - weighed).abs().max() > 1e-3


def test_fedvras_dual_has_learnt_a_times_the_moves() -> None:
    run, sums = (
        regression(C.fedvra(a=3.0).with_outer_terms(Left())),
        torch.zeros(3, 2, dtype=torch.float64),
    )
    for _ in range(3):
        cohort, anchor = run.sampler(3, 0, run.round), run.w.detach().clone()
        run.train_round()
        sums[cohort] += rows(run, "u")[cohort] - anchor
        torch.testing.assert_close(rows(run, "h_i"), 3 * sums, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "exact"),
    [
        (C.fedtoga(rho=0.0, lam=1.0, beta=0.4), True),
        (C.feddyn(alpha=1.0), True),
        (C.fedvra(gamma=1.0, a=2.0), True),
        (C.feddc(alpha=1.0), True),
        (C.scaffold(), True),
        (C.fedavg(), False),
        (C.fedprox(mu=1.0), False),
    ],
    ids=["fedtoga", "feddyn", "fedvra", "feddc", "scaffold", "fedavg", "fedprox"],
)
def test_duals_and_variates_reach_the_stationary_point_fedavg_misses(
    algorithm: Algorithm, exact: bool
) -> None:
    run = regression(algorithm, rounds=60, lr=0.2, sampler=all_three)
    assert mean_gradient(run.w.detach()).norm() > 1
    distance = float(mean_gradient(round_after_round(run, 60).w.detach()).norm())
    assert distance < 1e-9 if exact else distance > 0.1
