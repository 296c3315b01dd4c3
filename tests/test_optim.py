"""SAM, ASAM, LESAM and transforms of one's own: in plain loops, under the Lightning Trainer and under Fabric."""

import copy
import io
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision as FabricMixedPrecision
from lightning.pytorch.plugins import MixedPrecision as TrainerMixedPrecision
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.optim import ASAM, LESAM, SAM, GradientTransform
from fl_lightning.term import TermError

EXACT = {"rtol": 0.0, "atol": 1e-12}
BASES = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "weight decay": partial(SGD, lr=0.1, momentum=0.5, weight_decay=0.1),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
}
WRAPPERS = {
    "sam": partial(SAM, rho=0.1),
    "asam": partial(ASAM, rho=0.5),
    "lesam": lambda base: LESAM(base, [torch.ones_like(p) for p in base.param_groups[0]["params"]], rho=0.1),
}
bases = pytest.mark.parametrize("base", BASES.values(), ids=BASES)
wrappers = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)

Gradients = list[Tensor]


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 4, generator=g, dtype=dtype), torch.randint(3, (16,), generator=g)) for _ in range(count)]


def closure_of(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def train(model: nn.Module, optimizer: Optimizer, data: list[tuple[Tensor, Tensor]]) -> nn.Module:
    for x, y in data:
        optimizer.step(closure_of(model, optimizer, x, y))
    return model


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same_bits(tensors: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(torch.equal(t, o) for t, o in zip(tensors, others, strict=True))


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> Gradients:
    return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))


def assert_equal(model: nn.Module, other: nn.Module, **tolerance: float) -> None:
    tolerance = tolerance or {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()), **tolerance)


