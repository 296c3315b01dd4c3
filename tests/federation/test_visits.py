"""What the order of terms means, and the facts that a visit gives them."""

import weakref
from functools import partial
from math import inf, nan
from typing import Any, ClassVar

import pytest
import torch
from problems import EXECUTORS, classification, close, federation, rows, trained, vec
from regressions import regression
from torch import Tensor
from torch.optim import SGD

from fl_lightning import (
    Algorithm,
    StackedExecutor,
    Term,
    UserError,
    algorithms,
    by_size,
    initial,
    received,
    scalar,
    zeros,
)
from fl_lightning.federation.sampling import (
    BernoulliSampling,
    SizeWeightedSampling,
    UniformSampling,
)
from fl_lightning.terms import Clip, Proximal

W, G = vec(1.0, 2.0), vec(-4.0, 1.0)
"""A model, and client 1's gradient there."""


def gradient_of_client_1(w: Tensor) -> Tensor:
    return vec(0.5 * 2 * (2 * float(w[0]) - 6), 0.5 * float(w[1]))


def check_step(algorithm: Algorithm, direction: Tensor, decay: float = 0.0) -> None:
    """Check one step of client 1 from W, at rate 0.1; clipping divides by a norm plus 1e-6."""
    run = regression(algorithm, steps=1, sampler=lambda *_: [1], weight_decay=decay)
    run.w.data.copy_(W)
    run.train_round()
    close(run.w.detach(), *(W - 0.1 * (direction + decay * W)).tolist(), tolerance=1e-6)


def clipped(g: Tensor) -> Tensor:
    return 0.5 * g / g.norm()


def test_clipping_is_outermost_and_leaves_weight_decay_outside():
    """U = w - lr (clip(g + mu (w - w^t)) + wd w), clipped to length 0.5."""
    assert gradient_of_client_1(W).equal(G)
    check_step(Algorithm(Proximal(0.1), Clip(0.5)), clipped(G), decay=3.0)


@pytest.mark.parametrize(("prox_clip", "mu"), [("whole", 0.0), ("split", 0.1)])
def test_a_split_pull_stays_half_outside_of_clipping(prox_clip, mu):
    """U = w - lr (clip(g - mu w^t) + mu w) with mu = 0.1 at w = w^t, clipped to length 0.5."""
    algorithm = algorithms.fedprox(0.1, prox_clip=prox_clip).with_outer_terms(Clip(0.5))
    check_step(algorithm, clipped(G - mu * W) + mu * W)


@pytest.mark.parametrize("make", [algorithms.fedprox, algorithms.feddyn, algorithms.fedtoga])
@pytest.mark.parametrize(("max_norm", "same"), [(1e6, True), (0.5, False)])
def test_splitting_a_pull_matters_only_where_clipping_acts(make, max_norm, same):
    """The other methods have the pull of FedDyn."""
    whole, split = (
        trained(make(prox_clip=clip).with_outer_terms(Clip(max_norm)), rounds=2).w.detach()
        for clip in ("whole", "split")
    )
    gap = float((whole - split).abs().max())
    assert gap <= 1e-12 if same else gap > 1e-6


class Facts(Term):
    client = {"facts": lambda first, now: now.new_zeros(5)}

    def report(self, w, v):
        v.facts = torch.stack([v.steps, v.epochs, v.lr_sum, v.size, v.weight])
        return ()


