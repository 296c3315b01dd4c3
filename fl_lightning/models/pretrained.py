"""Weights of torchvision's networks, from a file or from torchvision."""

from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

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
        head: The child that stays as it is. The weights' own head, of any number of classes, is not
            read.
        weights: `imagenet`, or the path of a file made by `torch.save(network.state_dict(), path)`.
        imagenet: Torchvision's entry for the ImageNet weights.
        adapt: Changes the weights before they are loaded.

    Raises:
        ValueError: If the weights are not available or do not fit.
    """
    state = _download(imagenet) if weights == "imagenet" else _read(weights)
    own = {name: x for name, x in model.state_dict().items() if name.startswith(f"{head}.")}
    # A plain dictionary has no version numbers, so that torchvision reads older names of layers too
    body = {name: x for name, x in state.items() if not name.startswith(f"{head}.")}
    try:
        model.load_state_dict(adapt(body) | own)
    except (RuntimeError, ValueError) as error:
        reason = shorten(str(error).split("\n\t")[:2][-1].rstrip(". "), 100, placeholder=" ...")
        raise ValueError(
            f"the weights {weights} do not fit {type(model).__name__} ({reason}): "
            "give the state_dict of torchvision's own network, imagenet or none"
        ) from error


def _download(imagenet: Any) -> State:
    try:
        state: State = imagenet.get_state_dict(check_hash=True, weights_only=True)
    except OSError as error:
        raise ValueError(
            f"torchvision's ImageNet weights could not be downloaded ({error}): "
            f"give the path of {imagenet.url} as the weights, or weights none"
        ) from error
    return state


def _read(weights: str) -> State:
    path = Path(weights).expanduser()
    if not path.is_file():
        raise ValueError(f"weights is {weights}, which is no file: give a path, imagenet or none")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        fits = all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())
    except Exception as error:  # other files fail in many ways
        raise ValueError(
            f"the weights {weights} cannot be read ({type(error).__name__}): "
            "give a file made by torch.save(network.state_dict(), path)"
        ) from error
    if not fits:
        raise ValueError(
            f"the weights {weights} are no state_dict: "
            "give a file made by torch.save(network.state_dict(), path)"
        )
    return dict(state)
