"""The loss on a plane and on a line."""

import pytest
import torch
from analyzed import blobs, network

from fl_lightning.lab.analysis import (
    MeanLoss,
    filter_normalized_axes,
    hessian_axes,
    interpolate,
    surface,
)


@pytest.fixture(scope="module")
def loss() -> MeanLoss:
    return MeanLoss(network(), blobs(), batch_size=11)


def test_a_surface_holds_the_loss_of_each_point(loss):
    w = loss.weights
    axes = filter_normalized_axes(loss)
    found = surface(loss, axes, points=5, span=0.5)
    assert found.steps.tolist() == [-0.5, -0.25, 0, 0.25, 0.5]
    for i, j in ((0, 0), (2, 2), (4, 1)):
        point = w + found.steps[i] * axes[0] + found.steps[j] * axes[1]
        assert float(found.loss[i, j]) == pytest.approx(float(loss(point)))
    assert found.accuracy.shape == (5, 5)


def test_random_directions_have_the_norms_of_the_filters(loss):
    w = loss.weights
    first, second = filter_normalized_axes(loss)
    assert not torch.equal(first, second)
    assert torch.equal(first, filter_normalized_axes(loss)[0])
    for name, weight in loss.layout.named(w).items():
        norms = loss.layout.named(first)[name].flatten(1).norm(dim=1) if weight.ndim > 1 else None
        if norms is None:
            assert not loss.layout.named(first)[name].any()
        else:
            torch.testing.assert_close(norms, weight.flatten(1).norm(dim=1))


def test_the_hessian_axes_are_the_steepest_curvatures(loss):
    w = loss.weights
    first, second = hessian_axes(loss)
    curvatures = [float(v @ loss.hvp(w, v)) for v in (first, second)]
    assert curvatures[0] > curvatures[1] > 0
    assert float(first @ second) == pytest.approx(0, abs=1e-3)


def test_a_line_ends_in_both_models_and_moves_their_statistics():
    first, second, data = network(), network(), blobs()
    with torch.no_grad():
        for t in (*second.parameters(), second[1].running_mean):
            t.mul_(-0.5)
    line = interpolate(first, second, data, points=3, span=0.5)
    assert line.places.tolist() == [-0.5, 0, 0.5, 1, 1.5]
    for place, model in ((1, first), (3, second)):
        loss = MeanLoss(model, data)
        expected = float(loss(loss.layout.read(model)))
        assert float(line.loss[place]) == pytest.approx(expected)
    start, middle, end = line.loss[1:4].tolist()
    assert line.barrier == pytest.approx(max(0, middle - (start + end) / 2))


def test_models_of_other_layers_are_refused():
    with pytest.raises(ValueError, match="layers"):
        interpolate(network(), torch.nn.Linear(2, 2), blobs())
