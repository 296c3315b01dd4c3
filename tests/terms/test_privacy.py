"""The Gaussian mechanism: bounded updates, noise on their sum, and a norm that adapts."""

from functools import partial
from math import exp, inf, sqrt
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from problems import STACKED, federation, hard, round_after_round, term, trained
from torch import Tensor

from fl_lightning import Algorithm, UserError, algorithms
from fl_lightning.federation.sampling import BernoulliSampling
from fl_lightning.terms import AdaptiveClipping, GaussianMechanism

HALF = BernoulliSampling(0.5, may_be_empty=True)
QUIET = partial(GaussianMechanism, noise_multiplier=0.0)


def nobody(num_clients: int, seed: int, round: int) -> list[int]:
    return []


nobody.may_be_empty = True  # type: ignore[attr-defined]
nobody.expected_participation = 0.5  # type: ignore[attr-defined]


def update(run: Any) -> Tensor:
    before = run.w.detach().clone()
    round_after_round(run, 1)
    return run.w.detach() - before


@pytest.mark.parametrize("executor", [None, STACKED])
@pytest.mark.parametrize("make", ["dp_fedavg", "dp_fedsam"])
def test_without_noise_and_bound_it_is_the_method_without_privacy(make: str, executor: Any) -> None:
    private = getattr(algorithms, make)(clip=inf, noise_multiplier=0.0)
    plain = Algorithm(*private.terms[:-1])
    options = {"sampler": HALF} | ({"executor": executor} if executor else {})
    assert trained(hard(private), **options).w.equal(trained(hard(plain), **options).w)


@pytest.mark.parametrize("clip", [1e-3, 0.05, 10.0])
def test_no_update_is_longer_than_the_bound(clip: float) -> None:
    sent: list[Tensor] = []
    keep = term(send=lambda self, delta, v: sent.append(delta) or delta)
    run = federation(Algorithm(QUIET(clip), keep), sampler=BernoulliSampling(1.0))
    run.prepare()
    sent.clear()  # those of the rehearsal, and of a trial
    move = update(run)
    assert max(delta.norm().item() for delta in sent) <= clip * (1 + 1e-12)
    torch.testing.assert_close(move, torch.stack(sent).mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [99, 2_000_000])
def test_rounding_does_not_make_an_update_longer_than_the_bound(size: int) -> None:
    for clip in (0.1, 0.3, 0.7):
        sent = QUIET(clip).send(torch.randn(size), Mock())
        assert clip * (1 - 2e-6) < sent.double().norm().item() <= clip


def test_the_sum_is_divided_by_the_expected_cohort() -> None:
    one, plain = (federation(Algorithm(*t), sampler=HALF) for t in ([QUIET(10.0)], []))
    actual = len(HALF(6, 0, 0))
    assert actual != 3
    torch.testing.assert_close(update(one), update(plain) * actual / 3)


def test_the_noise_has_its_deviation_on_any_cohort_and_the_seed_decides_it() -> None:
    def noise(seed: int = 0) -> Tensor:
        quiet, noisy = (
            federation(Algorithm(GaussianMechanism(0.5, z)), seed=seed, sampler=nobody)
            for z in (0.0, 2.0)
        )
        assert not update(quiet).any()
        drawn = update(noisy)
        assert not (drawn == update(noisy)).any()
        return drawn

    drawn = noise()
    assert drawn.std().item() == pytest.approx(2.0 * 0.5 / 3, rel=0.2)
    assert drawn.equal(noise())
    assert not (drawn == noise(1)).any()


def test_a_round_of_nobody_is_a_round() -> None:
    run = federation(Algorithm(GaussianMechanism()), sampler=nobody)
    metrics = run.train_round()
    assert (run.round, metrics["comm/uplink_mb"]) == (1, 0)
    assert (metrics["client/distance"], metrics["client/drift"]) == (0, 0)
    assert metrics["server/update_norm"] > 0, "the server moves by the noise"


@pytest.mark.parametrize(("clip", "unclipped"), [(1e-3, 0), (100.0, 1)])
def test_the_bound_goes_to_the_quantile_of_the_norms(clip: float, unclipped: int) -> None:
    adaptive = AdaptiveClipping(clip, 0.0, quantile=0.7, clip_lr=0.5)
    run = federation(Algorithm(adaptive), sampler=BernoulliSampling(1.0))
    assert run.train_round()["term/clipped_updates"] == 1 - unclipped
    bound = run.server.states[0]["C"].item()
    assert bound == pytest.approx(clip * exp(-0.5 * (unclipped - 0.7)))


def test_one_step_of_the_bound_and_its_share_of_the_noise() -> None:
    z, clip = 0.8, 0.3
    seen = federation(Algorithm(AdaptiveClipping(clip, z)), sampler=nobody)
    move = update(seen)
    s = max(3 / 20, z)
    deviation = z / sqrt(1 - (z / (2 * s)) ** 2) * clip / 3
    assert move.std().item() == pytest.approx(deviation, rel=0.2)
    bound = seen.server.states[0]["C"].item()
    assert clip * exp(-0.2 * 4 * s / 3) < bound < clip * exp(0.2 * 4 * s / 3)
    assert bound != clip


@pytest.mark.parametrize("adapts", [False, True])
def test_an_infinite_bound_has_no_noise(adapts: bool) -> None:
    with pytest.raises(UserError, match="finite"):
        algorithms.dp_fedavg(clip=inf, noise_multiplier=0.0 if adapts else 1.0, quantile=0.5)
