"""Clients have the module's optimizer and scheduler."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_modules import Lit, data, decaying, distance, module, state, trainer, with_rates
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CyclicLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

import fl_lightning as fl
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.training.lightning_optimizer import local_optimizer


def fitted(module: Lit, **options: Any) -> Lit:
    trainer(**options).fit(module, data())
    return module


def test_gradients_that_a_module_brings_do_not_move_it() -> None:
    begun, fresh = Lit(), Lit()
    loss = F.cross_entropy(begun.eval()(data().train["x"]), data().train["label"])
    (1000 * loss).backward()
    assert distance(fitted(begun.train()), fitted(fresh)) == 0


def test_a_schedule_may_be_of_the_number_of_rounds(tmp_path: Path) -> None:
    def cosine(self: Any) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], CosineAnnealingLR(optimizer, self.trainer.max_epochs)

    lit = partial(module, configure_optimizers=cosine)
    four = trainer(rounds=4, run_dir=tmp_path / "run")
    four.fit(lit(), data())
    expected = [0.05 * (1 + cos(pi * round / 4)) for round in range(4)]
    assert four.history["local/lr"].tolist() == pytest.approx(expected)
    with pytest.raises(fl.UserError, match=r"of 4 rounds and is now .* of 6 rounds"):
        trainer(rounds=6, run_dir=tmp_path / "run").fit(lit(), data(), resume=True)


@pytest.mark.parametrize("own", [{"local": AdamW}, {"lr": fl.cosine(0.1, 0.01)}, {}], ids=str)
def test_the_optimizer_of_an_algorithm_is_replaced_which_is_said(
    own: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    mine, plain = Lit(), Lit()
    trainer(Algorithm()).fit(plain, data())
    trainer(Algorithm(**own)).fit(mine, data())
    assert distance(mine, plain) == 0
    assert ("replaces the local optimizer" in capsys.readouterr().out) == bool(own)


@pytest.mark.parametrize("method", ["local_adamw", "fedmuon"])
def test_no_optimizer_steps_along_the_direction_of_another(method: str) -> None:
    for make in (partial(AdamW, lr=0.01), partial(SGD, lr=0.01, momentum=0.9)):
        with pytest.raises(fl.UserError, match="an optimizer of its own"):
            trainer(method).fit(Lit(make), data())
    trainer(method, rounds=1).fit(Lit(partial(SGD, lr=0.01)), data())


class Signed(SGD):
    """Keeps an option as an attribute, and counts its steps."""

    def __init__(self, parameters: Any, lr: float = 0.1, signed: bool = True):
        super().__init__(parameters, lr=lr)
        self.signs, self.steps = signed, 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        for group in self.param_groups if self.signs else ():
            for p in group["params"]:
                p.grad = None if p.grad is None else p.grad.sign()
        return super().step(closure)


def test_options_that_an_optimizer_keeps_as_attributes_reach_the_clients() -> None:
    plain = fitted(Lit(partial(SGD, lr=0.1)))
    assert distance(fitted(Lit(partial(Signed, signed=False))), plain) == 0
    assert distance(fitted(Lit(Signed)), plain) > 0.1


def pair(self: Any) -> Any:
    optimizer = SGD(self.parameters(), lr=0.1)
    return [optimizer], StepLR(optimizer, 1, 0.5)


def dictionaries(self: Any) -> Any:
    optimizer = SGD(self.parameters(), lr=0.1)
    return [{"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1, 0.5)}}]


@pytest.mark.parametrize("configure_optimizers", [pair, dictionaries])
def test_a_scheduler_is_given_in_any_form_of_lightning(configure_optimizers: Any) -> None:
    mine = module(configure_optimizers=configure_optimizers)
    assert distance(fitted(mine), fitted(Lit(step=1))) == 0


@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")  # torch 2.8's SequentialLR
def test_the_text_of_a_run_has_what_its_optimizer_and_scheduler_do() -> None:
    def two_phases(self: Any) -> Any:
        optimizer = SGD([{"params": self.parameters(), "lr": 0.2}], lr=0.1)
        phases = [LinearLR(optimizer, 0.5), MultiStepLR(optimizer, [1, 3])]
        return [optimizer], [SequentialLR(optimizer, phases, [2])]

    text = local_optimizer(module(configure_optimizers=two_phases), 4)[2]
    phases = "('LinearLR(start_factor=0.5)', 'MultiStepLR(milestones=(1, 3))')"
    assert text == f"SGD(lr=0.2), SequentialLR(schedulers={phases}, milestones=(2,))"


def test_a_scheduler_may_take_a_step_in_some_rounds_alone() -> None:
    def halved(self: Any) -> Any:
        optimizer = SGD(self.parameters(), lr=0.4)
        frequency = self.trainer.check_val_every_n_epoch
        return [optimizer], [{"scheduler": StepLR(optimizer, 1, 0.5), "frequency": frequency}]

    fit = trainer(rounds=5, evaluate_every=2)
    run = fit.fit(module(configure_optimizers=halved), data())
    assert [*fit.history["local/lr"]] == [0.4, 0.4, 0.2, 0.2, 0.1]
    assert "StepLR(step_size=1, gamma=0.5), frequency=2" in (run.path / "config.yaml").read_text()


def decayed(round: int, by: float) -> float:
    return by**round


KEPT_ELSEWHERE: dict[str, Callable[..., Any]] = {
    "LambdaLR(lr_lambda=('decayed(by=0.9)',))": partial(
        LambdaLR, lr_lambda=partial(decayed, by=0.9)
    ),
    "max_lr=0.5": partial(OneCycleLR, max_lr=0.5, total_steps=9, cycle_momentum=False),
    "max_lr=(0.5,)": partial(CyclicLR, base_lr=0.1, max_lr=0.5, cycle_momentum=False),
}


@pytest.mark.parametrize("text", KEPT_ELSEWHERE)
def test_the_text_has_what_a_scheduler_keeps_elsewhere(text: str) -> None:
    def scheduled(self: Any) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], [KEPT_ELSEWHERE[text](optimizer)]

    assert text in local_optimizer(module(configure_optimizers=scheduled), 4)[2]


def test_a_copy_of_an_algorithm_takes_the_same_options() -> None:
    for copied in (deepcopy(Algorithm()), pickle.loads(pickle.dumps(Algorithm()))):
        fitted(Lit(), algorithm=copied, lr=0.1, momentum=0.9)


class Passing(AdamW):
    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)


def test_options_that_an_optimizer_passes_on_reach_the_clients() -> None:
    options = {"lr": 0.01, "weight_decay": 2.0, "amsgrad": True}
    passed = fitted(Lit(partial(Passing, **options)))
    assert distance(passed, fitted(Lit(partial(AdamW, **options)))) == 0


def test_parts_may_have_weight_decays_of_their_own(tmp_path: Path) -> None:
    made = partial(decaying, partial(SGD, lr=0.1, momentum=0.5))
    one = fitted(Lit(made), algorithm="scaffold", executor="sequential", run_dir=tmp_path / "run")
    assert distance(one, fitted(Lit(made), algorithm="scaffold", executor="stacked")) < 1e-6
    assert distance(one, fitted(Lit(partial(SGD, lr=0.1, momentum=0.5)), algorithm="scaffold")) > 0
    local, _, text = local_optimizer(Lit(made), 1)
    assert text == (
        "SGD(lr=0.1, momentum=0.5, weight_decay=0.1) of 72 numbers, "
        "SGD(lr=0.1, momentum=0.5) of 19 numbers"
    )
    assert Algorithm(local=local).lr_sum([0.1, 0.1]) == pytest.approx(0.1 + 0.15)
    assert text in (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(fl.UserError, match="maximize=True"):
        fitted(Lit(partial(decaying, partial(SGD, lr=0.1, maximize=True))))


def test_parts_may_have_rates_of_their_own() -> None:
    def stepped(self: Any) -> Any:
        optimizer = with_rates(SGD, self.parameters())
        return [optimizer], StepLR(optimizer, 1, 0.5)

    one = module(configure_optimizers=stepped)
    fit = trainer("fedprox", executor="sequential")
    fit.fit(one, data())
    assert [*fit.history["local/lr"]] == [0.1, 0.05]
    stacked = fitted(module(configure_optimizers=stepped), algorithm="fedprox", executor="stacked")
    assert distance(one, stacked) < 1e-6
    with pytest.raises(fl.UserError, match="differ in lr"):
        fitted(module(configure_optimizers=stepped), algorithm="scaffold")


def test_groups_of_equal_options_are_one() -> None:
    def both(self: Any) -> SGD:
        return SGD([{"params": part.parameters()} for part in (self.inner, self.norm, self.outer)])

    assert local_optimizer(module(configure_optimizers=both), 1)[2] == "SGD()"


class Noisy(SGD):
    """Adds noise to the weights, which is alike in no two layers."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.add_(1e-3 * torch.randn_like(p))
        return result


