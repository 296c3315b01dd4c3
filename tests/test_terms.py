"""Terms against numbers worked out by hand, identities between methods, invariants, and users' mistakes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from problems import (
    EVERY_ALGORITHM,
    all_three,
    distances,
    federation,
    hard,
    layout,
    mean_gradient,
    regression,
    rows,
    server,
    trained,
)
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import (
    Algorithm,
    Federation,
    Sequential,
    Stacked,
    Term,
    TermError,
    by_size,
    catalogue,
    initial,
    scalar,
    zeros,
)
from fl_lightning.cost import trial_facts
from fl_lightning.oracle import Oracle
from fl_lightning.term import FACTS
from fl_lightning.terms import (
    ASAM,
    LESAM,
    SAM,
    TOGA,
    Adaptive,
    ClientMomentum,
    Clip,
    CohortDual,
    ControlVariate,
    DynamicRegularizer,
    LastRound,
    Proximal,
    perturb,
)
from fl_lightning.terms.drift import om, one
from fl_lightning.vector import Layout, unit

STACKED = partial(Stacked, width=3)


def vec(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def view(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


def close(actual: Tensor, *expected: float, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, vec(*expected), rtol=0, atol=tolerance)


def quadratic(w: Tensor) -> Tensor:
    """The gradient of `w_1^2 / 2 + w_2^2`."""
    return w * vec(1.0, 2.0)


class Asked:
    """The quadratic's gradient; remembers where it was taken."""

    def __init__(self) -> None:
        self.at: list[Tensor] = []

    def __call__(self, w: Tensor) -> Tensor:
        self.at.append(w)
        return quadratic(w)


# -------------------------------------------------------------------------------------------- term by term, in numbers


def test_unit_has_length_one_and_zero_stays_zero() -> None:
    close(unit(vec(3, -4)), 0.6, -0.8)
    close(unit(vec(0, 0)), 0, 0)


def test_span_is_the_way_of_a_unit_gradient() -> None:
    def span(**options: float | bool) -> float:
        return Algorithm(local=partial(SGD, lr=9.0, **options)).span([0.1, 0.1, 0.2])

    assert span(weight_decay=0.5) == pytest.approx(0.4)
    assert span(momentum=0.5) == pytest.approx(0.1 + 0.15 + 0.35)  # speeds 1, 1.5, 1.75
    assert span(momentum=0.5, dampening=0.5) == pytest.approx(0.1 + 0.1 + 0.2)  # speeds 1, 1, 1
    assert span(momentum=0.5, nesterov=True) == pytest.approx(0.15 + 0.175 + 0.375)  # 1 + speed / 2 ahead


def test_proximal_pulls_to_the_received_model() -> None:
    close(Proximal(mu=0.5).gradient(quadratic, vec(3, 2), view(anchor=vec(1, 4))), 3 + 0.5 * 2, 4 - 0.5 * 2)


def test_sam_steps_along_the_gradient_first() -> None:
    # at (3, 2) the gradient is (3, 4), of length 5
    close(SAM(rho=0.5).gradient(quadratic, vec(3, 2), None), 3.3, 2 * 2.4)


def test_asam_scales_the_ball_by_the_weights() -> None:
    # T = |w| + 1 = (4, 3), g = (3, 4), T g = (12, 12); e = 2 T^2 g / (12 sqrt 2)
    length = 2 / (12 * 2**0.5)
    expected = 3 + length * 16 * 3, 2 * (2 + length * 9 * 4)
    close(ASAM(rho=2.0, eta=1.0).gradient(quadratic, vec(3, 2), None), *expected)


def test_lesam_perturbs_once_a_visit_towards_the_older_model() -> None:
    v = view(o_i=vec(1, 5), anchor=vec(4, 1), e=vec(0, 0))
    term = LESAM(rho=0.5)
    assert term.start(v.anchor, v) is v.anchor
    close(v.e, -0.3, 0.4)  # 0.5 (-3, 4) / 5
    close(v.o_i, 4, 1)
    close(term.gradient(quadratic, vec(1, 1), v), 0.7, 2.8)