def restored(state: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint file gives back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# What the methods compute


def sam_by_hand(model: nn.Module, g: Gradients, rho: float) -> Gradients:
    norm = sum(gi.square().sum() for gi in g).sqrt()
    return [rho * gi / norm for gi in g]


def asam_by_hand(model: nn.Module, g: Gradients, rho: float) -> Gradients:
    scales = [p.detach().abs() + 0.01 for p in model.parameters()]
    norm = sum((T * gi).square().sum() for T, gi in zip(scales, g, strict=True)).sqrt()
    return [rho * T**2 * gi / norm for T, gi in zip(scales, g, strict=True)]


@bases
@pytest.mark.parametrize(("wrap", "by_hand"), [(SAM, sam_by_hand), (ASAM, asam_by_hand)])
def test_ten_steps_equal_the_method_written_by_hand(wrap, by_hand, base):
    model, other = network(), network()
    train(model, wrap(base(model.parameters()), rho=0.2), batches(10))

    optimizer = base(other.parameters())
    for x, y in batches(10):
        before = weights(other)
        perturbation = by_hand(other, gradients(other, x, y), rho=0.2)
        with torch.no_grad():
            for p, e in zip(other.parameters(), perturbation, strict=True):
                p.add_(e)
        g = gradients(other, x, y)
        with torch.no_grad():
            for p, w, gi in zip(other.parameters(), before, g, strict=True):
                p.copy_(w)
                p.grad = gi
        optimizer.step()

    assert_equal(model, other, **EXACT)


@bases
@pytest.mark.parametrize("wrap", [partial(SAM, rho=0.0), partial(ASAM, rho=0.0)], ids=["sam", "asam"])
def test_radius_zero_is_the_base_optimizer_bit_for_bit(wrap, base):
    model, other = network(torch.float32), network(torch.float32)
    data = batches(5, torch.float32)
    train(model, wrap(base(model.parameters())), data)
    train(other, base(other.parameters()), data)
    assert_equal(model, other)


def test_lesam_takes_one_pass_at_the_weights_plus_rho_times_the_unit_direction():
    model = network()
    direction = [torch.randn_like(p) for p in model.parameters()]
    optimizer = LESAM(SGD(model.parameters(), lr=0.1), direction, rho=0.3)
    norm = torch.cat([d.reshape(-1) for d in direction]).norm()
    w, ((x, y),) = weights(model), batches(1)
    seen: list[list[Tensor]] = []
    compute = closure_of(model, optimizer, x, y)

    def closure() -> Tensor:
        seen.append(weights(model))
        return compute()

    optimizer.step(closure)
    (at,) = seen
    torch.testing.assert_close(at, [p + 0.3 * d / norm for p, d in zip(w, direction, strict=True)], **EXACT)


def test_lesam_with_a_zero_direction_is_the_base_optimizer_bit_for_bit():
    model, other = network(torch.float32), network(torch.float32)
    data = batches(5, torch.float32)
    zero = [torch.zeros_like(p) for p in model.parameters()]
    train(model, LESAM(SGD(model.parameters(), lr=0.1, momentum=0.9), zero), data)
    train(other, SGD(other.parameters(), lr=0.1, momentum=0.9), data)
    assert_equal(model, other)


def test_lesam_may_turn_to_another_direction():
    model, other = network(), network()
    one, two = ([torch.randn_like(p) for p in model.parameters()] for _ in range(2))
    turned = LESAM(SGD(model.parameters(), lr=0.1), one, rho=0.1)
    turned.toward(two, rho=0.2)
    train(model, turned, batches(2))
    train(other, LESAM(SGD(other.parameters(), lr=0.1), two, rho=0.2), batches(2))
    assert_equal(model, other)


def test_a_transform_of_your_own_sees_gradient_and_weights():
    """A proximal pull to zero is weight decay."""
    model, other = network(), network()
    pulled = GradientTransform(SGD(model.parameters(), lr=0.1), lambda oracle, w: oracle(w) + 0.2 * w)
    train(model, pulled, batches(3))
    train(other, SGD(other.parameters(), lr=0.1, weight_decay=0.2), batches(3))
    assert_equal(model, other, **EXACT)


def test_a_transform_need_not_ask_for_a_gradient():
    model = network()
    w = weights(model)
    optimizer = GradientTransform(SGD(model.parameters(), lr=0.5), lambda oracle, w: w)
    assert optimizer.step(lambda: pytest.fail("nobody asked")) is None
    torch.testing.assert_close(weights(model), [0.5 * p for p in w])


# Weights, gradients, buffers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@wrappers
def test_weights_come_back_bit_by_bit(wrap, dtype):
    model = network(dtype)
    before = weights(model)
    train(model, wrap(SGD(model.parameters(), lr=0.0)), batches(1, dtype))
    assert same_bits(model.parameters(), before)


def test_weights_and_buffers_come_back_when_the_second_pass_fails():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    optimizer = SAM(SGD(model.parameters(), lr=0.1), buffers=model.buffers())
    ((x, y),) = batches(1)
    passes = [closure_of(model, optimizer, x, y), partial(pytest.fail, "out of memory")]
    before = weights(model)
    with pytest.raises(pytest.fail.Exception, match="out of memory"):
        optimizer.step(lambda: passes.pop(0)())
    assert same_bits(model.parameters(), before)
    assert model[1].num_batches_tracked == 1


@pytest.mark.parametrize("wrap", [SAM, ASAM])
def test_running_statistics_move_once_a_step_as_by_one_forward_pass(wrap):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    other = copy.deepcopy(model)
    ((x, y),) = batches(1)
    train(model, wrap(SGD(model.parameters(), lr=0.1), buffers=model.buffers()), [(x, y)])
    other(x)
    assert model[1].num_batches_tracked == 1
    assert same_bits(model.buffers(), other.buffers())


def test_every_pass_of_a_step_sees_the_buffers_as_the_step_found_them():
    count, seen = torch.zeros(()), []
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1), buffers=[count])
    compute = closure_of(model, optimizer, *batches(1)[0])

    def closure() -> Tensor:
        seen.append(count.item())
        count.add_(1)
        return compute()

    for _ in range(2):
        optimizer.step(closure)
    assert seen == [0, 0, 1, 1]
    assert count == 2


def test_step_returns_the_loss_at_the_unperturbed_weights():
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1), rho=1.0)
    ((x, y),) = batches(1)
    expected = F.cross_entropy(model(x), y).item()
    assert optimizer.step(closure_of(model, optimizer, x, y)).item() == expected


def test_frozen_parameters_stay_and_do_not_count_in_the_norm():
    model = network()
    model[0].requires_grad_(False)
    frozen, head = weights(model[0]), copy.deepcopy(model[2])
    with torch.no_grad():
        features = [(model[:2](x), y) for x, y in batches(3)]
    train(model, SAM(SGD(model.parameters(), lr=0.1, weight_decay=0.1), rho=0.2), batches(3))
    train(head, SAM(SGD(head.parameters(), lr=0.1, weight_decay=0.1), rho=0.2), features)
    assert same_bits(model[0].parameters(), frozen)
    assert_equal(model[2], head, **EXACT)


def test_lesam_leaves_frozen_parameters_where_they_are():
    model = network()
    optimizer = LESAM(SGD(model.parameters(), lr=0.1), [torch.ones_like(p) for p in model.parameters()], rho=1.0)
    model[0].requires_grad_(False)
    frozen, compute, seen = weights(model[0]), closure_of(model, optimizer, *batches(1)[0]), []
    optimizer.step(lambda: (seen.append(weights(model[0])), compute())[1])
    torch.testing.assert_close(seen, [frozen], rtol=0, atol=0)


def test_parameters_outside_the_loss_are_skipped_as_the_base_skips_them():
    model = network()
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    train(model, SAM(SGD(model.parameters(), lr=0.1, weight_decay=0.1)), batches(2))
    assert torch.equal(model.unused, torch.ones(2, dtype=torch.float64))
    assert model.unused.grad is None


