"""Keyed dropout: the statistics of PyTorch's, with masks that depend on the key only."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torchvision.ops import StochasticDepth

from fl_lightning.core.dropout import DropoutMasks, new_key
from fl_lightning.core.randomness import derived_seed
from fl_lightning.core.substitution import substituted

COUNT = 200_000
NOISE = 5 / COUNT**0.5
"""Five standard deviations of a correlation of independent bits."""


def key(client: int, round: int = 0) -> int:
    """As `LocalTraining` makes them."""
    return derived_seed(0, "dropout", round, client)


def dropped(seed: int, p: float = 0.5, x: Tensor | None = None, draws: int = 1) -> Tensor:
    """What the last of several draws of one pass makes of `x`."""
    with drawing(new_key(seed)):
        for _ in range(draws):
            out = F.dropout(torch.ones(COUNT) if x is None else x, p)
    return out


@contextmanager
def drawing(visit: Tensor, batched: bool = False) -> Iterator[DropoutMasks]:
    """As in a forward pass of local training."""
    with substituted(batched), DropoutMasks(visit) as masks:
        yield masks


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


# ---------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_it_keeps_the_right_fraction_and_scales_it_up(p: float) -> None:
    out = dropped(key(0), p)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    assert abs(float((out > 0).double().mean()) - (1 - p)) < 5 * (p * (1 - p) / COUNT) ** 0.5


def test_p_0_keeps_all_and_p_1_drops_all_and_evaluation_is_the_identity() -> None:
    x, visit = torch.randn(5, 7), new_key(1)
    with drawing(visit) as masks:
        assert F.dropout(x, 0.0) is x
        assert F.dropout(x, 1.0).equal(torch.zeros(5, 7))
        assert nn.Dropout(0.5).eval()(x) is x
    assert masks.key is visit


def test_passes_draws_clients_and_rounds_have_unrelated_masks() -> None:
    visit = new_key(key(0))
    masks = {}
    for i in range(4):
        with drawing(visit) as of_pass:
            masks[f"pass {i}"] = F.dropout(torch.ones(COUNT)) > 0
            masks[f"pass {i}, second draw"] = F.dropout(torch.ones(COUNT)) > 0
        visit = of_pass.key
    masks |= {f"draw {i}": dropped(key(0), draws=i) > 0 for i in range(3, 7)}
    masks |= {f"client {i}": dropped(key(i)) > 0 for i in range(1, 4)}
    masks |= {f"round {i}": dropped(key(0, round=i)) > 0 for i in range(1, 4)}
    pairs = combinations(masks, 2)
    assert not [(a, b) for a, b in pairs if abs(correlation(masks[a], masks[b])) > NOISE]


@pytest.mark.parametrize("seed", [key(0), 0, 1, 2, 3, 2**32, 2**63 - 1])
def test_neighbors_are_dropped_independently_with_any_key(seed: int) -> None:
    kept = dropped(seed) > 0
    assert abs(float(kept.double().mean()) - 0.5) < NOISE
    for distance in (1, 2, 3, 4, 8, 28, 32, 64, 256, 1024):
        assert abs(correlation(kept[:-distance], kept[distance:])) < NOISE


def test_masks_stay_the_same_in_later_versions() -> None:
    """Dropout's runs repeat: a client's key and draws are part of a run's meaning."""
    visit, found = new_key(7), []
    for _ in range(2):
        with drawing(visit) as masks:
            found += [F.dropout(torch.ones(16), 0.5).bool().int().tolist() for _ in range(2)]
        visit = masks.key
    assert ["".join(map(str, row)) for row in found] == PINNED


PINNED = ["0011100000010010", "1000111111000110", "0110010101111010", "1000001101110001"]


def test_the_gradient_goes_where_the_values_went() -> None:
    x = torch.ones(100, requires_grad=True)
    out = dropped(5, p=0.2, x=x)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.equal(out.detach())


def test_channels_are_dropped_whole() -> None:
    with drawing(new_key(3)):
        out = F.dropout2d(torch.ones(20, 30, 4, 5), 0.3)
        depth = StochasticDepth(0.3, "row")(torch.ones(500, 4))
    assert out.flatten(2).unique(dim=-1).shape == (20, 30, 1)
    assert depth.unique(dim=-1).shape == (500, 1)
    assert 0.6 < float((depth > 0).double().mean()) < 0.8


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    with drawing(new_key(3)):
        out = F.alpha_dropout(torch.randn(COUNT), 0.3, training=True)
    assert abs(float(out.mean())) < 0.02
    assert abs(float(out.std()) - 1) < 0.02


def test_it_changes_in_place_where_it_is_asked_to() -> None:
    x = torch.ones(COUNT)
    with drawing(new_key(5)):
        F.dropout(x, 0.5, inplace=True)
    assert x.equal(dropped(5))


def test_under_vmap_each_client_has_the_masks_it_has_alone() -> None:
    x = torch.randn(4, 6, 3)

    def twice(visit: Tensor, x: Tensor) -> Tensor:
        passes = []
        for _ in range(2):
            with drawing(visit, batched=True) as masks:
                passes.append(F.dropout(x, 0.4))
            visit = masks.key
        return torch.stack(passes)

    visits = torch.stack([new_key(key(i)) for i in range(4)])
    together = vmap(twice)(visits, x)
    assert together.equal(torch.stack([twice(v, row) for v, row in zip(visits, x, strict=True)]))
    assert not together[:, 0].equal(together[:, 1])


# --------------------------------------------------------------------------------- substitution


def test_pytorch_is_itself_again_afterwards_and_in_other_threads() -> None:
    before = F.scaled_dot_product_attention, torch._VF.dropout, torch._VF.lstm
    seen: list[Tensor] = []

    def elsewhere() -> None:
        torch.manual_seed(4)
        seen.append(F.dropout(torch.ones(50)))

    with drawing(new_key(1), batched=True):
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
    assert (F.scaled_dot_product_attention, torch._VF.dropout, torch._VF.lstm) == before
    elsewhere()
    assert seen[0].equal(seen[1])


def heads(*shape: int) -> Tensor:
    return torch.randn(*shape, 5, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "scale": 0.3},
        {"attn_mask": torch.randn(5, 5, dtype=torch.float64)},
        {"attn_mask": torch.rand(2, 4, 5, 5) < 0.3},
        {"attn_mask": torch.zeros(5, 5, dtype=torch.bool)},
        {"enable_gqa": True},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_attention_that_can_be_batched_is_pytorchs(options: dict[str, Any]) -> None:
    groups = 2 if "enable_gqa" in options else 4
    q, k, v = heads(2, 4), heads(2, groups), heads(2, groups)
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    with drawing(new_key(1), batched=True):
        plain = F.scaled_dot_product_attention(q, k, v, **options)
        nearly = F.scaled_dot_product_attention(q, k, v, dropout_p=1e-9, **options)
    torch.testing.assert_close(plain, expected)
    torch.testing.assert_close(nearly, expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_one_by_one_are_pytorchs(kind: Any) -> None:
    net = kind(3, 4, num_layers=3, dropout=1e-9, bidirectional=True, batch_first=True).double()
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    expected, end = net.eval()(x)
    with drawing(new_key(1), batched=True):
        out, last = net.train()(x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last, end)
