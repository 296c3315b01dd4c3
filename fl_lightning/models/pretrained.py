"""Weights of torchvision's networks, from a file or from torchvision."""

from collections.abc import Callable
from pathlib import Path
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
        model: one of torchvision's networks.
        head: the child that stays as it is; the weights' own head, of any number of classes, is not
            read.
        weights: `imagenet`, or the path of a file made by `torch.save(network.state_dict(), path)`.
        imagenet: torchvision's entry for the ImageNet weights.
        adapt: changes the weights before they are loaded.

    Raises:
        ValueError: the weights cannot be had or do not fit.
    """
    state = _download(imagenet) if weights == "imagenet" else _read(weights)
    # A plain dictionary has no version numbers, so that torchvision reads its older names of layers too.
    body = {name: value for name, value in state.items() if not name.startswith(f"{head}.")}
    try:
        missing, unexpected = model.load_state_dict(adapt(body), strict=False)
    except (RuntimeError, ValueError) as error:
        missing, unexpected, wrong = [], [], str(error).split("\n\t")[:2][-1].rstrip(".")
    else:
        missing, wrong = [name for name in missing if not name.startswith(f"{head}.")], ""
    wrong = wrong or _first("it lacks", missing) or _first("it also holds", unexpected)
    if wrong:
        raise ValueError(
            f"the weights {weights} do not fit {type(model).__name__}: {wrong}; give the state_dict of torchvision's "
            "own network, imagenet or none."
        )


def _first(what: str, names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{what} {names[0]}{more}" if names else ""


def _download(imagenet: Any) -> State:
    try:
        state: State = imagenet.get_state_dict(check_hash=True, weights_only=True)
    except OSError as error:
        raise ValueError(
            f"torchvision's ImageNet weights could not be downloaded ({error}): fetch {imagenet.url} elsewhere and "
            "give its path as the weights, or choose weights none."
        ) from error
    return state


def _read(weights: str) -> State:
    path = Path(weights).expanduser()
    if not path.is_file():
        raise ValueError(
            f"weights is {weights}, but no such file exists: give a file's path, imagenet or none."
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # a file that is no state_dict fails in as many ways as there are files
        raise ValueError(
            f"the weights {weights} cannot be read ({type(error).__name__}): give a file made by "
            "torch.save(network.state_dict(), path)."
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()
    ):
        raise ValueError(
            f"the weights {weights} are no state_dict, but a {type(state).__name__} of other things: give a file made "
            "by torch.save(network.state_dict(), path)."
        )
    return state
