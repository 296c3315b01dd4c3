import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.nn import functional as F

from fl_lightning.core import device
from fl_lightning.core.losses import IGNORED, cross_entropy


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_stacked_clients_have_torchs_bits_on_a_gpu(
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
