"""What an option does to a run, as its annotation says where it is declared.

`rounds: Annotated[PositiveInt, EXTENT] = 100` may change when a run is resumed; `lr: PositiveFloat`
may not.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar, get_type_hints

from fl_lightning.core.constraints import metadata

M = TypeVar("M")


class Effect(Enum):
    """What an option does to a run. One without an `Effect` changes the numbers."""

    NUMBERS = auto()
    """The numbers of the rounds change. A resumed run keeps the option."""

    EXTENT = auto()
    """More or fewer rounds are run or recorded. A resumed run may change the option."""

    ROUNDING = auto()
    """The last bits change. A resumed run keeps the option if it is deterministic."""

    NONE = auto()
    """Nothing that is recorded changes."""


NUMBERS, EXTENT, ROUNDING, NONE = Effect


class OfProgram:
    """Marks an option that runs share which train as one program (`FederatedTrainer.fit_many`)."""


@dataclass(frozen=True)
class With:
    """Marks an option that has no effect unless another one is given.

    Attributes:
        option: The other option.
        example: A value of it, for the note to the user.
        among: The values that give it an effect; if empty, any that is not none does.
    """

    option: str
    example: str
    among: tuple[str, ...] = ()


def marks(of: type, kind: type[M]) -> dict[str, M]:
    """The marks of one kind, such as `Effect` or `With`, on the fields of a dataclass, by field."""
    hints = get_type_hints(of, include_extras=True)
    return {name: m for name, hint in hints.items() for m in metadata(hint) if isinstance(m, kind)}
