"""Weights of torchvision's networks, from a file or from torchvision."""

from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.errors import UserError

State = dict[str, Tensor]


def load_body(
    model: nn.Module,
    head: str,
    weights: str,
    imagenet: Any,
    adapt: Callable[[State], State] = lambda state: state,
) -> None:
    """Load pretrained weights into all of a network but its head.

    Args:
        model: One of torchvision's networks.
        head: The child that stays as it is. The head among the weights is not read.
        weights: `imagenet`, or the path of a file made by `torch.save(network.state_dict(), path)`.
        imagenet: Torchvision's entry for the ImageNet weights.
        adapt: Applied to the weights before they are loaded.

    Raises:
        UserError: If the weights are not available or do not fit.
    """
    own = {name: x for name, x in model.state_dict().items() if name.startswith(f"{head}.")}
    try:
        if weights == "imagenet":
            state = imagenet.get_state_dict(check_hash=True, weights_only=True)
        else:
            path = Path(weights).expanduser()
            state = torch.load(path, map_location="cpu", weights_only=True)
        # A plain dictionary has no version numbers, so that torchvision reads older names too
        body = {name: x for name, x in state.items() if not name.startswith(f"{head}.")}
        model.load_state_dict(adapt(body) | own)
    except Exception as error:  # other files fail in many ways
        reason = shorten(str(error).split("\n\t")[:2][-1].rstrip(". "), 100, placeholder=" ...")
        raise UserError(
            f"the weights {weights} do not fit {type(model).__name__} ({reason}): give none, or a "
            f"file made by torch.save(network.state_dict(), path), such as {imagenet.url}"
        ) from error
