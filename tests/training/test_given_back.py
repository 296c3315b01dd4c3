"""After `fit` the module is the user's again, trained."""

from functools import partial
from typing import Any

import pytest
import torch
from adapters import adapted
from lightning import Trainer
from lightning_modules import Lit, data, distance, lightning, owners, rows, state, trainer
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader

import fl_lightning as fl
from fl_lightning.training.task import Task


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbabu"])
@pytest.mark.parametrize("make", [Lit, network])
def test_the_module_is_the_users_again(make: Any, algorithm: str) -> None:
    module = make().eval()
    frozen = next(module.parameters()).requires_grad_(False)
    flags = {name: p.requires_grad for name, p in module.named_parameters()}
    attributes = {*vars(module)}
    trainer(algorithm).fit(module, data(validation=rows(9)))
    assert module.training
    assert {name: p.requires_grad for name, p in module.named_parameters()} == flags
    assert frozen.equal(next(make().parameters()))
    assert {*vars(module)} == attributes
    assert getattr(module, "_trainer", None) is None
    for p in module.parameters():
        assert p.untyped_storage().nbytes() == p.nbytes
        assert p.is_leaf


def test_a_failing_fit_gives_the_module_back() -> None:
    class FailsLater:
        fits = 0

        def on_fit_start(self, federation: Any) -> None:
            self.fits += 1

        def on_round_end(self, federation: Any, metrics: Any) -> None:
            if self.fits == 2:
                raise KeyError("mine")

    module, fit = Lit(), trainer(callbacks=[FailsLater()])
    fit.fit(Lit(), data())
    with pytest.raises(KeyError, match="mine"):
        fit.fit(module, data())
    with pytest.raises(fl.UserError, match="no history"):  # not that of the fit before
        _ = fit.history
    assert {"log", "log_dict"}.isdisjoint(vars(module))
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in module.parameters())


def test_a_trainer_of_lightning_goes_on_with_it() -> None:
    module = Lit()
    trainer().fit(module, data())
    before = state(module)
    assert distance(lightning(module, rows(40), steps=3), before) > 0.01


def test_the_checkpoint_is_one_of_lightning() -> None:
    module = Lit(partial(AdamW, lr=0.01), dropout=0.3)
    given = data(validation=rows(9))
    run = trainer().fit(module, given)
    loaded = Lit.load_from_checkpoint(run.path / "model.ckpt")
    assert distance(loaded, module) == 0
    assert loaded.drop.p == 0.3
    other = Lit()
    scores = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False).validate(
        other, DataLoader([0], collate_fn=lambda _: rows(9)), run.path / "model.ckpt"
    )
    assert distance(other, module) == 0
    assert scores[0]["val_loss"] == pytest.approx(trainer().validate(module, given)["val_loss"])


def test_fit_goes_on_from_the_weights_and_makes_a_second_run() -> None:
    module, fit = Lit(), trainer()
    first = fit.fit(module, data())
    before = state(module)
    second = fit.fit(module, data())
    assert first.path != second.path
    assert fit.run is second
    assert distance(second.model(Lit(), round=0), before) == 0
    assert distance(module, before) > 0.01


def test_a_checkpoint_is_read_into_a_model_with_the_base_of_the_run() -> None:
    run = trainer("fedex_lora").fit(adapted(torch.float32), data())
    last = run.model(adapted(torch.float32))
    assert distance(run.model(adapted(torch.float32), round=2), last) == 0
    assert distance(run.model(adapted(torch.float32), round=0), adapted(torch.float32)) == 0
    other = adapted(torch.float32)
    other.get_parameter("inner.base_layer.bias").data += 1
    with pytest.raises(fl.UserError, match=r"inner\.base_layer\.bias is frozen"):
        run.model(other, round=2)


def test_a_checkpoint_is_read_into_a_model_with_tied_weights() -> None:
    def tied() -> nn.Module:
        encoder, decoder, norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.BatchNorm1d(6)
        decoder.weight = encoder.weight
        return nn.Sequential(encoder, norm, decoder, norm, nn.Linear(6, 3))

    given = fl.FederatedData((rows()["x"], rows()["label"]), clients=owners())
    run = trainer(rounds=1).fit(tied(), given)
    assert distance(run.model(tied(), round=1), run.model(tied())) == 0


def test_scores_of_fit_are_those_of_the_module_afterwards() -> None:
    module, fit, given = Lit(norm=False), trainer(), data(validation=rows(9), test=0.2)
    fit.fit(module, given)
    last = fit.history.iloc[-1]
    for scores in (fit.validate(data=given), fit.test(data=given), fit.test(module, given)):
        for name, value in scores.items():
            assert last[name] == pytest.approx(value, abs=1e-6)
    each = fit.test(data=given, per_client=True)
    assert [*each.index] == ["0", "1", "2", "3"]
    assert [*each] == ["test_loss"]


def test_a_callback_may_score_the_module_while_it_trains() -> None:
    given, module, found = data(validation=rows(9)), Lit(), list[float]()

    class Scores:
        def on_round_end(self, federation: Any, metrics: Any) -> None:
            found.append(fit.validate(module, given)["val_loss"])

    fit = trainer(callbacks=[Scores()])
    fit.fit(module, given)
    assert found == pytest.approx([*fit.history["val_loss"]], abs=1e-6)
    assert {"log", "log_dict"}.isdisjoint(vars(module))


def test_a_module_that_was_not_fitted_makes_its_parts_to_be_scored() -> None:
    stages = list[str]()

    class Late(Lit):
        def setup(self, stage: str) -> None:
            stages.append(stage)

        def configure_model(self) -> None:
            self.made = nn.ParameterList([torch.zeros(3)])

        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x) + self.made[0]

    given, fit = data(test=rows(9), validation=rows(9)), trainer(rounds=1)
    expected = trainer().test(Lit(), given)
    assert fit.test(Late(), given) == expected
    fit.validate(Late(), given)
    fit.fit(Late(), given)
    fit.test(data=given)  # which has its parts
    fit.run.model(Late())
    assert stages == ["test", "validate", "fit"]


def test_a_loss_goes_where_the_module_goes() -> None:
    module, loss = nn.Linear(6, 3), nn.CrossEntropyLoss(torch.ones(3))
    Task(module, loss).to(torch.device("meta"))
    assert module.weight.is_meta
    assert loss.weight.is_meta
