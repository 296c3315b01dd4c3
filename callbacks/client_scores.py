"""Scores of the global model on each client's own test samples."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_lightning.callbacks.bases import Measure, over_clients
from fl_lightning.callbacks.scoring import Scorer
from fl_lightning.data import DeviceDataset, Partition
from fl_lightning.errors import UserError
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.files import atomic

TABLE = "clients.csv"
"""The file in the run's folder with a row for each client and measured round."""


class ClientScores(Measure):
    """Scores the global model on each client's own test samples, by the metrics of the run.

    A client's test samples are those that were taken of it, or else have the owner (or domain) of
    all its training samples. Writes `clients.csv`, one row for each client and measured round, and
    adds for each metric `clients/<metric>`, `clients/<metric>_std` and `clients/<metric>_worst10`:
    mean and standard deviation over clients, and the mean over the worst tenth of them. TensorBoard
    shows the distribution.

    Raises:
        UserError: If no client has test samples of its own.
    """

    def __init__(
        self,
        train: DeviceDataset,
        test: DeviceDataset,
        partition: Partition,
        task: Scorer,
        folder: Path,
        every: int = 10,
        own_tests: Partition | None = None,
    ):
        super().__init__(every)
        self.test, self.task, self.file = test, task, folder / TABLE
        self.samples, self.owners = _own_samples(train, test, partition, own_tests)

    def measure(self, federation: Federation) -> Metrics:
        federation.load_global()
        fabric, mine, names = federation.fabric, dict[int, list[float]](), list[str]()
        order = [*self.samples]
        for place in range(fabric.global_rank, len(order), fabric.world_size):
            index = self.samples[order[place]]
            scores = self.task.scores(self.test, "test", index, fabric.autocast)
            names, mine[place] = [*scores], [*scores.values()]
        names = fabric.broadcast(names)  # the first rank has a client
        table = torch.zeros(len(order), len(names), dtype=torch.float64)
        for place, values in mine.items():
            table[place] = torch.tensor(values)
        table = table.to(federation.w.device)
        federation.all_reduce_sum(table)
        plain = {name.removeprefix("test/"): self.task.larger_is_better(name) for name in names}
        if fabric.is_global_zero:
            self._write(federation.round, [*plain], table.cpu())
        metrics = Metrics()
        for (name, larger), values in zip(plain.items(), table.cpu().T, strict=True):
            metrics |= over_clients(f"clients/{name}", values, larger=larger)
            for logger in fabric.loggers:
                if hasattr(logger, "log_histogram"):
                    logger.log_histogram(f"clients/{name}", values, federation.round)
        return metrics

    def _write(self, round: int, names: list[str], table: Tensor) -> None:
        """Add the rows of a round, without what an earlier attempt wrote for it or later."""
        from pandas import DataFrame, concat, read_csv

        samples = [len(index) for index in self.samples.values()]
        of_client = {"client": [*self.samples], "owner": self.owners, "samples": samples}
        scores = dict(zip(names, table.T.numpy(), strict=True))
        rows = DataFrame({"round": round, **of_client, **scores})
        if self.file.exists():
            before: Any = read_csv(self.file, dtype=str, keep_default_na=False)  # as it is written
            rounds = before["round"].astype(int)
            kept = (rounds < round) & (rounds % self.every == 0)
            rows = concat([before[kept], rows])
        with atomic(self.file, "w") as file:
            rows.to_csv(file, index=False)


def _own_samples(
    train: DeviceDataset, test: DeviceDataset, partition: Partition, own_tests: Partition | None
) -> tuple[dict[int, Tensor], list[str]]:
    """The positions of each client's test samples, and its owner; not of clients without any."""
    found, owners = dict[int, Tensor](), list[str]()
    if own_tests is not None:  # a sample of several clients is of each
        found = {k: own_tests[k] for k in range(len(own_tests)) if len(own_tests[k])}
        owners = [train.domain_names[k] for k in found]
    elif train.domains is not None and test.domains is not None:
        owner = test.domains.cpu()
        order, sizes = owner.argsort(stable=True), owner.bincount(minlength=len(train.domain_names))
        of_domain = order.split(sizes.tolist())
        held = train.domains.cpu()[partition.indices]
        first = held[partition.offsets[:-1]]
        mixed = partition.where(held != first.repeat_interleave(partition.sizes)).sizes > 0
        known = [(k, d) for k, d in enumerate(first.tolist()) if len(of_domain[d]) and not mixed[k]]
        found = {k: of_domain[d] for k, d in known}
        owners = [train.domain_names[d] for _, d in known]
    if not found:
        raise UserError(
            "no client has test samples of its own: give the data a fraction of each client's "
            "samples as test, such as FederatedData(test=0.2)"
        )
    return found, owners
