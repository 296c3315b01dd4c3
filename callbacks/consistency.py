"""A measure of one client: how its own loss and the global loss change."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.callbacks.client_measures import CohortMeasure
from fl_lightning.callbacks.measure import ClientScorer, TrainingLoss
from fl_lightning.executors import Outcome
from fl_lightning.federation.federation import Federation, Metrics


class Consistency(CohortMeasure):
    """Follows one client: how its own loss and the global loss change (FedSSG's Figure 2).

    After each visit but the first, `consistency/local` is `L_i(u_i)` minus its value at the end of
    the client's visit before, L_i being the loss over the client's samples and u_i its last model.
    `consistency/global` is the change of the global loss in the same round. The pairs are also
    rows of a file. FedSSG's paper (https://arxiv.org/abs/2509.13895) does not define its axes; this
    is our reading.

    Args:
        path: The file, consistency.csv.
        client: The client.
        samples: Take the global loss over so many random samples; None is all.
    """

    def __init__(self, path: Path, client: int = 0, samples: int | None = None):
        super().__init__(every=1)
        self.path, self.client, self.samples = path, client, samples
        self.pairs: list[list[float]] = []
        self.last: float | None = None

    def on_fit_start(self, federation: Federation) -> None:
        """Check the client.

        Raises:
            ValueError: If there is no such client.
        """
        if self.client >= federation.clients.num_clients:
            raise ValueError(
                f"client {self.client} cannot be measured: the last one is "
                f"{federation.clients.num_clients - 1}"
            )

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        """Take the loss of the received model."""
        super().on_round_start(federation, cohort)
        if self.client in cohort:
            loss = TrainingLoss(federation, self.samples)
            self._before = loss(federation.w.detach())

    def on_client_end(self, federation: Federation, client: int, outcome: Outcome) -> None:
        """Take the loss of the client's last model."""
        if client == self.client:
            data = federation.clients.dataset
            index = federation.clients.partition[client].to(data.y.device)
            self.rows[client] = [ClientScorer(federation)(outcome, data, index)[1]]

    def measure(self, federation: Federation) -> Metrics:
        """Compare with the visit before."""
        if self.client not in self.cohort:
            return {}
        after = TrainingLoss(federation, self.samples)(federation.w.detach())
        own = self.table(federation, 1)[self.cohort.index(self.client)].item()
        before, self.last = self.last, own
        if before is None:
            return {}
        self.pairs.append([federation.round, own - before, after - self._before])
        if federation.fabric.is_global_zero:
            self._write()
        return {"consistency/local": own - before, "consistency/global": after - self._before}

    def _write(self) -> None:
        aside = self.path.with_suffix(".part")
        with aside.open("w", newline="") as file:
            csv.writer(file).writerows([["round", "local", "global"], *self.pairs])
        aside.replace(self.path)

    def state_dict(self) -> dict[str, Any]:
        """The client, its last loss and the pairs so far."""
        return {"client": self.client, "last": self.last, "pairs": self.pairs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, if the run has followed the same client."""
        if state["client"] == self.client:
            self.last, self.pairs = state["last"], state["pairs"]
