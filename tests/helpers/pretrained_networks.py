"""Small pretrained networks as files, for tests of models that read them."""

from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from fl_lightning.models import vit_b32


def tiny_vit(image_size: int, num_classes: int = 1000) -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size, 32, 2, 2, 8, 16, num_classes=num_classes
    )


def tiny_vit_b32(*args, **options) -> nn.Module:
    """`vit_b32` around a network of two narrow layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchvision.models.vit_b_32", tiny_vit)
        return vit_b32(*args, **options)


def saved(network: nn.Module, folder: Path) -> str:
    """The path of the network's weights, running statistics included, all of them random."""
    state = {name: torch.rand(t.shape).to(t.dtype) for name, t in network.state_dict().items()}
    torch.save(state, folder / "weights.pt")
    return str(folder / "weights.pt")


def assert_same_but_the_head(model: nn.Module, path: str, head: str) -> None:
    loaded, given = model.state_dict(), torch.load(path)
    assert loaded.keys() == given.keys()
    for name, value in given.items():
        assert name.startswith(f"{head}.") or torch.equal(loaded[name], value)
