"""Hessians, against dense and other computations; the loss on a plane and on a line."""

import pytest
import torch
from analyzed import blobs, network
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from fl_lightning.lab.analysis import (
    Hessian,
    MeanLoss,
    filter_normalized_axes,
    hessian,
    hessian_axes,
    interpolate,
    surface,
)
from fl_lightning.lab.analysis.curvature import lanczos


@pytest.fixture(scope="module")
def loss() -> MeanLoss:
    return MeanLoss(network(), blobs())


@pytest.fixture(scope="module")
def w(loss) -> Tensor:
    return loss.weights


@pytest.fixture(scope="module")
def dense(loss, w) -> Tensor:
    return torch.stack([loss.hvp(w, v) for v in torch.eye(len(w), dtype=w.dtype)])


@pytest.fixture(scope="module")
def computed(loss) -> Hessian:
    return hessian(loss, top=5, vectors=10, steps=15)


def test_eigenpairs_are_those_of_the_dense_hessian(computed, dense):
    torch.testing.assert_close(dense, dense.T)
    expected = torch.linalg.eigvalsh(dense).flip(0)[:5]
    torch.testing.assert_close(computed.eigenvalues, expected, rtol=1e-4, atol=0)
    assert computed.ratio == pytest.approx(float(expected[0] / expected[4]), rel=1e-4)
    residual = dense @ computed.eigenvectors.T - computed.eigenvectors.T * expected
    assert residual.norm() < 1e-3 * expected[0]


def test_trace_and_density_are_those_of_the_dense_hessian(computed, dense):
    eigenvalues = torch.linalg.eigvalsh(dense)
    assert abs(computed.trace - float(eigenvalues.sum())) < 4 * computed.trace_error
    width = 0.1 * float(eigenvalues[-1])
    ends = float(eigenvalues[0]) - 5 * width, float(eigenvalues[-1]) + 5 * width
    places = torch.linspace(*ends, 2000, dtype=torch.float64)
    density = computed.density(places, width)
    assert float(torch.trapezoid(density, places)) == pytest.approx(1, abs=1e-3)
    z = (places[:, None] - eigenvalues) / width
    expected = torch.exp(-z.square() / 2).mean(1) / (width * (2 * torch.pi) ** 0.5)
    assert (density - expected).abs().max() < 0.1 * expected.max()


def test_lanczos_ends_in_a_small_invariant_space():
    matrix = torch.diag(torch.tensor([3.0, 3.0, 1.0, 1.0], dtype=torch.float64))
    nodes, weights = lanczos(lambda v: matrix @ v, torch.ones(4, dtype=torch.float64), steps=4)
    torch.testing.assert_close(nodes[weights > 0], torch.tensor([1.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_the_same_seed_gives_the_same_numbers(loss):
    first, second = (hessian(loss, top=2, vectors=2, steps=4) for _ in range(2))
    assert torch.equal(first.eigenvalues, second.eigenvalues)
    assert first.trace == second.trace


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


@pytest.mark.filterwarnings("ignore")
def test_curvlinops_agrees():
    """Without LayerNorm, for which curvlinops 3.0.1 differs from finite differences."""
    curvlinops = pytest.importorskip("curvlinops")
    layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)
    module, data = nn.Sequential(*layers).double(), blobs()
    loss = MeanLoss(module, data, batch_size=7)
    batches = [(data.inputs(i), data.y[i]) for i in loss.index.split(10)]
    theirs = curvlinops.HessianLinearOperator(
        module.eval(), nn.CrossEntropyLoss(), [*module.parameters()], batches
    )
    v = torch.randn(loss.layout.size, dtype=torch.float64)
    torch.testing.assert_close(loss.hvp(loss.weights, v), theirs @ v, rtol=1e-4, atol=1e-8)
    top = eigsh(theirs.to_scipy(), 5, which="LA")[0][::-1].copy()
    eigenvalues = hessian(loss, top=5, vectors=1, steps=1).eigenvalues
    torch.testing.assert_close(eigenvalues, torch.from_numpy(top), rtol=1e-4, atol=0)
