"""The scheduler of a LightningModule: the learning rate of each round."""

from dataclasses import dataclass
from math import isclose
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fl_lightning.core.curves import OfRound
from fl_lightning.errors import ModelError, first_sentence
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.training.call_texts import call_text, public


@dataclass(eq=False)
class Plateau:
    """The learning rate of the round to come, and the callback that steps a ReduceLROnPlateau.

    A round that does not record the score `monitor` leaves the rate.

    Attributes:
        scheduler: The scheduler, whose optimizer has the rate.
        group: The number of the parameter group whose rate it is.
        frequency: The rounds of a step.
        monitor: The score.
        strict: Whether a run that does not record it is refused.
    """

    scheduler: ReduceLROnPlateau
    group: int
    frequency: int
    monitor: str
    strict: bool

    def __call__(self, round: int, rounds: int) -> float:
        """The rate as it is now."""
        return float(self.scheduler.optimizer.param_groups[self.group]["lr"])

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Take a step with the first rank's score, unless a run of more rounds has none here."""
        recorded = metrics.keys() - federation.last_only
        if self.monitor in recorded and federation.round % self.frequency == 0:
            self.scheduler.step(federation.fabric.broadcast(metrics[self.monitor]))

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's, which has the rates."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the scheduler and its rates."""
        self.scheduler.load_state_dict(state)
        groups = self.scheduler.optimizer.param_groups
        for group, lr in zip(groups, self.scheduler.get_last_lr(), strict=True):
            group["lr"] = lr


def schedule(
    name: str, optimizer: Optimizer, number: int, options: dict[str, Any], rounds: int
) -> tuple[OfRound, str]:
    """The learning rate of each round of one parameter group, and the scheduler as a text.

    A scheduler is run ahead, one step a round, unless it waits for a score (see `Plateau`).

    Args:
        name: The class of the module.
        optimizer: The module's optimizer.
        number: The number of the group. Rates of the others are multiples of its.
        options: Lightning's options of the scheduler.
        rounds: The number of rounds.

    Raises:
        ModelError: If the scheduler takes other steps, changes more than the rate or the multiples,
            cannot be run ahead, or waits for an unnamed score.
    """
    usual: dict[str, Any] = {"interval": "epoch", "frequency": 1, "monitor": None, "strict": True}
    options = usual | options
    one, frequency, monitor = options["scheduler"], options["frequency"], options["monitor"]
    if options["interval"] != "epoch" or frequency < 1:
        raise ModelError(
            f"the scheduler of {name} has another interval than epochs: a federation takes one "
            "step a round, or in every frequency-th; leave out interval"
        )
    text = call_text(type(one), optimizer.param_groups[number] | public(one))  # has max_lr there
    text += f", frequency={frequency}" if frequency != 1 else ""
    if isinstance(one, ReduceLROnPlateau):
        if monitor is None:
            raise ModelError(
                f"the ReduceLROnPlateau of {name} has no monitor: return {{'optimizer': optimizer, "
                "'lr_scheduler': scheduler, 'monitor': 'val_loss'}, with a name that a step logs"
            )
        if len({float(group["lr"]) for group in optimizer.param_groups}) > 1 and any(one.min_lrs):
            raise ModelError(
                f"the ReduceLROnPlateau of {name} has min_lr, at which rates of parameter groups "
                "would change by other factors, but a federation scales all by one: leave it out"
            )
        plateau = Plateau(one, number, frequency, monitor, options["strict"])
        return plateau, f"{text}, monitor={monitor!r}"
    lrs = _rates(name, optimizer, number, one, frequency, rounds)
    return lambda t, _: lrs[min(t, rounds - 1)], text


def _rates(
    name: str, optimizer: Optimizer, number: int, scheduler: Any, frequency: int, rounds: int
) -> list[float]:
    optimizer.zero_grad(set_to_none=True)  # or steps would move the module's weights
    group, rates = optimizer.param_groups[number], list[float]()
    before = {k: v for k, v in group.items() if k not in ("params", "lr")}
    begun = [float(other["lr"]) for other in optimizer.param_groups]
    for round in range(1, rounds + 1):
        rates.append(float(group["lr"]))
        for other, first in zip(optimizer.param_groups, begun, strict=True):
            if not isclose(other["lr"] * begun[number], rates[-1] * first, rel_tol=1e-6):
                raise ModelError(
                    f"the scheduler of {name} changes the rates of parameter groups by other "
                    "factors, but a federation scales all by one: give one function, or eta_min=0"
                )
        if changed := [k for k, v in before.items() if group[k] != v]:
            raise ModelError(
                f"the scheduler of {name} changes {changed[0]} too, but a federation takes the "
                "learning rate of it alone: leave that out, as by cycle_momentum=False"
            )
        try:
            optimizer.step()
            if round % frequency == 0:
                scheduler.step()
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"optimizer or scheduler of {name} cannot take {rounds} steps ahead "
                f"({first_sentence(error)}): use others, or give lr="
            ) from error
    return rates
