"""A GPU computes what the CPU computes; skipped without a GPU."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from executors import BRANCHES, ROWS, STACKED, TRACED, Waiting
from lightning.fabric import Fabric
from lightning_modules import Lit, data, distance, rows, trainer
from problems import (
    EVERY_ALGORITHM,
    classification,
    classifier,
    convolutional,
    everything,
    federation,
    hard,
    round_after_round,
    trained,
)
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from fl_lightning import Algorithm, CropFlip, Federation, SequentialExecutor
from fl_lightning.callbacks import Evaluation, Personalization, PersonalModels
from fl_lightning.callbacks.scoring import forward_batch

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GRAPHS = {"branches": BRANCHES, "stacked graphs": ROWS}
EAGER = {"sequential": SequentialExecutor, "stacked": STACKED, **GRAPHS}
COMPILED = {
    "compiled": TRACED,
    "stacked, compiled": partial(STACKED, compiled=5),
    "branches, compiled": partial(GRAPHS["branches"], compiled=5),
}
EXECUTORS = EAGER | COMPILED
ALGORITHMS = ["fedavg", "scaffold", "fedtoga", "fedlesam_d", "fedsol", "fedssg", "fedrcl"]
ALGORITHMS += ["fednova", "perfedavg"]
if torch.version.cuda is None:  # the fake GPU of benchmarks/, whose time costs nothing
    ALGORITHMS = [*EVERY_ALGORITHM]


def images() -> dict[str, Any]:
    """In float64, which hides no TF32 or bf16; with crops, dropout, BatchNorm and pooling."""
    even = (10, 20, 10, 20, 10, 10)
    clients = classification(even, shape=(3, 4, 6), augment=CropFlip(padding=1, cutout=2))
    return {"module": convolutional(3), "clients": clients}


def fit_for(algorithm: str) -> dict[str, Any]:
    """Images, but for what scales up rounding, which is the gradient of a bias before BatchNorm."""
    if any(word in algorithm for word in ("adamw", "muon", "sophia")):
        return {"module": classifier(norm=False), "clients": classification()}
    return images()


class Sequences(Lit):
    """Reads the six numbers of a row one after another, by a GRU or a transformer."""

    def __init__(self, recurrent: bool):
        super().__init__(partial(AdamW, lr=0.01), norm=False)
        # without biases: that of keys has a gradient of rounding alone, which AdamW scales up
        options = {"batch_first": True, "bias": recurrent}
        self.inner = nn.Linear(1, 8)
        self.mixed = (
            nn.GRU(8, 8, **options)
            if recurrent
            else nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options)
        )

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mixed(self.inner(x[..., None]))
        return self.outer((mixed[0] if isinstance(mixed, tuple) else mixed)[:, -1])


MODULES = {
    "BatchNorm, momentum and a scheduler": lambda: Lit(partial(SGD, lr=0.1, momentum=0.9), step=1),
    "AdamW": lambda: Lit(partial(AdamW, lr=0.01), norm=False),
    "GRU": lambda: Sequences(recurrent=True),
    "transformer": lambda: Sequences(recurrent=False),
}


def on(device: str, algorithm: Algorithm, precision: Any = "32-true", **options: Any) -> Federation:
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    clients = options.pop("clients")
    clients.dataset = clients.dataset.to(fabric.device)
    return federation(algorithm, fabric=fabric, clients=clients, **options)


def assert_same(run: Federation, other: Federation, tolerance: float = 1e-8) -> None:
    mine, theirs = everything(run), everything(other)
    for name in theirs:
        torch.testing.assert_close(
            mine[name].cpu(), theirs[name].cpu(), rtol=0, atol=tolerance, msg=name
        )


CASES = [(name, executor) for executor in EAGER for name in ALGORITHMS] + [
    ("fedtoga", how) for how in COMPILED
]


@pytest.mark.parametrize(("name", "executor"), CASES)
def test_a_gpu_trains_the_model_of_the_cpu(name: str, executor: str) -> None:
    """With weight decay, without momentum: the compiled steps then have SGD in them."""
    local = partial(SGD, lr=0.05, weight_decay=0.01)
    algorithm = EVERY_ALGORITHM[name].with_outer_terms(local=local)
    there = round_after_round(on(DEVICE, algorithm, executor=EXECUTORS[executor], **fit_for(name)))
    assert there.w.device.type == DEVICE
    assert executor not in GRAPHS or there.local_training.executor.manner.endswith("CUDA graphs")
    assert_same(there, round_after_round(on("cpu", algorithm, **fit_for(name))))


@pytest.mark.parametrize("executor", EAGER)
def test_momentum_clipping_and_exact_sums_too(executor: str) -> None:
    algorithm = hard(EVERY_ALGORITHM["fedsmoo"])
    options = {"executor": EXECUTORS[executor], "deterministic": True, **images()}
    there = round_after_round(on(DEVICE, algorithm, **options))
    assert_same(there, round_after_round(on("cpu", algorithm, **images())))


def test_scores_are_those_of_the_cpu(tmp_path: Path) -> None:
    metrics: list[dict[str, float]] = [{}, {}]
    for device, scores in zip((DEVICE, "cpu"), metrics, strict=True):
        run = on(device, EVERY_ALGORITHM["knn_per"], rounds=2, **images())
        round_after_round(run, 2)
        test = run.clients.dataset
        Evaluation(test).on_round_end(run, scores)
        scores |= Personalization(PersonalModels(test), [1], tmp_path / f"{device}.csv").score(run)
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-6)
    assert len(metrics[0]) == 6


def test_a_run_continues_from_a_checkpoint(tmp_path: Path) -> None:
    """Also where rows lie on the disk, read ahead and written behind through pinned memory."""
    feddyn, on_disk = EVERY_ALGORITHM["feddyn"], {"state_dir": tmp_path / "rows"}
    run = round_after_round(on(DEVICE, feddyn, client_state_memory=8192, **on_disk, **images()), 2)
    run.store.retain()
    torch.save(run.state_dict(), tmp_path / "two.ckpt")
    again = on(DEVICE, feddyn, **on_disk, **images())
    again.load_state_dict(torch.load(tmp_path / "two.ckpt", map_location="cpu", weights_only=True))
    assert_same(round_after_round(again, 1), round_after_round(on(DEVICE, feddyn, **images()), 3))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_bf16_trains_towards_what_float32_finds(executor: str) -> None:
    clients = classification(dtype=torch.float32, shape=(3, 4, 6))
    given = {"module": convolutional(3, torch.float32), "executor": EXECUTORS[executor]}
    algorithm = EVERY_ALGORITHM["fedtoga"]
    run = round_after_round(on(DEVICE, algorithm, "bf16-mixed", clients=clients, **given), 3)
    exact = trained(algorithm, clients=classification(shape=(3, 4, 6)), module=convolutional(3))
    moved = (exact.w - exact.server.initial_w).norm()
    assert (run.w.detach().cpu().double() - exact.w).norm() < 0.1 * moved


@pytest.mark.parametrize("executor", GRAPHS)
def test_two_hundred_rounds_of_graphs_have_the_same_bits_twice(executor: str) -> None:
    """Streams that do not wait for each other would show."""
    scaffold, given = EVERY_ALGORITHM["scaffold"], {"rounds": 200, "executor": GRAPHS[executor]}
    runs = (on(DEVICE, scaffold, **given, **images()) for _ in range(2))
    first, second = (round_after_round(run, 200) for run in runs)
    assert first.w.equal(second.w)


@pytest.mark.parametrize("executor", EAGER)
def test_a_round_waits_for_the_device_once(executor: str) -> None:
    run = on(DEVICE, EVERY_ALGORITHM["fedtoga"], executor=EAGER[executor], rounds=4, **images())
    round_after_round(run, 3)  # warmed up, and captured
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.train_round()
    torch.cuda.set_sync_debug_mode("default")
    assert len([one for one in caught if "synchronizing" in str(one.message)]) == 1


def test_a_term_that_waits_for_the_device_trains_eagerly_and_leaves_the_allocator_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"executor": GRAPHS["branches"], **images()}
    there = round_after_round(on(DEVICE, Algorithm(Waiting()), **given))
    assert_same(there, round_after_round(on("cpu", Algorithm(Waiting()), **images())))
    assert "one after another" in capsys.readouterr().out
    torch.cuda.empty_cache()
    there = round_after_round(on(DEVICE, EVERY_ALGORITHM["fedavg"], **given))
    assert there.local_training.executor.manner


def test_a_gpu_scores_small_samples_in_large_batches() -> None:
    small = images()["clients"].dataset
    assert forward_batch(small.to(DEVICE), 100) == 1000


@pytest.mark.parametrize("executor", ["auto", "sequential", "stacked"])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_trained_in_place_as_on_the_cpu(name: str, executor: str) -> None:
    fitted, scores = [], []
    for device in (DEVICE, "cpu"):
        module = MODULES[name]().double()
        run = trainer(
            "scaffold", accelerator=device, executor=executor if device == DEVICE else "sequential"
        )
        run.fit(module, data(torch.float64, test=rows(20, torch.float64)))
        assert next(module.parameters()).device.type == "cpu"
        fitted.append(module)
        scores.append(run.history["test_loss"].iloc[-1])
    assert distance(*fitted) < 1e-8
    assert scores[0] == pytest.approx(scores[1], abs=1e-8)


def test_weights_of_classes_are_moved_to_the_gpu_and_back() -> None:
    loss, module = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0])), nn.Linear(6, 3)
    fit, given = trainer(loss=loss, lr=0.1, accelerator=DEVICE), data(test=0.3)
    for _ in range(2):  # the second begins with a trial on the CPU
        fit.fit(module, given)
        assert fit.test(data=given)["test/loss"] > 0
    assert loss.weight.device.type == module.weight.device.type == "cpu"
