"""The wrappers under the Lightning Trainer and under Fabric."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from optimizers import (
    EXACT,
    assert_equal,
    batches,
    closure_of,
    network,
    same_bits,
    train,
    weights,
    wrappers,
)
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import SumMetric

from fl_lightning.optim import LESAM, SAM


class Classifier(LightningModule):
    """Counts training steps and records the gradient norms of the base optimizer's steps."""

    def __init__(self, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.model = network(dtype)
        self.passes, self.rates, self.norms = 0, [], []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        self.passes += 1
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = SAM(SGD(self.parameters(), lr=1.0, momentum=0.9), rho=0.1)
        optimizer.base.register_step_pre_hook(self.look)
        schedule = LambdaLR(optimizer, lambda step: 0.1 / (step + 1))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def look(self, optimizer: Optimizer, *_: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.norms.append(nn.utils.get_total_norm([p.grad for p in self.parameters()]).item())


def fit(lit: Classifier, checkpoint: Path | None = None, **settings: Any) -> Trainer:
    x, y = (torch.cat(parts) for parts in zip(*batches(3, lit.model[0].weight.dtype), strict=True))
    parts = ("checkpointing", "progress_bar", "model_summary")
    quiet: dict[str, Any] = {"logger": False, **{f"enable_{part}": False for part in parts}}
    trainer = Trainer(accelerator="cpu", max_epochs=2, **quiet, **settings)
    trainer.fit(lit, DataLoader(TensorDataset(x, y), batch_size=16), ckpt_path=checkpoint)
    return trainer


def test_trainer_takes_two_passes_a_step_and_equals_a_plain_loop():
    lit, model = Classifier(), network()
    trainer = fit(lit)
    assert trainer.global_step == 6
    assert lit.passes == 12
    assert lit.rates == pytest.approx([0.1 / (step + 1) for step in range(6)])

    optimizer = SAM(SGD(model.parameters(), lr=1.0, momentum=0.9), rho=0.1)
    for step, batch in enumerate(batches(3) * 2):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        train(model, optimizer, [batch])
    assert_equal(lit.model, model, **EXACT)


def test_trainer_clips_the_gradient_that_is_stepped_with():
    free, clipped = Classifier(), Classifier()
    fit(free)
    fit(clipped, gradient_clip_val=0.1)
    assert min(free.norms) > 0.1
    assert clipped.norms == pytest.approx([0.1] * 6, rel=1e-4)


def test_trainer_resumes_exactly_from_its_checkpoint(tmp_path: Path):
    whole, half, resumed = Classifier(), Classifier(), Classifier()
    fit(whole)
    fit(half, max_steps=3).save_checkpoint(tmp_path / "half.ckpt")
    fit(resumed, tmp_path / "half.ckpt")
    assert resumed.passes == 6
    assert_equal(resumed.model, whole.model)


class Normed(Classifier):
    """Has BatchNorm; SAM gets `buffers(self)`."""

    def __init__(self, buffers: Callable[[nn.Module], Any] = lambda lit: lit) -> None:
        super().__init__()
        self.given = buffers
        self.model.insert(1, nn.BatchNorm1d(8, dtype=torch.float64))

    def configure_optimizers(self) -> Optimizer:
        base = SGD(self.parameters(), lr=0.1, momentum=0.9)
        return SAM(base, rho=0.05, buffers=self.given(self))


FORMS = {
    "module": lambda model: model,
    "function": lambda model: model.buffers,
    "buffers": lambda model: model.buffers(),
}


@pytest.mark.parametrize("form", FORMS)
def test_batch_norm_counts_each_batch_once_with_the_buffers_of_the_lightning_module(form: str):
    lit = Normed(FORMS[form])
    fit(lit)
    assert (lit.passes, lit.model[1].num_batches_tracked) == (12, 6)


@pytest.mark.parametrize("form", [*FORMS, "none"])
def test_stochastic_weight_averaging_may_end_with_forward_passes_alone(form: str):
    lit, averaging = Normed(FORMS.get(form, lambda _: ())), StochasticWeightAveraging(0.1, 1)
    fit(lit, callbacks=[averaging])
    assert_equal(lit, averaging._average_model)
    norm, seen = lit.model[1], nn.BatchNorm1d(8, momentum=None, dtype=torch.float64)
    for x, _ in batches(3):
        seen(lit.model[0](x))
    torch.testing.assert_close(dict(norm.named_buffers()), dict(seen.named_buffers()), **EXACT)


def set_up_normed(form: Callable[[nn.Module], Any]) -> tuple[nn.Module, nn.Module, Optimizer]:
    """A model and SAM, then converted by Fabric; and the model as one forward pass leaves it."""
    model = nn.Sequential(network(torch.float32), nn.BatchNorm1d(3))
    optimizer = SAM(SGD(model.parameters(), lr=0.1), rho=0.5, buffers=form(model))
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    model, optimizer = fabric.setup(model, optimizer)
    expected = copy.deepcopy(model.module)
    expected(batches(1)[0][0])
    return model, expected, optimizer


@pytest.mark.parametrize("form", ["module", "function"])
def test_buffers_are_read_after_fabric_has_converted_the_model(form: str):
    model, expected, optimizer = set_up_normed(FORMS[form])
    train(model, optimizer, batches(1))
    assert same_bits(model.buffers(), expected.buffers())


def test_buffers_that_fabric_has_replaced_are_refused():
    model, _, optimizer = set_up_normed(FORMS["buffers"])
    with pytest.raises(ValueError, match=r"replaced buffers .* buffers=model instead"):
        train(model, optimizer, batches(1))


def fabric_train(
    fabric: Fabric, model: nn.Module, optimizer: Optimizer, data: list[tuple[Tensor, Tensor]]
) -> None:
    for x, y in data:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss)
            return loss

        optimizer.step(closure)


def test_an_autocast_around_a_step_casts_the_perturbed_weights():
    def losses(around: bool) -> list[float]:
        model, seen = network(torch.float32), list[float]()
        optimizer = SAM(SGD(model.parameters(), lr=1.0), rho=0.5)
        ((x, y),) = batches(1, torch.float32)

        def closure() -> None:
            optimizer.zero_grad()
            with nullcontext() if around else torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            seen.append(loss.item())

        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
                optimizer.step(closure)
        return seen

    assert losses(around=True) == pytest.approx(losses(around=False), abs=1e-4)


@wrappers
def test_fabric_equals_a_plain_loop_and_resumes_exactly(fabric: Fabric, wrap, tmp_path: Path):
    def set_up(seed: int) -> dict[str, Any]:
        model = network(seed=seed)
        model, optimizer = fabric.setup(model, wrap(SGD(model.parameters(), lr=0.1, momentum=0.9)))
        return {"model": model, "optimizer": optimizer}

    data, whole = batches(6), set_up(0)
    fabric_train(fabric, **whole, data=data[:3])
    fabric.save(tmp_path / "half.ckpt", whole)
    fabric_train(fabric, **whole, data=data[3:])

    plain = network()
    train(plain, wrap(SGD(plain.parameters(), lr=0.1, momentum=0.9)), data)
    assert_equal(whole["model"], plain)

    resumed = set_up(7)
    fabric.load(tmp_path / "half.ckpt", resumed)
    fabric_train(fabric, **resumed, data=data[3:])
    assert_equal(resumed["model"], plain)


def test_lesam_turns_also_through_fabrics_wrapper(fabric: Fabric):
    model, other = network(), network()
    zero, direction = [torch.zeros_like(p) for p in model.parameters()], weights(network(seed=3))
    model, optimizer = fabric.setup(model, LESAM(SGD(model.parameters(), lr=0.1), zero))
    optimizer.toward(direction, rho=0.5)
    fabric_train(fabric, model, optimizer, batches(2))
    train(other, LESAM(SGD(other.parameters(), lr=0.1), direction, rho=0.5), batches(2))
    assert_equal(model, other)


def test_accumulating_over_batches_is_refused_from_the_second_epoch_on():
    lit = Classifier()
    with pytest.raises(ValueError, match=r"accumulate_grad_batches=1"):
        fit(lit, callbacks=[GradientAccumulationScheduler({1: 2})])
    assert len(lit.norms) == 3


def test_trainer_trains_in_bf16_mixed():
    lit, start = Classifier(torch.float32), network(torch.float32)
    fit(lit, precision="bf16-mixed")
    x, y = batches(1, torch.float32)[0]
    assert F.cross_entropy(lit.model(x), y) < F.cross_entropy(start(x), y)
    assert lit.passes == 12


class Logged(Classifier):
    """Logs losses and counts samples in each pass, and in the first pass of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = nn.ModuleDict({name: SumMetric() for name in ("first", "every")})

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = super().training_step(batch, index)
        for name in ["first", "every"] if self.optimizers().first_pass else ["every"]:
            self.counts[name].update(len(batch[0]))
            self.log(name, loss, on_step=False, on_epoch=True)
            self.log(f"count {name}", self.counts[name], on_step=False, on_epoch=True)
        return loss


def test_the_first_pass_logs_the_loss_of_the_model_and_counts_each_sample_once():
    lit, plain = Logged(), network()
    trainer = fit(lit)
    optimizer = SAM(SGD(plain.parameters(), lr=1.0, momentum=0.9), rho=0.1)
    losses = []
    for step, (x, y) in enumerate(batches(3) * 2):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        losses.append(optimizer.step(closure_of(plain, optimizer, x, y)).item())
    logged = trainer.callback_metrics
    assert logged["first"].item() == pytest.approx(sum(losses[3:]) / 3)
    assert logged["every"] > logged["first"] + 0.001
    assert (logged["count first"], logged["count every"]) == (48, 96)
    assert trainer.optimizers[0].first_pass
