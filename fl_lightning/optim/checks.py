"""What an optimizer, its parameters and its closure must be for a GradientTransform."""

from collections.abc import Callable, Iterable
from functools import cache
from inspect import signature
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.core.oracle import Request
from fl_lightning.errors import UserError


def check_minimizes(optimizer: Optimizer) -> None:
    """Raise a UserError if the optimizer ascends: perturbations are made for descent."""
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise UserError("the optimizer has maximize=True: negate the loss instead")


def check_shards(params: Iterable[Tensor]) -> None:
    """Raise a UserError if a norm over the parameters would leave out other ranks' shards."""
    for p in params:
        if getattr(p, "_fsdp_flattened", False):  # set by FSDP1
            raise UserError(
                "FSDP1 gives each rank the norm of its own shard: use DDP, or FSDP2 "
                "(Lightning's ModelParallelStrategy)"
            )
        for mesh_dim, placement in enumerate(getattr(p, "placements", ())):  # of a DTensor
            ranks = p.device_mesh.size(mesh_dim)  # type: ignore[attr-defined]
            if placement.is_shard() and p.shape[placement.dim] % ranks:
                raise UserError(
                    f"a parameter of shape {tuple(p.shape)} cannot be sharded evenly over {ranks} "
                    f"ranks: make dimension {placement.dim} a multiple of {ranks}, or use DDP"
                )


@cache
def steps_alone(step: Callable[..., Any]) -> bool:
    """Whether an optimizer's step needs no closure; cached, since every visit asks."""
    return _takes(step, None)


def _takes(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def ask(closure: Callable[..., Any], request: Request) -> Any:
    """What a closure gives for a request.

    Raises:
        UserError: If it takes none.
    """
    if not _takes(closure, request):
        raise UserError(
            "the transform asks for another loss, a loss's value or a part of the batch: pass "
            "closure(request), as SequentialExecutor does"
        )
    return closure(request)