@EXECUTORS
def test_the_facts_of_a_visit_are_those_of_the_client(executor):
    """Clients 0, 2, 4 have 13, 12, 4 of 55 samples; batches of 5, two epochs, rates 0.1, 0.07."""
    algorithm = Algorithm(Facts(), local=partial(SGD, lr=0.1, momentum=0.5), weight=by_size)
    given = {"clients": classification(epochs=2), "sampler": lambda *_: [0, 2, 4]}
    run = federation(algorithm, executor=executor, **given)
    run.train_round()
    three_and_three = 0.1 * (1 + 1.5 + 1.75) + 0.07 * (1.875 + 1.9375 + 1.96875)
    facts = rows(run, "facts")
    close(facts[0], 6, 2, three_and_three, 13 * 6 / 55, 13 * 3 / 29)
    close(facts[2], 6, 2, three_and_three, 12 * 6 / 55, 12 * 3 / 29)
    close(facts[4], 2, 2, 0.1 * 1 + 0.07 * 1.5, 4 * 6 / 55, 4 * 3 / 29)


def test_a_fixed_number_of_steps_may_be_a_fraction_of_an_epoch():
    """Clients 0 and 4, with 13 and 4 samples, have 3 and 1 batches an epoch; 4 steps."""
    clients = classification(steps=4)
    run = federation(Algorithm(Facts()), clients=clients, sampler=lambda *_: [0, 4])
    run.train_round()
    assert rows(run, "facts")[[0, 4], 1].tolist() == pytest.approx([4 / 3, 4.0])


def test_local_states_begin_at_every_visit_and_client_states_at_the_first():
    class Begun(Term):
        client = {"kept": received, "now": zeros, "first": zeros}
        local = {"here": received, "there": initial}

        def report(self, w, v):
            v.now, v.first = v.here, v.there
            return ()

    run = federation(Algorithm(Begun()), sampler=lambda n, seed, round: [[0], [0, 1]][round])
    run.train_round()
    first, second = run.server.initial_w, run.w.detach().clone()
    run.train_round()
    assert not second.equal(first)
    expected = {"kept": [first, second], "now": [second, second], "first": [first, first]}
    for name, models in expected.items():
        assert rows(run, name)[:2].equal(torch.stack(models))


def test_the_expected_share_is_the_probability_where_cohorts_vary():
    """In a cohort of 5 of the 6 clients."""
    for sampler, expected in [(BernoulliSampling(0.3), 0.3), (UniformSampling(0.3), 5 / 6)]:
        run = federation(Algorithm(), sampler=sampler)
        assert run.local_training.round_facts(5)["inclusion_probability"] == pytest.approx(expected)


@EXECUTORS
def test_a_client_knows_its_own_probability_where_cohorts_are_drawn_by_size(executor):
    sampler = SizeWeightedSampling(0.5, classification().sizes)

    class Gate(Term):
        client = {"count": scalar, "gate": scalar}

        def report(self, w, v):
            v.count = v.count + 1
            v.gate = v.count / v.inclusion_probability
            return ()

    run = federation(Algorithm(Gate()), sampler=sampler, executor=executor)
    cohort = sampler(6, 0, 0)
    run.train_round()
    assert rows(run, "gate")[cohort].tolist() == pytest.approx(
        (1 / sampler.probabilities[cohort]).tolist()
    )
    assert sampler.probabilities.min() < 0.4 < 0.6 < sampler.probabilities.max()


@pytest.mark.parametrize(
    ("visit", "steps"),
    [({"epochs": 2}, 4), ({"epochs": 1.3}, 3), ({"epochs": 0.1}, 1), ({"steps": 7}, 7)],
)
def test_base_lr_sum_is_that_of_a_client_of_mean_size(visit, steps):
    """Of 9.2 samples, two batches; with momentum 0.5: 0.1 (1 + 1.5 + 1.75 + ...)."""
    local = partial(SGD, lr=0.1, momentum=0.5)
    run = federation(Algorithm(local=local), clients=classification(**visit), decays=False)
    expected = 0.1 * sum(2 - 0.5**k for k in range(steps))
    assert run.local_training.rates.base_lr_sum == pytest.approx(expected)