def test_param_groups_keep_their_own_rates():
    model, other = network(), network()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    train(model, SAM(SGD(groups, lr=0.1)), batches(1))
    train(other, SAM(SGD(other.parameters(), lr=0.1)), batches(1))
    assert_equal(model[0], network()[0])
    assert_equal(model[2], other[2])


@wrappers
def test_parameters_of_different_number_types_train_together(wrap):
    class Mixed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[1](self[0](x.float()).tanh().double())

    model = Mixed(nn.Linear(4, 8), nn.Linear(8, 3, dtype=torch.float64))
    before = weights(model)
    train(model, wrap(SGD(model.parameters(), lr=0.0)), batches(1))
    assert same_bits(model.parameters(), before)
    train(model, wrap(SGD(model.parameters(), lr=0.1, momentum=0.9)), batches(3))
    assert [p.dtype for p in model.parameters()] == [torch.float32] * 2 + [torch.float64] * 2
    assert not any(torch.equal(p, w) for p, w in zip(model.parameters(), before, strict=True))


# One optimizer, not two


@wrappers
@bases
def test_resuming_from_the_state_dict_equals_never_stopping(wrap, base):
    model, data = network(), batches(6)
    optimizer = wrap(base(model.parameters()))
    train(model, optimizer, data[:3])
    saved = restored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, data[3:])

    resumed = network(seed=7)
    optimizer = wrap(base(resumed.parameters()))
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert_equal(train(resumed, optimizer, data[3:]), model)


def test_lesams_direction_is_in_its_state_dict():
    model, other = network(), network()
    direction = [torch.randn_like(p) for p in model.parameters()]
    saved = LESAM(SGD(model.parameters(), lr=0.1), direction, rho=0.5).state_dict()
    resumed = LESAM(SGD(other.parameters(), lr=0.1), [torch.zeros_like(p) for p in other.parameters()])
    resumed.load_state_dict(restored(saved))
    train(other, resumed, batches(2))
    train(model, LESAM(SGD(model.parameters(), lr=0.1), direction, rho=0.5), batches(2))
    assert_equal(model, other)


def test_groups_state_and_defaults_are_those_of_the_base_also_after_loading():
    model = network()
    base = Adam(model.parameters())
    optimizer = SAM(base)
    train(model, optimizer, batches(1))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert optimizer.param_groups is base.param_groups
    assert len(base.param_groups) == 2
    assert optimizer.state is base.state
    assert optimizer.defaults is base.defaults
    assert restored(optimizer.state_dict())["state"].keys() == base.state_dict()["state"].keys()


@wrappers
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_copy_with_its_model_goes_on_alike_and_apart(wrap, clone):
    model, data = network(), batches(4)
    optimizer = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    train(model, optimizer, data[:2])
    other, copied = clone((model, optimizer))
    train(model, optimizer, data[2:])
    train(other, copied, data[2:])
    assert copied.param_groups is copied.base.param_groups is not optimizer.param_groups
    assert_equal(model, other)


def test_a_learning_rate_schedule_drives_the_base():
    model, other = network(), network()
    optimizer, base = SAM(SGD(model.parameters(), lr=1.0), rho=0.0), SGD(other.parameters(), lr=1.0)
    schedule, of_base = (LambdaLR(o, lambda step: 0.1 / (step + 1)) for o in (optimizer, base))
    for batch in batches(4):
        train(model, optimizer, [batch])
        train(other, base, [batch])
        schedule.step()
        of_base.step()
    assert optimizer.base.param_groups[0]["lr"] == schedule.get_last_lr()[0] == pytest.approx(0.1 / 5)
    assert_equal(model, other)


def test_one_cycle_schedules_rate_and_momentum_of_the_base():
    model = network()
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = SAM(base)
    schedule = OneCycleLR(optimizer, max_lr=0.4, total_steps=10)
    seen = []
    for batch in batches(9):
        train(model, optimizer, [batch])
        schedule.step()
        seen.append((base.param_groups[0]["lr"], base.param_groups[0]["momentum"]))
    assert max(seen)[0] == pytest.approx(0.4, rel=0.05)
    assert min(m for _, m in seen) == pytest.approx(0.85, rel=0.01)


def test_step_hooks_run_once_a_step():
    model = network()
    optimizer, calls = SAM(SGD(model.parameters(), lr=0.1)), []
    optimizer.register_step_post_hook(lambda *_: calls.append("wrapper"))
    optimizer.base.register_step_post_hook(lambda *_: calls.append("base"))
    train(model, optimizer, batches(2))
    assert calls == ["base", "wrapper"] * 2


# Lightning's Trainer, automatic optimization


