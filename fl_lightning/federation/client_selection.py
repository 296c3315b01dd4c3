"""Client selection by what the clients would learn, and the samplers by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.constraints import PositiveInt
from fl_lightning.federation.federation import Federation
from fl_lightning.federation.mean_loss import MeanLoss
from fl_lightning.federation.sampling import (
    BernoulliSampling,
    Fraction,
    SizeWeightedSampling,
    UniformSampling,
)


@dataclass(frozen=True, eq=False)
class PowerOfChoice(Fraction):
    """Of candidates, drawn in proportion to their sizes, those with the largest losses.

    The loss is that of the global model on the client's samples, in evaluation mode. The candidates
    compute it each round, and receive the model for it, which communication and gradients do not
    count. The cohort has `max(1, round(fraction N))` clients, which count equally in the paper:
    `--weighting uniform`. For terms, a client's probability to take part is the fraction.

    Args:
        fraction: Size of the cohort over the number of clients.
        sizes: Samples of each client, (num_clients,), positive.
        candidates: Number of candidates, the paper's d; at least the cohort's size is taken.

    References:
        Cho et al., AISTATS 2022, https://arxiv.org/abs/2010.01243
    """

    sizes: Tensor
    candidates: PositiveInt = 20

    def __call__(
        self, num_clients: int, seed: int, round: int, federation: Federation
    ) -> list[int]:
        """The cohort of a round."""
        size = self.largest(num_clients)
        share = min(1.0, max(self.candidates, size) / num_clients)
        candidates = SizeWeightedSampling(share, self.sizes)(num_clients, seed, round)
        w, clients = federation.w.detach(), federation.clients
        loss = MeanLoss(federation.load_global(), clients.dataset, 1, loss=federation.loss)
        losses = w.new_empty(len(candidates), dtype=torch.float64)
        for k, client in enumerate(candidates):
            loss.index = clients.partition[client].to(clients.dataset.device)
            losses[k] = loss(w)
        largest = losses.topk(size).indices.tolist()
        cohort = sorted(candidates[k] for k in largest)
        return federation.fabric.broadcast(cohort)  # ranks may round differently


SAMPLERS: dict[str, Callable[..., Any]] = {
    "fixed": UniformSampling,
    "bernoulli": BernoulliSampling,
    "weighted": SizeWeightedSampling,
    "power_of_choice": PowerOfChoice,
}
"""The samplers by the names of `--sampling`."""
