"""KeyedDropout: the statistics of `nn.Dropout`, with masks that depend on the key only."""

from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fl_lightning.core.randomness import derived_seed
from fl_lightning.core.vector import Layout
from fl_lightning.executors import Executor
from fl_lightning.executors.dropout import KeyedDropout, use_keys

COUNT = 200_000


def at(key: int, p: float = 0.5) -> KeyedDropout:
    layer = KeyedDropout(p)
    layer.key.fill_(key)
    return layer


def mask(key: int, p: float = 0.5, count: int = COUNT) -> Tensor:
    return at(key, p)(torch.ones(count)) > 0


def key(client: int, round: int = 0, layer: int = 0) -> int:
    """As `Federation` and `Executor` make them."""
    return derived_seed(0, "dropout", round, client) + layer


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


NOISE = 5 / COUNT**0.5
"""Five standard deviations of a correlation of independent bits."""


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_it_keeps_the_right_fraction_and_scales_it_up(p: float) -> None:
    out = at(key(0), p)(torch.ones(COUNT))
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    assert abs(float((out > 0).double().mean()) - (1 - p)) < 5 * (p * (1 - p) / COUNT) ** 0.5


def test_p_0_keeps_all_and_p_1_drops_all_and_evaluation_is_the_identity() -> None:
    layer, x = at(1).eval(), torch.randn(5, 7)
    assert at(1, p=0.0)(x).equal(x)
    assert at(1, p=1.0)(x).equal(torch.zeros(5, 7))
    assert layer(x).equal(x)
    assert int(layer.key) == 1


def test_steps_clients_rounds_and_layers_have_unrelated_masks() -> None:
    layer, ones = at(key(0)), torch.ones(COUNT)
    masks = {f"step {i}": layer(ones) > 0 for i in range(4)}
    masks |= {f"client {i}": mask(key(i)) for i in range(1, 4)}
    masks |= {f"round {i}": mask(key(0, round=i)) for i in range(1, 4)}
    masks |= {f"layer {i}": mask(key(0, layer=i)) for i in range(1, 6)}
    pairs = combinations(masks, 2)
    assert not [(a, b) for a, b in pairs if abs(correlation(masks[a], masks[b])) > NOISE]


@pytest.mark.parametrize("key", [key(0), 0, 1, 2, 3, 2**32, 2**63 - 1])
def test_neighbors_are_dropped_independently_with_any_key(key: int) -> None:
    kept = mask(key)
    assert abs(float(kept.double().mean()) - 0.5) < NOISE
    for distance in (1, 2, 3, 4, 8, 28, 32, 64, 256, 1024):
        assert abs(correlation(kept[:-distance], kept[distance:])) < NOISE


def test_the_gradient_goes_where_the_values_went() -> None:
    x = torch.ones(100, requires_grad=True)
    out = at(5, p=0.2)(x)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(out.detach())


def test_under_vmap_each_client_has_the_masks_it_has_alone() -> None:
    keys, x = torch.tensor([key(i) for i in range(4)]), torch.randn(4, 6, 3)
    layer = KeyedDropout(0.4)

    def twice(k: Tensor, x: Tensor) -> Tensor:
        moved = {"key": k.clone()}
        return torch.stack([functional_call(layer, moved, (x,)) for _ in range(2)])

    def alone(k: int, x: Tensor) -> Tensor:
        own = at(k, 0.4)
        return torch.stack([own(x) for _ in range(2)])

    together = vmap(twice)(keys, x)
    assert together.equal(torch.stack([alone(int(k), row) for k, row in zip(keys, x, strict=True)]))
    assert not together[:, 0].equal(together[:, 1])


def test_use_keys_replaces_every_dropout_and_leaves_the_state_dict_alone() -> None:
    shared = nn.Dropout(0.5)
    inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.BatchNorm1d(2))
    model = nn.Sequential(inner, shared, nn.Linear(2, 2), shared, nn.Dropout2d(0.3)).eval()
    before = list(model.state_dict())
    assert use_keys(model) == ["0.1.key", "1.key", "3.key"]
    assert list(model.state_dict()) == before
    assert [m.p for m in model.modules() if isinstance(m, KeyedDropout)] == [0.1, 0.5, 0.5]
    assert not any(m.training for m in model.modules())
    assert isinstance(model[4], nn.Dropout2d)
    assert use_keys(model) == ["0.1.key", "1.key", "3.key"]


def test_every_visit_and_every_layer_has_a_key_of_its_own() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.Dropout(0.5), nn.Dropout(0.5))
    executor = Executor(model, Layout(model))
    keys = [
        list(executor.dropout_keys(derived_seed(0, "dropout", 0, client)).values())
        for client in range(3)
    ]
    assert len({int(k) for of_client in keys for k in of_client}) == 9
