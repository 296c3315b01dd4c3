from typing import Any

import pytest
import torch
from executors import STACKED
from problems import EVERY_ALGORITHM, classification, convolutional, federation, hard
from torch import Tensor
from torch.func import grad, grad_and_value, vmap
from torch.nn import functional as F

from fl_lightning.core import device, stacked_functions
from fl_lightning.core.losses import IGNORED, cross_entropy
from fl_lightning.core.substitution import substituted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (2, 3), "stride": 1, "dilation": 2, "ceil_mode": True},
    ],
    ids=str,
)
def test_stacked_clients_have_torchs_max_pooling_on_a_gpu(
    options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are, and as channels, how convolutions leave them."""
    x = torch.randn(2, 3, 4, 7, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    pooled = list[Any]()
    monkeypatch.setattr(device, "on_gpu", lambda x: True)
    plain = stacked_functions.stacked_max_pool2d

    def noting(x: Tensor, options: Any) -> Tensor:
        pooled.append(options)
        return plain(x, options)

    monkeypatch.setattr("fl_lightning.core.substitution.stacked_max_pool2d", noting)

    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        out = F.max_pool2d(x, **options)
        return out.square().sum(), out

    for at in (0, 1):
        clients, pass_of = x.movedim(0, at), vmap(grad(loss, has_aux=True), in_dims=at)
        theirs = pass_of(clients)
        with substituted(batched=True):
            ours = pass_of(clients)
        assert all(mine.equal(torchs) for mine, torchs in zip(ours, theirs, strict=True))
    assert len(pooled) == 2


def test_other_pooling_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one client, of unbatched images, and where places are asked for."""
    monkeypatch.setattr(device, "on_gpu", lambda x: True)
    x = torch.randn(2, 3, 4, 4)
    expected = F.max_pool2d(x, 2)
    with substituted(batched=True):
        assert F.max_pool2d(x, 2).equal(expected)
        assert vmap(lambda x: F.max_pool2d(x, 2))(x).equal(expected)
        out, places = vmap(lambda x: F.max_pool2d(x[None], 2, return_indices=True))(x)
    assert out[:, 0].equal(expected)
    assert places.shape == out.shape


@pytest.mark.parametrize("name", ["fedtoga", "fedsol", "moon"])
def test_stacked_clients_train_alike_with_a_gpus_rules(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    for on_gpu in (False, True):
        monkeypatch.setattr(device, "on_gpu", lambda x, on_gpu=on_gpu: on_gpu)
        clients = classification((10, 20, 10, 20, 10, 10), shape=(3, 4, 6))
        given = {"executor": STACKED, "module": convolutional(3), "clients": clients}
        run = federation(hard(EVERY_ALGORITHM[name]), **given)
        run.train_round()
        models.append(run.w.detach().clone())
    torch.testing.assert_close(*models, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_stacked_clients_have_torchs_cross_entropy_on_a_gpu(
    dtype: torch.dtype, dims: tuple[int | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(0)
    scores, y = 5 * torch.randn(3, 8, 4, generator=g), torch.randint(4, (3, 8), generator=g)
    y[:, 2] = y[1, 5] = IGNORED
    given = [t if dim == 0 else t[0] for t, dim in zip((scores.to(dtype), y), dims, strict=True)]

    theirs = vmap(grad_and_value(F.cross_entropy), in_dims=dims)(*given)
    monkeypatch.setattr(device, "on_gpu", lambda tensor: True)
    for ours, expected in zip(
        vmap(grad_and_value(cross_entropy), in_dims=dims)(*given), theirs, strict=True
    ):
        assert ours.equal(expected)
