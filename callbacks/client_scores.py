"""Scores of the global model on each client's own test samples."""

from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.callbacks.bases import Measure, over_clients, rows_of_all
from fl_lightning.callbacks.scoring import Scorer
from fl_lightning.data import DeviceDataset, Partition, own_test_split
from fl_lightning.errors import UserError
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.files import atomic, sync

TABLE = "clients.csv"
"""The file in the run's folder with a row for each client and measured round."""


class ClientScores(Measure):
    """Scores the global model on each client's own test samples, by the metrics of the run.

    A client's test samples are those that were taken of it, or else have the owner (or domain) of
    all its training samples. Writes `clients.csv`, one row for each client and measured round, and
    adds for each metric `clients/<metric>`, `clients/<metric>_std` and `clients/<metric>_worst10`:
    mean and standard deviation over clients, and the mean over the worst tenth of them. A client
    does not count whose samples do not define the metric, such as AUROC of one class. TensorBoard
    shows the distribution.

    Raises:
        UserError: If no client has test samples of its own.
    """

    _continues = False

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
        own = own_tests or own_test_split(train, test, partition)
        if own is None or test.domains is None:
            raise UserError(
                "no client has test samples of its own: give the data a fraction of each client's "
                "samples as test, such as FederatedData(test=0.2)"
            )
        self.samples = {k: own[k] for k in range(len(own)) if len(own[k])}
        owner = {k: int(test.domains[index[0]]) for k, index in self.samples.items()}
        self.owners = [train.domain_names[k if own_tests else owner[k]] for k in self.samples]

    def on_fit_start(self, federation: Federation) -> None:
        """Let the first measure drop the rows that a resumed run writes again."""
        self._continues = False

    def measure(self, federation: Federation) -> Metrics:
        federation.load_global()
        fabric, mine, names = federation.fabric, dict[int, list[float]](), list[str]()
        clients = [*self.samples]
        for client in clients[fabric.global_rank :: fabric.world_size]:
            index = self.samples[client]
            scores = self.task.scores(self.test, "test", index, fabric.autocast)
            names, mine[client] = [*scores], [*scores.values()]
        names = fabric.broadcast(names)  # the first rank has a client
        table = rows_of_all(federation, mine, clients, len(names)).cpu()
        plain = {name.removeprefix("test/"): self.task.larger_is_better(name) for name in names}
        if fabric.is_global_zero:
            self._write(federation.round, [*plain], table)
        metrics = Metrics()
        for (name, larger), values in zip(plain.items(), table.T, strict=True):
            defined = values[~values.isnan()]
            counted = defined if len(defined) else values
            metrics |= over_clients(f"clients/{name}", counted, larger=larger)
            for logger in fabric.loggers:
                if hasattr(logger, "log_histogram"):
                    logger.log_histogram(f"clients/{name}", values, federation.round)
        return metrics

    def _write(self, round: int, names: list[str], table: Tensor) -> None:
        """Add the rows of a round; the first time without what an earlier attempt wrote for it."""
        from pandas import DataFrame, concat, read_csv

        samples = [len(index) for index in self.samples.values()]
        of_client = {"client": [*self.samples], "owner": self.owners, "samples": samples}
        scores = dict(zip(names, table.T.numpy(), strict=True))
        rows = DataFrame({"round": round, **of_client, **scores})
        if self._continues:  # to read all rows before takes longer each time
            with self.file.open("ab") as file:
                file.write(rows.to_csv(header=False, index=False).encode())
            sync(self.file)
            return
        if self.file.exists():
            lines, *_ = self.file.read_bytes().rpartition(b"\n")  # whole ones
            before: Any = read_csv(BytesIO(lines), dtype=str, keep_default_na=False)  # as written
            rounds = before["round"].astype(int)
            kept = (rounds < round) & (rounds % self.every == 0)
            rows = concat([before[kept], rows])
        with atomic(self.file, "w") as whole:
            rows.to_csv(whole, index=False)
        self._continues = True
