import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from fl_lightning.models import lenet, mlp, resnet18_gn


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_parameter_counts_are_the_papers():
    assert num_parameters(mlp(784, 10)) == 199_210
    assert num_parameters(mlp(784, 10, hidden=(100, 100))) == 89_610
    assert num_parameters(lenet()) == 797_962
    assert num_parameters(lenet(classes=100)) == 815_332
    assert num_parameters(resnet18_gn()) == 11_181_642
    assert num_parameters(resnet18_gn(classes=100)) == 11_227_812


def test_a_fresh_resnet_has_the_published_norm():
    norm = torch.cat([p.detach().flatten() for p in resnet18_gn().parameters()]).norm().item()
    assert norm == pytest.approx(111.7, abs=1)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: mlp(784, 7), (1, 28, 28)),
        (lambda: mlp(20, 7, hidden=()), (20,)),
        (lambda: lenet(7, channels=1, size=28), (1, 28, 28)),
        (lambda: lenet(7, size=16), (3, 16, 16)),
        (lambda: resnet18_gn(7, channels=1), (1, 32, 32)),
    ],
)
def test_outputs_have_one_column_per_class(model, shape: tuple[int, ...]):
    assert model()(torch.randn(2, *shape)).shape == (2, 7)


def test_the_last_layer_is_the_classifier():
    assert list(mlp(4, 2).state_dict())[-2:] == ["classifier.weight", "classifier.bias"]
    assert list(lenet().state_dict())[-2:] == ["classifier.weight", "classifier.bias"]


def test_lenet_refuses_tiny_images():
    with pytest.raises(ValueError, match="16x16"):
        lenet(size=15)


@pytest.mark.parametrize(
    ("model", "shape"), [(lambda: mlp(784, 10), (1, 28, 28)), (lenet, (3, 32, 32)), (resnet18_gn, (3, 32, 32))]
)
def test_gradients_under_vmap_equal_those_one_by_one(model, shape: tuple[int, ...]):
    module = model()
    x, y = torch.randn(2, 3, *shape), torch.randint(0, 10, (2, 3))
    parameters = {name: torch.stack([p.detach(), 0.9 * p.detach()]) for name, p in module.named_parameters()}

    def loss(parameters, x, y):
        return F.cross_entropy(functional_call(module, parameters, (x,)), y)

    together = vmap(grad(loss))(parameters, x, y)
    for client in range(2):
        alone = grad(loss)({name: p[client] for name, p in parameters.items()}, x[client], y[client])
        for name, g in alone.items():
            torch.testing.assert_close(together[name][client], g, rtol=1e-3, atol=1e-4)