def test_last_round_perturbs_against_the_last_move() -> None:
    v = view(anchor=vec(4, 1), last=vec(1, 5), e=vec(0, 0), layout=layout())
    term = LastRound(rho=0.5)
    term.start(v.anchor, v)
    close(v.e, -0.3, 0.4)
    close(term.gradient(quadratic, vec(1, 1), v), 0.7, 2.8)
    close(term.update(vec(1, 1), (), v), 1, 1)
    close(v.last, 4, 1)


def test_the_shapes_of_last_round() -> None:
    two = Layout(nn.ParameterList([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))]))
    G = vec(3, 4, 0, 5)  # parts of length 5 and 5
    close(perturb.by_sum_of_norms(two, G, 0.0), 0.3, 0.4, 0.0, 0.5)
    close(perturb.by_first_coordinates(two, G, 0.0), 3 / 7, 3 / 7, 4 / 7, 4 / 7)
    close(perturb.by_global_norm(two, G, 0.0), *(x / 50**0.5 for x in (3, 4, 0, 5)))


@pytest.mark.parametrize(
    ("ascent", "along"),
    [
        (perturb.own, (3 + 2 * 1, 4 + 2 * 1)),
        (perturb.neighbour, (10 + 2 * 1, -1 + 2 * 1)),
        (perturb.fusion, (3 + 10 + 2 * 1, 4 - 1 + 2 * 1)),
    ],
)
def test_toga_ascends_and_descends_with_the_trend(ascent: Any, along: tuple[float, float]) -> None:
    v = view(R=vec(10, -1), Delta=vec(1, 1))
    direction = TOGA(rho=0.5, kappa=2.0, beta=0.25, ascent=ascent, eps=0.0).gradient(quadratic, vec(3, 2), v)
    length = (along[0] ** 2 + along[1] ** 2) ** 0.5
    perturbed = 3 + 0.5 * along[0] / length, 2 * (2 + 0.5 * along[1] / length)
    close(v.R, *perturbed)
    close(direction, perturbed[0] + 0.25, perturbed[1] + 0.25)


@pytest.mark.parametrize(("per", "divisor"), [(perturb.per_step, 4), (perturb.per_epoch, 2), (perturb.per_length, 0.5)])
def test_togas_trend_is_the_movement_over_steps_epochs_or_length(per: Any, divisor: float) -> None:
    v = view(origin=vec(3, 2), steps=vec(4), epochs=vec(2), span=vec(0.5), Delta=vec(0, 0))
    message = TOGA(per=per).report(vec(1, 3), v)
    close(message, 2 / divisor, -1 / divisor)
    close(TOGA().update(vec(7, 7), message, v), 7, 7)
    assert v.Delta is message


def test_control_variate_corrects_and_learns() -> None:
    v = view(c=vec(1, 2), c_i=vec(0.5, 3), origin=vec(3, 2), span=vec(0.5), share=0.25)
    close(ControlVariate(k=2.0).gradient(quadratic, vec(3, 2), v), 3 + 2 * 0.5, 4 + 2 * -1)
    message = ControlVariate().report(vec(1, 3), v)
    close(v.c_i, 0.5 - 1 + 2 / 0.5, 3 - 2 - 1 / 0.5)
    close(message, -1 + 4, -2 - 2)
    close(ControlVariate().update(vec(9, 9), message, v), 9, 9)
    close(v.c, 1 + 0.25 * 3, 2 + 0.25 * -4)


