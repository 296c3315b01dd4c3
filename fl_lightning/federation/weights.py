"""The weights of a cohort in the mean update."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.weighting import Cohort
from fl_lightning.data import ClientData
from fl_lightning.errors import UserError


def aggregation_weights(algorithm: Algorithm, clients: ClientData, cohort: Sequence[int]) -> Tensor:
    """The aggregation weights of a cohort, (M,), 1 on average.

    Raises:
        UserError: If the algorithm's weights cannot be averaged with.
    """
    index = torch.tensor(cohort)
    sizes = clients.sizes[index] / clients.mean_size
    weights = algorithm.weight(Cohort(sizes, clients.labels_of(index)))
    if not isinstance(weights, Tensor) or weights.shape != sizes.shape:
        raise UserError(
            f"aggregation weights must be a tensor of shape ({len(cohort)},), not {weights}"
        )
    if not (weights.isfinite().all() and weights.min() >= 0 and weights.sum() > 0):
        raise UserError(
            "aggregation weights must be finite, not negative and not all zero, not "
            f"{weights.tolist()}"
        )
    weights = weights.to(sizes)
    return weights / weights.mean()