class Classifier(LightningModule):
    """Counts its training steps and keeps the norm of each gradient that the base optimizer stepped with."""

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
    assert lit.passes == 12


def test_trainer_in_16_mixed_says_what_to_do():
    scaled = TrainerMixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match=r"SAM\.step needs a closure.*GradScaler.*'bf16-mixed'"):
        fit(Classifier(torch.float32), plugins=scaled)


def test_accumulating_over_batches_is_refused():
    with pytest.raises(ValueError, match=r"must zero the gradients.*accumulate_grad_batches=1"):
        fit(Classifier(), accumulate_grad_batches=2)


# Fabric


def fabric_train(fabric: Fabric, model: nn.Module, optimizer: Optimizer, data: list[tuple[Tensor, Tensor]]) -> None:
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


def test_fabric_trains_in_bf16_mixed():
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    model, start = network(torch.float32), network(torch.float32)
    model, optimizer = fabric.setup(model, SAM(SGD(model.parameters(), lr=0.1)))
    data = batches(1, torch.float32)
    fabric_train(fabric, model, optimizer, data * 5)
    x, y = data[0]
    assert F.cross_entropy(model(x), y) < F.cross_entropy(start(x), y)
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_fabric_in_16_mixed_is_refused_by_pytorch():
    scaled = FabricMixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    fabric = Fabric(accelerator="cpu", devices=1, plugins=scaled)
    model = network(torch.float32)
    model, optimizer = fabric.setup(model, SAM(SGD(model.parameters(), lr=0.1)))
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        fabric_train(fabric, model, optimizer, batches(1, torch.float32))


# Mistakes


def test_a_step_needs_a_closure():
    with pytest.raises(ValueError, match=r"SAM\.step needs a closure"):
        SAM(SGD(network().parameters(), lr=0.1)).step()


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_gets_our_sentence(fused: bool):
    model = network(torch.float32)
    optimizer, scaler = SAM(AdamW(model.parameters(), fused=fused)), torch.amp.GradScaler("cpu")
    ((x, y),) = batches(1, torch.float32)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    with pytest.raises(ValueError, match=r"GradScaler \(fp16, '16-mixed'\) cannot pass one on"):
        scaler.step(optimizer)


@pytest.mark.parametrize("wrap", [SAM, ASAM])
def test_a_closure_that_does_not_zero_the_gradients_is_refused(wrap):
    model = network()
    optimizer = wrap(SGD(model.parameters(), lr=0.1))
    ((x, y),) = batches(1)
    with pytest.raises(ValueError, match=r"the closure must zero the gradients"):
        optimizer.step(lambda: F.cross_entropy(model(x), y).backward())


def test_zeroing_in_place_is_as_good_as_setting_to_none():
    model, other = network(), network()
    data = batches(3)
    train(other, SAM(SGD(other.parameters(), lr=0.1)), data)
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    optimizer.zero_grad = partial(optimizer.zero_grad, set_to_none=False)  # type: ignore[method-assign]
    train(model, optimizer, data)
    assert_equal(model, other)


def test_a_loss_of_the_transforms_own_needs_a_closure_that_takes_it():
    model = network()
    optimizer = GradientTransform(SGD(model.parameters(), lr=0.1), lambda oracle, w: oracle.of(lambda b: b.loss)(w))
    with pytest.raises(ValueError, match=r"pass closure\(losses, taps\)"):
        train(model, optimizer, batches(1))


def test_a_direction_must_match_the_parameters():
    base = SGD(network().parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"one tensor for each parameter, \[\(8, 4\), .* but holds \[\(3,\)\]"):
        LESAM(base, [torch.zeros(3)])


def test_a_group_added_to_lesam_needs_a_direction():
    model = network()
    optimizer = LESAM(SGD(model[0].parameters(), lr=0.1), [torch.ones_like(p) for p in model[0].parameters()])
    optimizer.add_param_group({"params": list(model[2].parameters())})
    with pytest.raises(ValueError, match=r"without a direction.*toward"):
        train(model, optimizer, batches(1))
    optimizer.toward([torch.ones_like(p) for p in model.parameters()], rho=0.1)
    train(model, optimizer, batches(1))


def test_a_transform_must_return_a_vector_like_the_weights():
    model = network()
    with pytest.raises(TermError, match=r"the transform returned a tensor of shape \(2,\); .* shape \(67,\)"):
        train(model, GradientTransform(SGD(model.parameters(), lr=0.1), lambda oracle, w: w[:2]), batches(1))


def test_the_base_must_be_an_object():
    with pytest.raises(TypeError, match="base must be an optimizer object"):
        SAM(network().parameters(), SGD)  # type: ignore[arg-type]


def test_nothing_to_train_is_said():
    model = network().requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter of the optimizer requires a gradient"):
        train(model, SAM(SGD(model.parameters(), lr=0.1)), batches(1))