def test_an_optimizer_may_draw_random_numbers() -> None:
    before = state(Lit())
    assert distance(fitted(Lit(partial(Noisy, lr=0.0))), before) > 0


class Matrices(Lit):
    """Has matrices alone, which Muon asks for."""

    def __init__(self) -> None:
        super().__init__(norm=False)
        self.inner, self.outer = nn.Linear(6, 8, bias=False), nn.Linear(8, 3, bias=False)

    def configure_optimizers(self) -> Optimizer:
        return torch.optim.Muon(self.parameters(), lr=0.1)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 brought Muon")
def test_an_optimizer_of_matrices_is_refused() -> None:
    with pytest.raises(fl.UserError, match=r"Muon of Matrices.*one vector.*local_muon"):
        fitted(Matrices())


def warmed_up() -> Lit:
    """Begins with a rate of zero."""

    def configured(self: Any) -> Any:
        optimizer = SGD(self.parameters(), lr=0.2)
        return [optimizer], [LambdaLR(optimizer, lambda round: round / 4)]

    return module(configure_optimizers=configured)


def test_a_rate_may_be_zero() -> None:
    fit = trainer(rounds=3)
    fit.fit(warmed_up(), data())
    assert [*fit.history["local/lr"]] == pytest.approx([0.0, 0.05, 0.1])
    assert torch.equal(fitted(Lit(partial(SGD, lr=0.0))).outer.weight, Lit().outer.weight)


@pytest.mark.parametrize("method", ["scaffold", "fedtoga", "fednova"])
def test_a_method_that_divides_by_a_rate_of_zero_is_refused(method: str) -> None:
    with pytest.raises(fl.UserError, match="rate of round 1 is 0"):
        fitted(warmed_up(), algorithm=method)
