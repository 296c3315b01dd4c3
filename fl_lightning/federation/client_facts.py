"""The facts of a cohort's clients, copied to the device together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.core.device import to_device_async
from fl_lightning.data import ClientData


def client_facts(
    clients: ClientData,
    cohort: Sequence[int],
    lr_sums: Sequence[float],
    weights: Sequence[float],
    probabilities: Tensor | None,
    like: Tensor,
) -> dict[str, Sequence[Tensor]]:
    """By the name of a fact, the values of the clients in a cohort (see `View`).

    Numbers get the dtype and the device of `like`. `probabilities` say how probably each client
    takes part in a round, where that differs.
    """
    index = torch.tensor(cohort)
    steps = [clients.num_steps(client) for client in cohort]
    per_epoch = [clients.steps_per_epoch(client) for client in cohort]
    numbers = {
        "steps": steps,
        "epochs": [n / each for n, each in zip(steps, per_epoch, strict=True)],
        "lr_sum": lr_sums,
        "size": (clients.sizes[index] / clients.mean_size).tolist(),
        "weight": weights,
    }
    if probabilities is not None:
        numbers["inclusion_probability"] = probabilities[index].tolist()
    labels = clients.labels_of(index).T
    table = torch.cat([torch.tensor([*numbers.values()], dtype=like.dtype), labels.to(like.dtype)])
    columns = to_device_async(table.T.contiguous(), like.device)
    return {
        **{name: columns[:, i].unbind() for i, name in enumerate(numbers)},
        "labels": columns[:, len(numbers) :].unbind(),
        "client": to_device_async(index, like.device).unbind(),
    }
