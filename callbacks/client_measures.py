"""Measures of the clients of a round: their models, losses and kept states."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_lightning.analysis.mean_loss import some_samples
from fl_lightning.callbacks.measure import (
    ClientScorer,
    Measure,
    TrainingLoss,
    score_together,
    write_csv,
)
from fl_lightning.core.term import States
from fl_lightning.data import DeviceDataset
from fl_lightning.executors import Outcome
from fl_lightning.federation.federation import Federation, Metrics


class CohortMeasure(Measure):
    """A measure with a row of numbers for each client of the cohort.

    Attributes:
        cohort: The clients of the round.
        due: Whether the round is measured.
        rows: The rows of the clients that this rank has trained, by client.
    """

    cohort: Sequence[int]
    due: bool
    rows: dict[int, list[float]]

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        """Begin a round."""
        self.cohort, self.rows = cohort, {}
        self.due = self.is_due(federation, federation.round + 1)

    def on_last_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Measure nothing: an early end is known after the clients' visits only."""

    def counted(self, federation: Federation) -> list[int]:
        """The clients of the round but for those skipped."""
        return [client for client in self.cohort if client not in federation.skipped]

    def table(self, federation: Federation, width: int) -> Tensor:
        """The rows of all counted clients, (M, width) float64, from those of all ranks."""
        rows = [self.rows.get(client, [0.0] * width) for client in self.counted(federation)]
        table = torch.tensor(rows, device=federation.w.device).double().reshape(len(rows), width)
        federation.all_reduce_sum(table)
        return table


class LocalModels(CohortMeasure):
    """Adds the accuracy of the cohort's local models on the whole test set.

    `test/local` is the mean over the cohort, `test/local_std` the standard deviation, and
    `test/forgetting` what local training lost: the accuracy of w^t minus that mean. FedSOL's
    Figure 7 (Lee et al., CVPR 2024, https://arxiv.org/abs/2308.12532).

    Args:
        test: The test set, on the device.
    """

    def __init__(self, test: DeviceDataset, every: int = 10):
        super().__init__(every)
        self.test, self._index = test, some_samples(len(test), None).to(test.y.device)

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        """Score the received model."""
        super().on_round_start(federation, cohort)
        if self.due:
            received = federation.load_global()
            self._received, _ = score_together(federation, received, self.test)
            self._scorer = ClientScorer(federation)

    def on_client_end(self, federation: Federation, client: int, outcome: Outcome) -> None:
        """Score a client's last model."""
        if self.due:
            self.rows[client] = [self._scorer(outcome, self.test, self._index)[0]]

    def measure(self, federation: Federation) -> Metrics:
        """Mean and deviation over the cohort."""
        accuracy = self.table(federation, 1)
        mean = accuracy.mean().item()
        return {
            "test/local": mean,
            "test/local_std": accuracy.std(correction=0).item(),
            "test/forgetting": self._received - mean,
        }


class StateNorms(CohortMeasure):
    """Adds the norms of the states that a method keeps, such as duals and control variates.

    `dual/<name>` is the mean L2 norm over the cohort of a state of the clients, after their visits,
    or the norm of a state of the server. Single numbers are left out. Where two terms have states
    of one name, the term's comes before it.
    """

    def on_client_end(self, federation: Federation, client: int, outcome: Outcome) -> None:
        """Measure a client's states."""
        if self.due:
            kept = _kept(federation, "client", outcome.states)
            self.rows[client] = [float(state.norm()) for state in kept.values()]

    def measure(self, federation: Federation) -> Metrics:
        """Average over the cohort, and add the server's states."""
        initial = federation.local_training.states(self.cohort[0])
        tags = [*_kept(federation, "client", initial)]
        means = self.table(federation, len(tags)).mean(0).tolist()
        of_server = _kept(federation, "server", federation.server.states)
        of_clients = dict(zip(tags, means, strict=True))
        return of_clients | {tag: float(state.norm()) for tag, state in of_server.items()}


def _kept(federation: Federation, lifetime: str, states: Sequence[States]) -> dict[str, Tensor]:
    """The vectors among the states of one lifetime, by tag."""
    terms = federation.algorithm.terms
    often = Counter(name for term in terms for name in (*term.client, *term.server))
    return {
        f"dual/{type(term).__name__}.{name}" if often[name] > 1 else f"dual/{name}": own[name]
        for term, own in zip(terms, states, strict=True)
        for name in getattr(term, lifetime)
        if own[name].ndim and "measure" not in term.roles
    }


class Consistency(CohortMeasure):
    """Follows one client: how its own loss and the global loss change (FedSSG's Figure 2).

    After each visit but the first, `consistency/local` is `L_i(u_i)` minus its value at the end of
    the client's visit before, L_i being the loss over the client's samples and u_i its last model.
    `consistency/global` is the change of the global loss in the same round. FedSSG's paper
    (https://arxiv.org/abs/2509.13895) does not define its axes; this is our reading.

    Args:
        path: The file, consistency.csv.
        client: The client.
        samples: Number of random samples of the global loss; None is all.
    """

    def __init__(self, path: Path, client: int = 0, samples: int | None = None):
        super().__init__(every=1)
        self.path, self.client, self.samples = path, client, samples
        self.pairs: list[list[float]] = []
        self.last: float | None = None

    def on_fit_start(self, federation: Federation) -> None:
        """Raise a ValueError if there is no such client."""
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
        counted = self.counted(federation)
        if self.client not in counted:
            return {}
        after = TrainingLoss(federation, self.samples)(federation.w.detach())
        own = self.table(federation, 1)[counted.index(self.client)].item()
        before, self.last = self.last, own
        if before is None:
            return {}
        found = {"consistency/local": own - before, "consistency/global": after - self._before}
        self.pairs.append([federation.round, *found.values()])
        if federation.fabric.is_global_zero:
            write_csv(self.path, [["round", "local", "global"], *self.pairs])
        return found

    def state_dict(self) -> dict[str, Any]:
        """The client, its last loss and the pairs so far."""
        return {"client": self.client, "last": self.last, "pairs": self.pairs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, if the run has followed the same client."""
        if state["client"] == self.client:
            self.last, self.pairs = state["last"], state["pairs"]
