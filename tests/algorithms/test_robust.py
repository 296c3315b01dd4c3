"""Robust aggregation: the papers' rules in plain NumPy, an attack, what is left out and refused."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from problems import (
    assert_client_0_counts_as_absent,
    classification,
    federation,
    server,
    term,
    trained,
)
from scipy.optimize import minimize
from scipy.stats import trim_mean
from torch import Tensor

from fl_lightning import Algorithm, OfClients, Term, TermError, UniformSampling, algorithms
from fl_lightning.algorithms import modifiers
from fl_lightning.core.weighting import by_size
from fl_lightning.terms import (
    CenteredClipping,
    GeometricMedian,
    InnerProduct,
    Krum,
    LittleIsEnough,
    LossWeight,
    Mean,
    MinMax,
    SignFlip,
    TrimmedMean,
)

COHORT = np.random.default_rng(0).normal(size=(7, 5)) * np.linspace(1, 9, 7)[:, None]
"""Updates of seven clients."""


def krum(x: np.ndarray, f: int, kept: int) -> np.ndarray:
    scores = []
    for i in range(len(x)):
        others = [((x[i] - x[j]) ** 2).sum() for j in range(len(x)) if j != i]
        scores.append(sum(sorted(others)[: len(x) - f - 2]))
    return x[np.argsort(scores)[:kept]].mean(0)


def geometric_median(x: np.ndarray) -> np.ndarray:
    found = minimize(lambda z: np.linalg.norm(x - z, axis=1).sum(), x.mean(0), tol=1e-14)
    return np.asarray(found.x)


def centered_clipping(x: np.ndarray, tau: float, steps: int, rounds: int) -> np.ndarray:
    c = np.zeros(x.shape[1])
    for _ in range(steps * rounds):
        c = c + np.mean([(a - c) * min(1, tau / np.linalg.norm(a - c)) for a in x], axis=0)
    return c


@pytest.mark.parametrize(
    ("rule", "expected", "tolerance"),
    [
        (TrimmedMean(0.5), np.median(COHORT, axis=0), 1e-12),
        (TrimmedMean(0.2), trim_mean(COHORT, 0.2, axis=0), 1e-12),
        (Krum(0.2), krum(COHORT, 1, 1), 1e-12),
        (Krum(0.3, kept=3), krum(COHORT, 2, 3), 1e-12),
        (Krum(0.0, kept=7), COHORT.mean(0), 1e-12),
        (GeometricMedian(500), geometric_median(COHORT), 1e-5),
        (CenteredClipping(2.0, steps=3), centered_clipping(COHORT, 2.0, 3, 2), 1e-12),
        (CenteredClipping(1e9), COHORT.mean(0), 1e-12),
    ],
    ids=str,
)
def test_rules_by_hand(rule: Term, expected: np.ndarray, tolerance: float) -> None:
    """Of the second round, for the rule that remembers the first."""
    v: Any = SimpleNamespace(c=torch.zeros(5, dtype=torch.float64))
    for _ in range(2):
        found = rule.combine(torch.from_numpy(COHORT), v)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=tolerance)


RULES = {
    "fedmedian": algorithms.fedmedian(),
    "trimmed_mean": algorithms.trimmed_mean(0.25),
    "krum": algorithms.krum(0.25),
    "rfa": algorithms.rfa(steps=100),
    "centered_clipping": algorithms.centered_clipping(0.1),
}


def moved(method: Algorithm) -> Tensor:
    run = trained(method)
    return run.w - run.server.initial_w


@pytest.mark.parametrize("name", RULES)
def test_one_attacker_moves_the_mean_and_no_robust_rule(name: str) -> None:
    """Client 0, one of five and of four, sends a million times the opposite."""
    attack = SignFlip(share=0.1, scale=1e6)
    robust, mean, unharmed = (
        moved(made).norm()
        for made in (RULES[name].with_outer_terms(attack), Algorithm(attack), Algorithm())
    )
    assert mean > 1e4 > 10 * unharmed
    assert robust < 2 * unharmed


@pytest.mark.parametrize("name", ["fedsam", "fedgmt"])
def test_flipped_labels_are_those_of_other_data(name: str) -> None:
    """Client 0 attacks, the first of six; with a loss of outputs besides, too."""
    method, poisoned = getattr(algorithms, name)(), classification()
    own = poisoned.partition[0]
    poisoned.dataset.y[own] = 2 - poisoned.dataset.y[own]
    attacked = trained(modifiers.label_flip(share=0.2).to(method))
    torch.testing.assert_close(attacked.w, trained(method, clients=poisoned).w, rtol=0, atol=1e-12)
    assert (attacked.w - trained(method).w).abs().max() > 1e-3


HONEST = COHORT[2:]
"""The updates beside two attackers' of the seven."""


def min_max(x: np.ndarray) -> np.ndarray:
    """By bisection, as the authors do."""
    farthest = max(np.linalg.norm(a - b) for a in x for b in x)
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        sent = x.mean(0) - middle * x.std(0)
        fits = max(np.linalg.norm(sent - a) for a in x) <= farthest
        low, high = (middle, high) if fits else (low, middle)
    return np.asarray(x.mean(0) - low * x.std(0))


