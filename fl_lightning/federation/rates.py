"""The learning rates of visits: of a round, of each local step, and their sum."""

from math import ceil, inf
from textwrap import shorten

import torch
from torch import nn

from fl_lightning.core.curves import OfRound, rate_in
from fl_lightning.data import ClientData
from fl_lightning.errors import UserError
from fl_lightning.federation.server import Server


class LocalRates:
    """The clients' learning rates.

    Args:
        server: Gives the method as it is in this round.
        clients: The training data of the clients.

    Attributes:
        base_lr_sum: `lr_sum` of a client of mean size in the first round.
    """

    def __init__(self, server: Server, clients: ClientData):
        self.server = server
        vector = nn.Parameter(torch.zeros(1, device=server.w.device))
        own = float(server.algorithm.local([vector]).param_groups[0]["lr"])
        self._lr: OfRound = server.algorithm.lr or (lambda round, rounds: own)
        self._steps_per_epoch = ceil(clients.mean_size / clients.batch_size)
        self._steps = clients.steps or max(1, round(clients.epochs * self._steps_per_epoch))
        self.base_lr_sum = self.average_visit(0)["lr_sum"]

    def of_round(self, round: int) -> float:
        """The local learning rate of a round, before `Algorithm.rate`."""
        return rate_in(self._lr, "lr", round, self.server.rounds)

    def of_visit(self, round: int, steps: int) -> list[float]:
        """The learning rate of each step of a visit.

        Raises:
            UserError: If the algorithm's rate gives no learning rates.
        """
        lr, rate = self.of_round(round), self.server.algorithm.rate
        rates = [rate(step, steps) for step in range(steps)]
        if not (all(0 <= r < inf for r in rates) and any(rates)):
            raise UserError(
                f"the algorithm's rate gives {shorten(str(rates), 60)} for the {steps} steps of a "
                "visit: return numbers of at least 0, not all of them 0"
            )
        return [lr * float(r) for r in rates]  # a tensor is no key of equal rates

    def average_visit(self, round: int) -> dict[str, float]:
        """The facts of a visit of a client of mean size in a round (see `View`)."""
        return {
            "steps": self._steps,
            "epochs": self._steps / self._steps_per_epoch,
            "lr_sum": self.server.algorithm.lr_sum(self.of_visit(round, self._steps)),
            "size": 1.0,
            "weight": 1.0,
        }