class OtherSGD(SGD):
    """SGD whose steps are taken to see how far they move."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dampening": 0.3},
        {"momentum": 0.9, "dampening": 0.3},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.5, "maximize": True, "weight_decay": 0.1},
    ],
)
def test_lr_sum_is_how_far_steps_of_sgd_move_a_weight(options: dict[str, Any]):
    lrs = [0.1, 0.3, 0.2, 0.05]
    found, expected = (Algorithm(local=partial(o, lr=1.0, **options)) for o in (SGD, OtherSGD))
    assert found.lr_sum(lrs) == pytest.approx(expected.lr_sum(lrs), rel=1e-15)


def test_the_average_visit_follows_the_learning_rates():
    """Of two batches an epoch, 1.5 epochs, at 0.1 * 0.9^round, times 0.7 in the third step."""
    run = federation(Algorithm(), clients=classification(epochs=1.5))
    assert run.local_training.rates.average_visit(2) == pytest.approx(
        {"steps": 3, "epochs": 1.5, "lr_sum": 0.1 * 0.81 * 2.7, "size": 1, "weight": 1}
    )


def test_a_rate_multiplies_the_learning_rate_of_each_step():
    """Client 1 from 0, at rates 0.2 and 0.1; its gradient is (2 w_0 - 6, w_1 / 2)."""
    algorithm = Algorithm(rate=lambda k, K: 2 * (1 - k / K))
    run = regression(algorithm, steps=2, sampler=lambda *_: [1])
    run.train_round()
    close(run.w.detach(), 1.2 + 0.1 * (6 - 2.4), 0.0)
    assert run.local_training.rates.average_visit(0)["lr_sum"] == pytest.approx(0.3)
    assert run.local_training.rates.base_lr_sum == pytest.approx(0.3)


@EXECUTORS
@pytest.mark.parametrize(
    "given",
    [
        {"rate": lambda k, K: 1.0},
        {"rate": lambda k, K: torch.ones(())},
        {"lr": lambda t, T: vec(0.1)[0]},
    ],
    ids=["rate", "tensor", "learning rate"],
)
def test_a_rate_of_one_is_none_bit_for_bit(given, executor):
    steady, plain = (
        trained(algorithms.scaffold().replace(**changes), executor=executor, decays=False)
        for changes in (given, {})
    )
    assert steady.w.equal(plain.w)


@pytest.mark.parametrize("rate", [-1.0, nan, inf, 0.0])
def test_rates_that_no_optimizer_takes_are_refused(rate):
    with pytest.raises(UserError, match="at least 0"):
        federation(Algorithm(rate=lambda k, K: rate))


@pytest.mark.parametrize("lr", [-1.0, nan, inf])
def test_learning_rates_that_no_optimizer_takes_are_refused(lr):
    def late(round, rounds):
        return lr if round else 0.1

    with pytest.raises(UserError, match=r"^lr .* in round 2"):  # before anything is trained
        federation(Algorithm(lr=late), decays=False)
    run = federation(Algorithm(server_lr=late), decays=False)
    run.train_round()
    with pytest.raises(UserError, match=r"^server_lr .* in round 2"):
        run.train_round()


class Scarce(StackedExecutor):
    """Has memory for one group of clients, afterwards for one client at a time."""

    held: ClassVar[list[weakref.ref[Tensor]]] = []
    left: ClassVar[list[int]] = []

    def __call__(self, received, tasks):
        if self.held and len(tasks) > 1:
            self.held.extend(weakref.ref(task.states[0]["c_i"]) for task in tasks)
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.left.append(sum(ref() is not None for ref in self.held))
        for result in super().__call__(received, tasks):
            self.held.append(weakref.ref(result.progress))
            yield result


def test_clients_that_do_not_fit_the_memory_leave_it_to_fewer() -> None:
    """Those before them leave it too: a tensor of one client may be a part of all clients'."""
    run = federation(algorithms.scaffold(), executor=partial(Scarce, width=2))
    run.train_round()
    assert run.local_training.group_size == 1
    assert Scarce.left == [0, 0, 0, 0]
