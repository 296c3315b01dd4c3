"""The global model's scores: every test sample counts once, whoever scores it."""

from unittest.mock import patch

import pytest
import torch
from lightning.fabric import Fabric
from problems import classification, classifier, federation
from torch.nn import functional as F

from fl_lightning import Algorithm, DeviceDataset
from fl_lightning.callbacks import ClassAccuracy, Evaluation
from fl_lightning.callbacks.scoring import FORWARD_LIMITS, forward_batch
from fl_lightning.federation.mean_loss import MeanLoss
from fl_lightning.lab.analysis import predict

SIZES = [(7, 2), (7, 100), (2, 1), (1, 5), (13, 3)]
"""Samples and batch size; for three ranks they do not divide, or are too few."""


def samples(count: int) -> DeviceDataset:
    g = torch.Generator().manual_seed(count)
    y = torch.randint(3, (count,), generator=g)
    return DeviceDataset(
        torch.randn(count, 6, generator=g, dtype=torch.float64) + y[:, None], y, ("a", "b", "c")
    )


def scores(fabric: Fabric) -> list[dict[str, float]]:
    run, found = federation(Algorithm(), fabric=fabric), list[dict[str, float]]()
    for count, batch_size in SIZES:
        found.append({})
        with patch.dict(FORWARD_LIMITS, clear=True):
            Evaluation(samples(count), batch_size=batch_size).on_round_end(run, found[-1])
    return found


def test_scores_are_the_same_bits_on_one_two_and_three_ranks():
    alone = scores(Fabric(accelerator="cpu", devices=1))
    for ranks in (2, 3):
        assert Fabric(accelerator="cpu", devices=ranks, strategy="ddp_fork").launch(scores) == alone


@pytest.mark.parametrize(
    ("device", "shape", "targets", "size"),
    [
        ("cpu", (20,), (), 500),
        ("cpu", (20,), (1,), 500),
        ("cpu", (20,), (8,), 50),
        ("cpu", (28, 28), (), 83),
        ("cpu", (3, 32, 32), (), 50),
        ("cuda", (3, 32, 32), (), 1000),
        ("mps", (20,), (), 50),
    ],
)
def test_small_samples_of_one_target_are_scored_in_large_batches(
    device, shape, targets, size, monkeypatch
):
    data = DeviceDataset(torch.zeros(9, *shape), torch.zeros(9, *targets))
    monkeypatch.setattr(DeviceDataset, "device", torch.device(device))
    assert forward_batch(data, 50) == size


def test_tokens_are_scored_in_batches_of_the_training():
    """A model of them is far larger than its inputs."""
    assert forward_batch(DeviceDataset(torch.zeros(9, 8).long(), torch.zeros(9)), 50) == 50


def test_batches_of_a_sorted_test_set_mix_its_classes():
    """A network that normalizes by the batch would lose what a class is in a batch of its own."""
    y, batches = torch.arange(3).repeat_interleave(40), list[set[int]]()
    data = DeviceDataset(y[:, None].double().expand(-1, 6).contiguous(), y, ("a", "b", "c"))
    run = federation(Algorithm())
    run.prepare()
    network = run.load_global()
    network.register_forward_pre_hook(lambda _, inputs: batches.append({*inputs[0][:, 0].tolist()}))
    with patch.dict(FORWARD_LIMITS, clear=True):
        Evaluation(data, batch_size=20).measure(run)
        ClassAccuracy(data).measure(run)
    assert predict(network, data, batch_size=20).y.equal(y)
    MeanLoss(network, data, batch_size=20)(run.w.detach())
    assert len(batches) == 6 + 2 + 6 + 6
    assert all(len(batch) > 2 for batch in batches)


def test_the_loss_is_the_federations():
    run, data = federation(Algorithm(), loss=F.multi_margin_loss), samples(7)
    metrics = Evaluation(data, batch_size=3).measure(run)
    out = run.load_global()(data.x).detach().float()
    assert metrics["test/loss"] == pytest.approx(float(F.multi_margin_loss(out, data.y)), rel=1e-5)


def test_scores_are_of_the_precision_of_training():
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    clients, module = classification(dtype=torch.float32), classifier(dtype=torch.float32)
    run = federation(Algorithm(), fabric=fabric, clients=clients, module=module)
    metrics: dict[str, float] = {}
    Evaluation(clients.dataset).on_round_end(run, metrics)
    with torch.inference_mode():
        exact = module(clients.dataset.x)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = module(clients.dataset.x).float()
    exactly, expected = (float(F.cross_entropy(out, clients.dataset.y)) for out in (exact, rounded))
    assert metrics["test/loss"] == pytest.approx(expected, rel=1e-6) != exactly


def test_every_sample_counts_once(fabric):
    module = classifier().eval()
    for found, (count, _) in zip(scores(fabric), SIZES, strict=True):
        data = samples(count)
        out = module(data.x).detach()
        right, loss = (out.argmax(1) == data.y).double().mean(), F.cross_entropy(out, data.y)
        assert found["test/accuracy"] == pytest.approx(float(right), abs=1e-15)
        assert found["test/loss"] == pytest.approx(float(loss), rel=1e-6)  # scored in float32