@pytest.mark.parametrize("rule", [Mean(), TrimmedMean(0.5), Krum(0.2)], ids=str)
@pytest.mark.parametrize(
    ("attack", "sent"),
    [
        (lambda rule: LittleIsEnough(rule, 0.3, z=0.7), HONEST.mean(0) - 0.7 * HONEST.std(0)),
        (lambda rule: InnerProduct(rule, 0.3, epsilon=2.0), -2 * HONEST.mean(0)),
        (lambda rule: MinMax(rule, 0.3), min_max(HONEST)),
    ],
    ids=["alie", "ipm", "min_max"],
)
def test_attacks_by_hand(attack: Any, sent: np.ndarray, rule: Term) -> None:
    v: Any = None
    attacked = torch.from_numpy(np.concatenate([[sent, sent], HONEST]))
    found = attack(rule).combine(torch.from_numpy(COHORT), v)
    torch.testing.assert_close(found, rule.combine(attacked, v), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (InnerProduct(Krum(0.2), 0.1), True),
        (InnerProduct(Krum(0.2), 0.2), False),
        (SignFlip(0.02), True),
        (SignFlip(0.03), False),
    ],
    ids=str,
)
def test_a_share_of_less_than_one_client_is_said(attack: Term, said: bool) -> None:
    of_round: Any = SimpleNamespace(participation=0.25, clients=20)
    lines = attack.summary_lines(of_round, of_round)
    assert any("no client attacks" in line for line in lines) == said


@pytest.mark.parametrize("attack", ["alie", "ipm", "min_max"])
def test_a_cohort_without_a_whole_attacker_is_that_of_the_rule_alone(attack: str) -> None:
    """Also a mean whose clients count equally then, and a cohort of one client."""
    made = getattr(modifiers, attack)(share=0.1)
    for method in (algorithms.fedmedian(), algorithms.fedavg()):
        alone = trained(method.replace(weight=Algorithm().weight))
        attacked = trained(made.to(method))
        torch.testing.assert_close(attacked.w, alone.w, rtol=0, atol=1e-12)
    single = made.attack(Mean()).combine(torch.ones(1, 3), None)
    assert single.tolist() == [1, 1, 1]


def test_colluding_clients_harm_the_mean_more_than_the_median() -> None:
    strong = modifiers.ipm(share=0.3, epsilon=50.0)
    harm = [
        (moved(strong.to(method)) - moved(method)).norm() / moved(method).norm()
        for method in (algorithms.fedavg(), algorithms.fedmedian())
    ]
    assert harm[0] > 5 > 1 > harm[1]


@pytest.mark.parametrize("skips", [False, True])
def test_a_rule_knows_whose_updates_it_gets(skips: bool) -> None:
    """Their sums by client, a server state, are what the clients have sent."""

    def remember(self: Any, updates: Tensor, v: Any) -> Tensor:
        v.moved = v.moved.index_add(0, v.cohort, updates)
        return updates.mean(0)

    each = OfClients(lambda w, clients: w.new_zeros(clients, len(w)))
    broken = term(send=lambda self, delta, v: torch.where(v.client == 0, torch.nan, delta))
    rule = Algorithm(term(combine=remember, server={"moved": each}), *([broken] if skips else []))
    run = trained(rule, rounds=2, on_divergence="skip-client")  # of 0, 1, 2, 4, 5 and of 2, 3
    norms = server(run, "moved").norm(dim=1)
    assert (norms > 0).tolist() == [not skips, True, True, True, True, True]


@pytest.mark.parametrize("exact", [False, True])
def test_a_skipped_client_has_no_vote(exact: bool) -> None:
    assert_client_0_counts_as_absent(algorithms.fedmedian(), deterministic=exact)


def test_a_rule_is_rehearsed_with_as_many_updates_as_a_round_has() -> None:
    seen = set[tuple[int, int]]()

    def most(self: Term, updates: Tensor, v: Any) -> Tensor:
        seen.add((len(updates), round(v.participation * v.clients)))
        return updates[updates.norm(dim=1).topk(4).indices].mean(0)

    trained(Algorithm(term(combine=most)), sampler=UniformSampling(5 / 6), rounds=1)
    assert seen == {(5, 5)}


def combining(rule: Any) -> Any:
    return lambda: federation(Algorithm(term(combine=lambda self, x, v: rule(x))))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Algorithm(Krum(), TrimmedMean()), ("Krum", "TrimmedMean")),
        (lambda: algorithms.krum().replace(weight=by_size), ("Krum", "uniform")),
        (lambda: federation(Algorithm(LossWeight(1.0), Krum())), ("Krum", "v.weight")),
        (lambda: federation(modifiers.ipm().to(algorithms.fedvarp())), ("Inner", "not move")),
        (lambda: federation(modifiers.alie().to(algorithms.fedadmm())), ("Little", "not move")),
        (combining(lambda x: x), ("Mine.combine", "[99]")),
        (combining(lambda x: x.sum(0).add_(x[0].mul_(2))), ("Mine.combine", "in place")),
    ],
    ids=[
        *("two rules", "weights by size", "weights of a term", "fedvarp", "fedadmm"),
        *("another shape", "in place"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(TermError) as refused:
        make().prepare()
    assert all(name in str(refused.value) for name in named)
