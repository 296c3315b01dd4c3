"""The wrappers under the Lightning Trainer and under Fabric."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from optimizers import EXACT, assert_equal, batches, network, train, weights, wrappers
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

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
    """Two epochs of three batches."""
    x, y = (torch.cat(parts) for parts in zip(*batches(3, lit.model[0].weight.dtype), strict=True))
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
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


def test_trainer_trains_in_bf16_mixed():
    lit, start = Classifier(torch.float32), network(torch.float32)
    fit(lit, precision="bf16-mixed")
    x, y = batches(1, torch.float32)[0]
    assert F.cross_entropy(lit.model(x), y) < F.cross_entropy(start(x), y)
    assert all(p.dtype == torch.float32 for p in lit.model.parameters())
    assert lit.passes == 12


def test_trainer_in_16_mixed_is_refused_with_the_fix():
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match=r"SAM\.step .*GradScaler.*'bf16-mixed'"):
        fit(Classifier(torch.float32), plugins=scaled)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"accumulate_grad_batches": 2}, 0),
        ({"callbacks": [GradientAccumulationScheduler({1: 2})]}, 3),
    ],
    ids=["from the start", "in the second epoch"],
)
def test_accumulating_over_batches_is_refused(settings: dict[str, Any], steps: int):
    lit = Classifier()
    with pytest.raises(ValueError, match=r"accumulate_grad_batches=1"):
        fit(lit, **settings)
    assert len(lit.norms) == steps


def test_manual_optimization_without_a_closure_is_refused():
    class Manual(Classifier):
        automatic_optimization = False

        def training_step(self, batch: list[Tensor], index: int) -> None:
            self.manual_backward(super().training_step(batch, index))
            self.optimizers().step()

    with pytest.raises(ValueError, match=r"no gradient.*optimizer\.step\(closure\)"):
        fit(Manual())


class Normed(Classifier):
    """Has BatchNorm, and SAM as in README.md."""

    def __init__(self) -> None:
        super().__init__()
        self.model.insert(1, nn.BatchNorm1d(8, dtype=torch.float64))

    def configure_optimizers(self) -> Optimizer:
        return SAM(SGD(self.parameters(), lr=0.1, momentum=0.9), rho=0.05, buffers=self.buffers())


def test_batch_norm_counts_each_batch_once_with_the_buffers_of_the_lightning_module():
    lit = Normed()
    fit(lit)
    assert (lit.passes, lit.model[1].num_batches_tracked) == (12, 6)


def test_stochastic_weight_averaging_may_end_with_forward_passes_alone():
    lit, averaging = Normed(), StochasticWeightAveraging(0.1, swa_epoch_start=1)
    fit(lit, callbacks=[averaging])
    assert lit.model[1].num_batches_tracked == 3  # of the last epoch, which only counts
    assert_equal(lit, averaging._average_model)


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
