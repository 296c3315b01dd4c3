"""Measures of the global model: in training, its sharpness, by class, and by client."""

from dataclasses import dataclass
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.callbacks.bases import (
    Measure,
    check_classes,
    check_test,
    defined,
    over_clients,
    rows_of_all,
)
from fl_lightning.callbacks.client_models import ClientModels, Model
from fl_lightning.callbacks.scoring import (
    Scorer,
    TrainingLoss,
    score,
    score_together,
    training_samples,
)
from fl_lightning.core.constraints import PositiveFloat, PositiveInt
from fl_lightning.core.vector import unit
from fl_lightning.data import DeviceDataset, Partition, own_test_split
from fl_lightning.errors import UserError
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.mean_loss import counted_samples, some_samples
from fl_lightning.federation.server import load_model
from fl_lightning.files import atomic, sync

TABLE = "clients.csv"
"""The file in the run's folder with a row for each client and measured round."""


@dataclass(eq=False)
class TrainingScores(Measure):
    """Adds `train/global_accuracy` and `train/global_loss`: the global model on clients' samples.

    `train/loss` is another number, the mean over local steps and local models.

    Args:
        samples: Number of random training samples; None is all.
    """

    samples: PositiveInt | None = None

    def measure(self, federation: Federation) -> Metrics:
        index, data = training_samples(federation, self.samples), federation.clients.dataset
        scores = score_together(federation, federation.load_global(), data, index)
        return {f"train/global_{name}": score for name, score in scores.items()}


@dataclass(eq=False)
class Sharpness(Measure):
    """Adds `sharpness/global`: how far the global loss rises, `L(w + rho F/|F|) - L(w)`.

    L is the mean loss over the clients' samples and F its gradient, as in FedLESAM's Figure 2
    (Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890).

    Args:
        rho: Radius.
        samples: Number of random training samples; None is all.
    """

    rho: PositiveFloat = 0.05
    samples: PositiveInt | None = None

    def measure(self, federation: Federation) -> Metrics:
        loss, w = TrainingLoss(federation, self.samples), federation.w.detach()
        ascent = unit(loss.gradient(w))
        return {"sharpness/global": loss(w + self.rho * ascent) - loss(w)}


class ClassAccuracy(Measure):
    """Adds the accuracy of the global model by class and over clients.

    `test/class_<name>` is the accuracy on the test samples of a class. A client's accuracy is the
    mean of these, weighted by the classes that it holds: what test samples like its own would give.
    `test/clients` is its mean over all clients, `test/clients_std` its standard deviation, and
    `test/clients_worst10` the mean over the worst tenth of the clients. Classes without a test
    sample do not count, nor does a client that holds no other.
    """

    def __init__(self, test: DeviceDataset, every: int = 10):
        super().__init__(every)
        check_classes(test, "ClassAccuracy")
        self.test = test

    def measure(self, federation: Federation) -> Metrics:
        test, classes, loss = self.test, self.test.classes, federation.loss
        index = counted_samples(loss, test, some_samples(len(test), None).to(test.device))
        fabric, y = federation.fabric, test.y[index]
        mine = slice(fabric.global_rank, None, fabric.world_size)
        right, *_ = score(federation.load_global(), test, index[mine], loss, fabric.autocast)
        hits = y[mine][right].bincount(minlength=len(classes)).double()
        federation.all_reduce_sum(hits)
        samples = y.bincount(minlength=len(classes))
        accuracy = (hits / samples.clamp(min=1)).cpu()
        by_class = zip(classes, accuracy.tolist(), samples.tolist(), strict=True)
        held = federation.clients.class_counts * (samples > 0).cpu()
        held = held[held.sum(1) > 0]
        of_client = (held.double() @ accuracy) / held.sum(1)
        worst = of_client.sort().values[: ceil(len(of_client) / 10)]
        return {
            **{f"test/class_{name}": share for name, share, known in by_class if known},
            "test/clients": of_client.mean().item(),
            "test/clients_std": of_client.std(correction=0).item(),
            "test/clients_worst10": worst.mean().item(),
        }


class EvaluateModels(Measure):
    """Adds accuracy and loss of other models than the server's, e.g. `test/accuracy@cohort`.

    The models are kept by a term, `ClientModels`, which the algorithm needs. They are scored
    with the global buffers.

    Args:
        models: The mean of the cohort's models, or of all clients' last models.

    Attributes:
        terms: The terms to add to the algorithm.
    """

    def __init__(
        self,
        test: DeviceDataset,
        models: tuple[Model, ...] = ("cohort", "clients"),
        every: int = 1,
    ):
        super().__init__(every)
        check_test(test, "EvaluateModels")
        self.test, self.models, self.terms = test, models, (ClientModels(models),)

    def measure(self, federation: Federation) -> Metrics:
        module, metrics = federation.load_global(), Metrics()
        terms = zip(federation.algorithm.terms, federation.server.states, strict=True)
        kept = next(states for term, states in terms if isinstance(term, ClientModels))
        for name in self.models:
            w = kept[f"mean_{name}"]
            load_model(module, federation.layout, w, federation.server.buffers)
            scores = score_together(federation, module, self.test)
            metrics |= {f"test/{score}@{name}": value for score, value in scores.items()}
        return metrics


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

    _continues = False  # whether rows can be added
    _start = 0  # the last round before this process

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
            fix = "take a fraction of each client's samples, such as FederatedData(test=0.2)"
            raise UserError(f"no client has test samples of its own: {fix}")
        self.samples = {k: own[k] for k in range(len(own)) if len(own[k])}
        owner = {k: int(test.domains[index[0]]) for k, index in self.samples.items()}
        self.directions = dict[str, bool]()  # of each scalar, whether larger values are better
        self._every_before = every
        self.owners = [train.domain_names[k if own_tests else owner[k]] for k in self.samples]

    def on_fit_start(self, federation: Federation) -> None:
        """Let the first measure drop the rows that a resumed run writes again."""
        self._continues, self._start = False, federation.round

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
            found = over_clients(f"clients/{name}", defined(values), larger=larger)
            self.directions |= {tag: larger for tag in found if not tag.endswith("_std")}
            metrics |= found
            for logger in fabric.loggers:
                if hasattr(logger, "log_histogram"):
                    logger.log_histogram(f"clients/{name}", values, federation.round)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The interval of the rounds so far, which a resumed run may change."""
        return {"every": self.every}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._every_before = state["every"]

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
            last_only = (rounds == self._start) & (rounds % self._every_before > 0)
            rows = concat([before[(rounds <= self._start) & ~last_only], rows])
        with atomic(self.file, "w") as whole:
            rows.to_csv(whole, index=False)
        self._continues = True
