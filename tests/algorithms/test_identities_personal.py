"""Methods that leave something out: the head, the other half of the batch, everybody else."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from executors import on_eager_executors
from problems import SIZES, assert_same_unless, classifier, federation, hard, rows, trained
from torch import Tensor
from torch.optim import SGD

from fl_lightning import Algorithm, Term, algorithms
from fl_lightning.core.oracle import Oracle

C = algorithms
UNIFORM = C.fedavg(weighting="uniform")


@dataclass(frozen=True)
class OtherHalf(Term):
    """Plain steps on every other sample."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.part(1, 2)(w)


def test_per_fedavg_without_its_inner_step_is_fedavg_on_the_other_half() -> None:
    """Without BatchNorm: some halves are a single sample."""

    def model(algorithm: Algorithm) -> Tensor:
        return trained(hard(algorithm), module=classifier(norm=False)).w.detach()

    other_half = model(Algorithm(OtherHalf()))
    torch.testing.assert_close(model(C.perfedavg(alpha=0.0)), other_half, rtol=0, atol=1e-12)
    assert (model(C.perfedavg(alpha=0.1)) - other_half).abs().max() > 1e-6
    assert (model(UNIFORM) - other_half).abs().max() > 1e-6


@dataclass(frozen=True)
class BodyOnly(Term):
    """Takes the head's gradient away."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) * (1 - v.layout.mask("outer.", w))


@on_eager_executors
def test_fedbabu_keeps_the_head_as_it_was_drawn_under_decay_and_momentum(executor: Any) -> None:
    module = classifier()
    drawn = {name: p.detach().clone() for name, p in module.named_parameters()}
    run = trained(hard(C.fedbabu()), module=module, executor=executor)
    after = dict(run.load_global().named_parameters())
    assert all(after[name].equal(drawn[name]) == name.startswith("outer.") for name in drawn)
    assert run.layout.names == ["inner.weight", "inner.bias", "norm.weight", "norm.bias"]
    assert run.w.numel() == run.layout.size == 99 - 27


def test_fedbabu_is_fedavg_whose_head_has_no_gradient() -> None:
    """Without weight decay, which would shrink that head."""
    sgd = partial(SGD, lr=0.1, momentum=0.9)
    babu, masked, plain = (
        trained(a.with_outer_terms(local=sgd)).w.detach()
        for a in (C.fedbabu(), Algorithm(BodyOnly()), UNIFORM)
    )
    torch.testing.assert_close(babu, masked[:72], rtol=0, atol=1e-12)
    assert (babu - plain[:72]).abs().max() > 1e-6


@on_eager_executors
def test_of_local_only_clients_the_global_model_never_moves_and_each_is_as_if_alone(
    executor: Any,
) -> None:
    run = trained(
        hard(C.local_only()), sampler=lambda n, seed, round: list(range(n)), executor=executor
    )
    assert run.w.equal(run.server.initial_w)
    for client in range(len(SIZES)):
        alone = trained(hard(UNIFORM), sampler=lambda n, seed, round, client=client: [client])
        torch.testing.assert_close(rows(run, "w_i")[client], alone.w.detach(), rtol=0, atol=1e-12)


def test_idle_clients_of_local_only_keep_their_models() -> None:
    run = federation(hard(C.local_only()))
    for round in range(3):
        before = rows(run, "w_i")
        run.train_round()
        cohort = run.sampler(6, 0, round)
        assert [i for i in range(6) if not rows(run, "w_i")[i].equal(before[i])] == cohort


def test_fedsol_ft_trains_fedsol() -> None:
    assert_same_unless(
        C.fedsol_ft(1.0, "fixed", scope="all", tau=2.0, weighting="uniform"),
        C.fedsol(1.0, "fixed", scope="all", tau=2.0, weighting="uniform"),
        C.fedsol_ft(),
    )
    assert_same_unless(C.fedsol_ft(per="tensor"), C.fedsol(per="tensor"), C.fedsol_ft())