def test_control_variate_of_the_code_that_weighs_by_size() -> None:
    v = view(c=vec(1, 2), c_i=vec(0, 0), origin=vec(3, 2), span=vec(0.5), size=vec(2))
    term = ControlVariate(length=0.2, scale=om, kept=one)
    close(term.gradient(quadratic, vec(3, 2), v), 3 + 1 / 2, 4 + 2 / 2)
    message = term.report(vec(1, 3), v)
    close(v.c_i, -1 + 2 / 0.2, -2 - 1 / 0.2)
    close(message, 2 * 9, 2 * -7)


def test_dynamic_regularizer_pulls_learns_and_shifts_the_server() -> None:
    term = DynamicRegularizer(alpha=0.5)
    v = view(h_i=vec(1, -1), anchor=vec(1, 4), h=vec(0.5, 0.5), share=0.25)
    close(term.gradient(quadratic, vec(3, 2), v), 3 + 0.5 * (1 + 2), 4 + 0.5 * (-1 - 2))
    message = term.report(vec(3, 2), v)
    close(message, 2, -2)
    close(v.h_i, 3, -3)
    close(term.update(vec(10, 10), message, v), 10 + 0.5 + 0.25 * 2, 10 + 0.5 - 0.25 * 2)
    close(v.h, 1, 0)


def test_dynamic_regularizer_over_the_cohort_or_over_the_clients_size() -> None:
    v = view(h_i=vec(1, -1), anchor=vec(1, 4), h=vec(0.5, 0.5), share=0.25, size=vec(2))
    close(DynamicRegularizer(share=1.0).update(vec(10, 10), vec(2, -2), v), 12.5, 8.5)
    close(DynamicRegularizer(alpha=0.5, scale=om).gradient(quadratic, vec(3, 2), v), 3 + 0.25 * 3, 4 + 0.25 * -3)


def test_cohort_dual_sends_the_dual_itself() -> None:
    v = view(h_i=vec(1, -1), anchor=vec(1, 4))
    close(CohortDual().report(vec(3, 2), v), 3, -3)
    close(CohortDual().update(vec(10, 10), vec(3, -3), v), 13, 7)


def test_client_momentum_mixes_in_the_last_mean_gradient() -> None:
    v = view(m=vec(1, -1), origin=vec(3, 2), span=vec(0.5))
    close(ClientMomentum(alpha=0.25).gradient(quadratic, vec(3, 2), v), 0.25 * 3 + 0.75, 0.25 * 4 - 0.75)
    close(ClientMomentum(alpha=0.25, gain=1.0).gradient(quadratic, vec(3, 2), v), 3.75, 3.25)
    message = ClientMomentum().report(vec(1, 3), v)
    close(message, 4, -2)
    close(ClientMomentum().update(vec(9, 9), message, v), 9, 9)
    assert v.m is message


def test_clip_shortens_long_directions_only() -> None:
    close(Clip(max_norm=1.0).gradient(quadratic, vec(3, 2), None), 0.6, 0.8, tolerance=1e-6)
    close(Clip(max_norm=6.0).gradient(quadratic, vec(3, 2), None), 3, 4)


def test_adaptive_takes_two_steps_of_adam_without_bias_correction() -> None:
    term = Adaptive(beta1=0.5, beta2=0.75, tau=1.0, v0=4.0)
    v = view(m=vec(0, 0), v=term.server["v"](vec(0, 0), vec(0, 0)))
    close(term.update(vec(4, 0), (), v), 2 / (7**0.5 + 1), 0)  # m = 2, v = 3 + 4
    close(term.update(vec(0, 2), (), v), 1 / (5.25**0.5 + 1), 1 / (3.25**0.5 + 1))


@pytest.mark.parametrize("term", [SAM(0.5), LESAM(0.5), LastRound(0.5), TOGA(0.5)], ids=lambda t: type(t).__name__)
def test_a_perturbation_is_rho_long_and_a_zero_direction_perturbs_by_zero(term: Any) -> None:
    for anchor, w, length in [(vec(1, 1), vec(3, 2), 0.5), (vec(0, 0), vec(0, 0), 0.0)]:
        asked, nowhere = Asked(), vec(0, 0)
        v = view(o_i=nowhere, last=nowhere, anchor=anchor, e=None, R=nowhere, Delta=nowhere, layout=layout())
        term.start(anchor, v)
        term.gradient(asked, w, v)
        assert float((asked.at[-1] - w).norm()) == pytest.approx(length, abs=1e-6)


