"""Fabric's options and launchers' variables, without Lightning, which takes seconds to import."""

import os
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from typing_extensions import Doc

from fl_lightning.core.constraints import PositiveInt, check
from fl_lightning.errors import UserError


@dataclass(frozen=True)
class PrecisionOption:
    """The one of Fabric's options that belongs to a run's results."""

    precision: Annotated[
        Literal["32-true", "bf16-mixed"],
        Doc("Number type of the models' arithmetic; weights and duals stay in 32 bits."),
    ] = "32-true"


@dataclass(frozen=True)
class LaunchOptions(PrecisionOption):
    """Fabric's options for `python recipe.py`; `fabric run` takes them itself.

    Attributes:
        accelerator: The hardware: cpu, cuda, or auto, which is CUDA where there is a GPU for it,
            else the CPU.
        devices: Number of processes, or GPU ids such as 0,2, or auto, which is every GPU. A
            launcher such as torchrun decides it.
        num_nodes: Number of machines that this program is started on (docs/guides/ranks.md).
        strategy: How ranks communicate, e.g. auto or ddp.
    """

    accelerator: str = "auto"
    devices: str = "1"
    num_nodes: PositiveInt = 1
    strategy: str = "auto"

    def __post_init__(self) -> None:
        check(self)
        if not re.fullmatch(r"auto|-1|0*[1-9]\d*|\d+(,\d+)*,|\d+(,\d+)+", self.devices):
            raise UserError(
                "devices is a number of processes of at least 1, or GPU ids such as 0,2, or auto, "
                f"not {self.devices!r}"
            )
        if str(self.strategy).endswith(("_spawn", "_fork", "_notebook")):  # it may be an object
            raise UserError(
                f"strategy {self.strategy} starts a function in every rank, and a run starts the "
                "program: give strategy ddp, or devices 1 in a notebook"
            )


def under_fabric_run() -> bool:
    """Whether `fabric run`, which gives Fabric its options itself, started this process."""
    return os.environ.get("LT_CLI_USED") == "1"


def is_first_rank() -> bool:
    """Whether this process is the first rank; launchers say so before there is a Fabric."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only  # imports for seconds

    return getattr(rank_zero_only, "rank", 0) == 0


def launch_options(**values: Any) -> LaunchOptions:
    """The options of Fabric; under `fabric run`, which takes them itself, the precision alone.

    Raises:
        UserError: If a file has a precision that `fabric run` was not given.
    """
    launch = LaunchOptions(**values)
    if not under_fabric_run():
        return launch
    given: Any = os.environ.get("LT_PRECISION")
    if given:  # a flag goes over files
        return replace(launch, precision={"32": "32-true", "bf16": "bf16-mixed"}.get(given, given))
    if launch.precision != LaunchOptions.precision:
        raise UserError(
            f"fabric run takes the precision itself: add --precision {launch.precision} to it"
        )
    return launch
