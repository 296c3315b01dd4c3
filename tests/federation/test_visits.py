"""What the order of terms means, and what a visit tells them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from problems import classification, close, federation, hard, regression, rows, trained, vec
from torch import Tensor
from torch.optim import SGD

from fl_lightning import (
    Algorithm,
    Federation,
    SequentialExecutor,
    StackedExecutor,
    Term,
    algorithms,
    by_size,
    initial,
    received,
    zeros,
)
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.federation.sampling import BernoulliSampling, UniformSampling
from fl_lightning.terms import SAM, Clip, Proximal

STACKED = partial(StackedExecutor, width=3)


def gradient_of_client_1(w: Tensor) -> Tensor:
    return vec(0.5 * 2 * (2 * float(w[0]) - 6), 0.5 * float(w[1]))


def one_step_with_decay(algorithm: Algorithm, decay: float) -> Federation:
    """After one step of client 1 from (1, 2), at rate 0.1."""
    run = regression(algorithm, steps=1, sampler=lambda *_: [1], weight_decay=decay)
    run.w.data.copy_(vec(1.0, 2.0))
    run.train_round()
    return run


def test_clipping_is_outermost_and_leaves_weight_decay_outside() -> None:
    """At w = (1, 2) the gradient is (-4, 1): u = w - lr (clip(g + mu (w - w^t)) + wd w), clipped to length 0.5."""
    g, w = vec(-4.0, 1.0), vec(1.0, 2.0)
    assert gradient_of_client_1(w).equal(g)
    run = one_step_with_decay(Algorithm(Proximal(0.1), Clip(0.5)), decay=3.0)
    close(run.w.detach(), *(w - 0.1 * (0.5 * g / 17**0.5 + 3.0 * w)).tolist(), tolerance=1e-6)


@pytest.mark.parametrize(("prox_clip", "outside"), [("whole", 0.0), ("split", 0.1)])
def test_a_split_pull_stays_half_outside_of_clipping(prox_clip: Any, outside: float) -> None:
    """U = w - lr (clip(g - mu w^t) + mu w) with mu = 0.1 at w = w^t = (1, 2), clipped to length 0.5."""
    g, w = vec(-4.0, 1.0), vec(1.0, 2.0)
    run = one_step_with_decay(
        algorithms.fedprox(0.1, prox_clip=prox_clip).with_outer_terms(Clip(0.5)), decay=0.0
    )
    clipped = g - outside * w
    close(
        run.w.detach(),
        *(w - 0.1 * (0.5 * clipped / clipped.norm() + outside * w)).tolist(),
        tolerance=1e-6,
    )


@pytest.mark.parametrize(
    "method", ["fedprox", "feddyn", "feddisco", "fedspeed", "fedsmoo", "fedlesam_d", "fedtoga"]
)
def test_how_a_pull_is_clipped_only_matters_where_clipping_acts(method: str) -> None:
    make = partial(ALGORITHMS[method], **({"alpha": 0.1} if method == "feddisco" else {}))
    for max_norm, same in [(1e6, True), (0.5, False)]:
        whole, split = (
            trained(make(prox_clip=c).with_outer_terms(Clip(max_norm))).w.detach()
            for c in ("whole", "split")
        )
        gap = float((whole - split).abs().max())
        assert gap <= 1e-12 if same else gap > 1e-6


def test_sams_ascent_contains_no_weight_decay() -> None:
    """Decay belongs to the step at the unperturbed point: u = w - lr (g(w + rho g/|g|) + wd w)."""
    w, g = vec(1.0, 2.0), vec(-4.0, 1.0)
    perturbed = gradient_of_client_1(w + 0.5 * g / 17**0.5)
    run = one_step_with_decay(Algorithm(SAM(0.5)), decay=3.0)
    close(run.w.detach(), *(w - 0.1 * (perturbed + 3.0 * w)).tolist())


def test_the_order_of_terms_is_the_algorithm() -> None:
    runs = [
        trained(hard(Algorithm(*terms)))
        for terms in [(SAM(0.3), Proximal(1.0)), (Proximal(1.0), SAM(0.3))]
    ]
    assert (runs[0].w - runs[1].w).abs().max() > 1e-6


@pytest.mark.parametrize("executor", [SequentialExecutor, STACKED], ids=["sequential", "stacked"])
def test_the_facts_of_a_visit_are_the_clients_own(executor: Any) -> None:
    """Clients 0, 2 and 4 hold 13, 12 and 4 of 55 samples; batches of 5, two epochs, rate 0.1 and then 0.07."""

    @dataclass(frozen=True)
    class Witness(Term):
        client = {"told": lambda first, now: now.new_zeros(5)}

        def report(self, w: Tensor, v: Any) -> Any:
            v.told = torch.stack([v.steps, v.epochs, v.span, v.size, v.weight])
            return ()

    algorithm = Algorithm(Witness(), local=partial(SGD, lr=0.1, momentum=0.5), weight=by_size)
    run = federation(algorithm, sampler=lambda *_: [0, 2, 4], executor=executor)
    run.train_round()
    three_and_three = 0.1 * (1 + 1.5 + 1.75) + 0.07 * (1.875 + 1.9375 + 1.96875)
    told = rows(run, "told")
    close(told[0], 6, 2, three_and_three, 13 * 6 / 55, 13 * 3 / 29)
    close(told[2], 6, 2, three_and_three, 12 * 6 / 55, 12 * 3 / 29)
    close(told[4], 2, 2, 0.1 * 1 + 0.07 * 1.5, 4 * 6 / 55, 4 * 3 / 29)


def test_the_epochs_of_a_visit_of_so_many_steps_are_fractions() -> None:
    """Clients 0 and 4, of 13 and 4 samples, have 3 and 1 batches an epoch; 4 steps."""
    seen: dict[int, float] = {}

    @dataclass(frozen=True)
    class Witness(Term):
        def report(self, w: Tensor, v: Any) -> Any:
            seen[round(float(v.size) * 55 / 6)] = float(v.epochs)
            return ()

    run = federation(
        Algorithm(Witness()), clients=classification(steps=4), sampler=lambda *_: [0, 4]
    )
    run.prepare()
    seen.clear()
    run.train_round()
    assert seen == pytest.approx({13: 4 / 3, 4: 4.0})


def test_what_a_visit_keeps_begins_anew_with_the_model_received_then() -> None:
    @dataclass(frozen=True)
    class Begun(Term):
        client = {"kept": received, "now": zeros, "first": zeros}
        local = {"here": received, "there": initial}

        def report(self, w: Tensor, v: Any) -> Any:
            v.now, v.first = v.here, v.there
            return ()

    run = federation(
        Algorithm(Begun()),
        sampler=lambda num_clients, seed, round: [0] if round == 0 else [0, 1],
    )
    run.train_round()
    second = run.w.detach().clone()
    run.train_round()
    kept, now, first = (rows(run, name) for name in ("kept", "now", "first"))
    assert all(
        row.equal(expected)
        for row, expected in zip(kept[:2], (run.server.initial_w, second), strict=True)
    )
    assert all(row.equal(second) for row in now[:2])
    assert all(row.equal(run.server.initial_w) for row in first[:2])
    assert not second.equal(run.server.initial_w)


@pytest.mark.parametrize(
    ("participation", "expected"), [(BernoulliSampling(0.3), 0.3), (UniformSampling(0.3), 5 / 6)]
)
def test_the_share_to_expect_is_the_probability_of_taking_part_where_cohorts_vary(
    participation: Any, expected: float
) -> None:
    """In a cohort of 5 of the 6 clients."""
    run = federation(Algorithm(), sampler=participation)
    assert run.round_facts(5)["expected"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("visit", "steps"),
    [
        ({"epochs": 2}, 4),
        ({"epochs": 1.3}, 3),
        ({"epochs": 0.1}, 1),
        ({"epochs": 2, "steps": 7}, 7),
    ],
)
def test_the_nominal_path_is_that_of_a_client_of_mean_size(
    visit: dict[str, Any], steps: int
) -> None:
    """Of 9.2 samples, two batches; at the first round's rate, with momentum 0.5: 1 + 1.5 + 1.75 + ... times 0.1."""
    local = partial(SGD, lr=0.1, momentum=0.5)
    run = federation(Algorithm(local=local), clients=classification(**visit))
    assert run.local_training.nominal_span == pytest.approx(
        0.1 * sum(2 - 0.5**k for k in range(steps))
    )


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
