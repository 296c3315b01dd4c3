"""How good the clients' own models are, each on a test set like its own data."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fl_lightning.adaptation import Adaptation
from fl_lightning.data import Dataset, aligned
from fl_lightning.federation import Federation, Metrics
from fl_lightning.personal import Own


class Personalisation:
    """After the last round, lets every client fine-tune the global model and scores all of these models.

    A client's test set holds test samples in the proportions of its own classes (FedSOL's aligned test set). Adds
    `personal/accuracy_<e>` and `personal/spread_<e>`, mean and standard deviation over clients, for no fine-tuning
    (0, the global model, or what the algorithm keeps for the client) and each number of epochs; writes `personal.csv`.

    Args:
        test: The test set, on the device.
        epochs: After how many epochs of fine-tuning models are scored.
        path: The file, a row a client.
        lr: The learning rate of fine-tuning; None is that of the round to come.
        samples: Test samples a client has at most.
        batch_size: Samples a forward pass.
    """

    def __init__(
        self,
        test: Dataset,
        epochs: Sequence[int],
        path: Path,
        lr: float | None = None,
        samples: int = 1000,
        batch_size: int = 100,
    ):
        if any(e < 1 for e in epochs):
            raise ValueError(f"clients fine-tune for at least one epoch, not {min(epochs)}; 0 is always scored")
        self.test, self.epochs, self.path = test, [0, *epochs], path
        self.lr, self.samples, self.batch_size = lr, samples, batch_size

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Score, after the last round, on all ranks."""
        if federation.round < federation.rounds:
            return
        clients, fabric = federation.clients, federation.fabric
        tests = aligned(self.test.y.cpu(), clients.class_counts, self.samples, federation.seed)
        adaptation = Adaptation(federation, self.lr)
        block = adaptation.executor.width if federation.deterministic else 1  # who trains at once: not by the ranks
        mine = [i for i in range(clients.num_clients) if i // block % fabric.world_size == fabric.global_rank]
        scores = torch.zeros(clients.num_clients, len(self.epochs), dtype=torch.float64, device=federation.w.device)
        for column, epochs in enumerate(self.epochs):
            models = adaptation.models(mine, epochs)
            for client, (w, buffers) in zip(mine, models, strict=True):
                own = adaptation.own(client, w, buffers)
                scores[client, column] = self._accuracy(own, federation, tests[client])
        federation.add_up(scores)
        for e, of_clients in zip(self.epochs, scores.T, strict=True):
            metrics[f"personal/accuracy_{e}"] = float(of_clients.mean())
            metrics[f"personal/spread_{e}"] = float(of_clients.std(correction=0))
        if fabric.is_global_zero:
            self._write(scores.tolist(), tests.sizes.tolist())

    def _accuracy(self, own: Own, federation: Federation, index: Tensor) -> float:
        index, right = index.to(self.test.y.device), 0
        with torch.inference_mode():
            scores = federation.algorithm.predict(own)
            for batch in index.split(self.batch_size):
                right += int((scores(self.test.inputs(batch)).argmax(1) == self.test.y[batch]).sum())
        return right / len(index)

    def _write(self, scores: list[list[float]], sizes: list[int]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "test_samples", *(f"accuracy_{e}" for e in self.epochs)])
            for client, (row, size) in enumerate(zip(scores, sizes, strict=True)):
                writer.writerow([client, size, *row])
