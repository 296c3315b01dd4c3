"""Eigenvalues, trace and spectral density of a Hessian, against dense and other computations."""

import pytest
import torch
from analyzed import blobs, network
from torch import Tensor

from fl_lightning.lab.analysis import Hessian, MeanLoss, hessian
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


def test_more_eigenvalues_than_parameters_are_refused(loss):
    with pytest.raises(ValueError, match=r"top.*9999"):
        hessian(loss, top=9999)