# ---------------------------------------------------------------------------------------------- one method is another


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


# ------------------------------------------------------------------------------------------------------- invariants


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


# --------------------------------------------------------------------------- the place of clipping and weight decay


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


# ------------------------------------------------------------------------------------------------ a term of one's own


@dataclass(frozen=True)
class Anchored(Term):
    """Pulls towards the mean of the models this client received; the server leans on the mean of the pulls."""

    mu: float = 0.1
    client = {"mean_i": initial, "visits": scalar}
    server = {"pull": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.mu * (w - v.mean_i)

    def report(self, w: Tensor, v: Any) -> tuple[Tensor, Tensor]:
        v.visits = v.visits + 1
        v.mean_i = v.mean_i + (v.anchor - v.mean_i) / v.visits
        return v.mean_i - v.anchor, v.visits

    def update(self, delta: Tensor, mean: tuple[Tensor, Tensor], v: Any) -> Tensor:
        v.pull = v.pull + v.share * mean[0]
        return delta + self.mu * v.pull / mean[1]


def test_a_users_term_runs_in_both_executors() -> None:
    one_by_one, together = trained(hard(Algorithm(Anchored()))), trained(hard(Algorithm(Anchored())), executor=STACKED)
    assert max(distances(one_by_one, together).values()) <= 1e-10
    assert rows(one_by_one, "visits").tolist() == [2, 2, 2, 2, 2, 1]


# ------------------------------------------------------------------------------------------------------ users' mistakes


def in_gradient(mistake: Callable[[Tensor, Any], Any]) -> Callable[..., Any]:
    return lambda self, oracle, w, v: mistake(oracle(w), v)


def assign(name: str, value: Callable[[Tensor, Any], Any]) -> Callable[..., Any]:
    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        setattr(v, name, value(w, v))
        return oracle(w)

    return gradient


def add_up(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    v.c_i += 1
    return oracle(w)


def branch(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return oracle(w) if w.sum() > 0 else -oracle(w)


def loop(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return sum((oracle(w) for _ in range(int(v.steps))), torch.zeros_like(w))


def pick(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return oracle(w) * w[w > 0].sum()


def noise(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return oracle(w) + torch.randn_like(w)


def in_place(name: str) -> Callable[..., Any]:
    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        getattr(v, name).add_(1)
        return oracle(w)

    return gradient


def through_an_alias(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    v.c_i = v.anchor
    v.c_i.mul_(2)
    return oracle(w)


def weights_in_place(self: Term, w: Tensor, v: Any) -> Tensor:
    w.mul_(2)
    return w


def mistaken(hook: str, code: Callable[..., Any]) -> Term:
    states = {"client": {"c_i": zeros}, "server": {"c": zeros}, "local": {"e": zeros}}
    return type("Mistaken", (Term,), {**states, hook: code})()


AT_ONCE = {
    "an undeclared state is read": ("gradient", in_gradient(lambda g, v: g + v.d), "Declare a state"),
    "an undeclared state is assigned": ("gradient", assign("d", lambda w, v: w), "Declare it"),
    "a state gets +=": ("gradient", add_up, r"write v.c_i = v.c_i \+"),
    "a state gets another shape": ("gradient", assign("e", lambda w, v: w[:1]), "keep the shape in which it began"),
    "a state gets a number": ("gradient", assign("e", lambda w, v: 1.0), "a tensor of shape"),
    "a client assigns a server state": ("gradient", assign("c", lambda w, v: w), "assigned in `update` only"),
    "a fact is assigned": ("gradient", assign("anchor", lambda w, v: w), "may assign"),
    "gradient forgets to return": ("gradient", in_gradient(lambda g, v: None), "must return a vector like the model"),
    "gradient returns a number": ("gradient", in_gradient(lambda g, v: g.sum()), "must return a vector like the model"),
    "start forgets to return": ("start", lambda self, w, v: None, "must return a vector like the model"),
    "start reads where it starts": ("start", lambda self, w, v: v.origin, "It can read"),
    "update forgets to return": ("update", lambda self, delta, mean, v: None, "must return a vector like the model"),
    "update reads a client's fact": ("update", lambda self, delta, mean, v: delta / v.span, "`report` returns"),
    "update reads a client's state": ("update", lambda self, delta, mean, v: delta + v.c_i, "`report` returns"),
    "the message is None": ("report", lambda self, w, v: None, "to say nothing"),
    "the message is a number": ("report", lambda self, w, v: (w, 1.0), "return a tensor or a tuple of tensors"),
    "a state changes in place": ("gradient", in_place("c_i"), r"write v.c = v.c \+ x"),
    "a server state changes in place": ("gradient", in_place("c"), r"write v.c = v.c \+ x"),
    "the received model changes in place": ("gradient", in_place("anchor"), r"write v.c = v.c \+ x"),
    "it changes under another name": ("gradient", through_an_alias, r"write v.c = v.c \+ x"),
    "start changes the weights in place": ("start", weights_in_place, r"return w \+ x"),
}


@pytest.mark.parametrize("mistake", AT_ONCE)
def test_a_mistake_shows_before_the_first_round_and_names_the_mend(mistake: str) -> None:
    hook, code, mend = AT_ONCE[mistake]
    with pytest.raises(TermError, match=rf"Mistaken\.{hook} (?s:.*){mend}"):
        federation(Algorithm(SAM(), mistaken(hook, code), Proximal()))


STACKED_ONLY = {"if on a tensor": branch, "int() of the steps": loop, "boolean indexing": pick}


@pytest.mark.parametrize("mistake", STACKED_ONLY)
def test_what_cannot_run_for_several_clients_at_once_is_named(mistake: str) -> None:
    algorithm = Algorithm(SAM(), mistaken("gradient", STACKED_ONLY[mistake]))
    run = federation(algorithm, executor=STACKED)
    with pytest.raises(TermError, match=r"Mistaken\.gradient cannot run .* torch\.where.* sequential executor"):
        run.train_round()
    trained(algorithm)


def test_item_in_a_report_is_named_too() -> None:
    def report(self: Term, w: Tensor, v: Any) -> Tensor:
        return w * v.span.item()

    with pytest.raises(TermError, match=r"Mistaken\.report cannot run .*\.item\(\)"):
        federation(Algorithm(mistaken("report", report)), executor=STACKED).train_round()


def test_an_ordinary_error_in_a_term_says_where_it_was() -> None:
    with pytest.raises(RuntimeError) as caught:
        federation(Algorithm(mistaken("gradient", in_gradient(lambda g, v: g @ g[:3]))))
    assert caught.value.__notes__ == ["raised in Mistaken.gradient"]


@pytest.mark.parametrize("name", [*sorted(FACTS), "_mine", "c"])
def test_a_states_name_may_not_hide_anything_else(name: str) -> None:
    hiding = type("Hiding", (Term,), {"server": {"c": zeros}, "client": {name: zeros}})
    with pytest.raises(TermError, match=rf"Hiding declares a state '{name}'.*Rename it"):
        Algorithm(hiding())


def test_the_facts_are_those_that_a_visit_tells() -> None:
    told: set[str] = set()

    @dataclass(frozen=True)
    class Witness(Term):
        def report(self, w: Tensor, v: Any) -> Any:
            told.update(name for name in v.__dict__ if not name.startswith("_"))
            return ()

    trained(Algorithm(Witness()))
    assert told == FACTS == set(trial_facts(layout(), vec(1, 1)))
