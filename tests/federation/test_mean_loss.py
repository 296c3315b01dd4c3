"""The mean loss over a data set and its derivatives."""

from functools import partial

import pytest
import torch
from analyzed import blobs, network
from torch import Tensor, nn
from torch.func import functional_call

from fl_lightning.data import DeviceDataset
from fl_lightning.federation.mean_loss import MeanLoss


def dense(module: nn.Module, loss: MeanLoss, data: DeviceDataset) -> tuple[Tensor, Tensor, Tensor]:
    """Value, gradient and Hessian of one pass over all samples."""

    def value(w: Tensor) -> Tensor:
        out = functional_call(module, loss.layout.named(w), (data.x,))
        return nn.functional.cross_entropy(out, data.y)

    w = loss.layout.read(module)
    module.eval()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        results = (
            value(w),
            torch.autograd.functional.jacobian(value, w),
            torch.autograd.functional.hessian(value, w),
        )
    module.train()
    return results


def test_batches_and_modes_do_not_matter_to_value_and_derivatives():
    module, data = network(), blobs()
    module[0].bias.requires_grad_(False)
    loss = MeanLoss(module, data, batch_size=7)
    w, v = loss.layout.read(module), torch.randn(loss.layout.size, dtype=torch.float64)
    value, gradient, hessian = dense(module, loss, data)
    state = {name: t.clone() for name, t in module.state_dict().items()}
    torch.testing.assert_close(loss(w), value)
    torch.testing.assert_close(loss.gradient(w), gradient)
    torch.testing.assert_close(loss.hvp(w, v), hessian @ v)
    assert all(part.training for part in module.modules())
    assert all(torch.equal(t, state[name]) for name, t in module.state_dict().items())


WEIGHTED = nn.CrossEntropyLoss(torch.tensor([0.1, 1.0, 3.0]).double(), label_smoothing=0.1)
LOSSES = nn.functional.cross_entropy, WEIGHTED, nn.CrossEntropyLoss(ignore_index=1)
PARTIAL = partial(nn.functional.cross_entropy, weight=WEIGHTED.weight, ignore_index=-100)


@pytest.mark.parametrize(
    "of_batch",
    [*LOSSES, PARTIAL, nn.NLLLoss(WEIGHTED.weight)],
    ids=["plain", "weighted", "another index", "options", "of log-probabilities"],
)
def test_targets_that_do_not_count_have_no_weight_in_the_mean(of_batch):
    """The first batch of four counts two targets, the second none, the third four."""
    module, x = nn.Linear(2, 3).double(), torch.randn(12, 2, dtype=torch.float64)
    dataset = DeviceDataset(x, torch.arange(12) % 3)
    loss = MeanLoss(module, dataset, batch_size=4, loss=of_batch)
    loss.data.y[loss.index[2:8]] = getattr(of_batch, "ignore_index", -100)
    value = of_batch(module(x), loss.data.y)
    gradient = torch.autograd.grad(value, [*module.parameters()])
    torch.testing.assert_close(loss(loss.weights), value)
    torch.testing.assert_close(loss.gradient(loss.weights), loss.layout.flatten(gradient))


@pytest.mark.parametrize("of_batch", [LOSSES[0], LOSSES[2]], ids=["plain", "another index"])
def test_many_weights_score_as_each_alone(of_batch):
    module, data = network(), blobs()
    loss = MeanLoss(module, data, batch_size=11, loss=of_batch)
    w = loss.layout.read(module)
    points = torch.stack([w, 2 * w, -w, 0 * w, w * torch.nan])
    scores = loss.scores(points)
    torch.testing.assert_close(scores[:, 0], torch.stack([*map(loss, points)]), equal_nan=True)
    module.eval()
    counts = data.y != getattr(of_batch, "ignore_index", -100)
    accuracy = (module(data.x).argmax(1) == data.y)[counts].double().mean()
    assert scores[0, 1] == accuracy
    assert scores[4, 1] == 0


def test_few_samples_are_the_same_random_ones_every_time():
    module, data = network(), blobs()
    few = MeanLoss(module, data, samples=10)
    assert torch.equal(few.index, MeanLoss(module, data, samples=10).index)
    assert len(few.index.unique()) == 10
    assert len(set(data.y[few.index].tolist())) == 3
    w, everything = few.layout.read(module), MeanLoss(module, data)
    assert few(w) != everything(w)
    with pytest.raises(ValueError, match=r"samples.*0"):
        MeanLoss(module, data, samples=0)
