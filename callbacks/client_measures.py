"""Measures of the clients of a round: their models, losses and kept states."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.callbacks.bases import CohortMeasure, check_classes
from fl_lightning.callbacks.scoring import ClientScorer, TrainingLoss, score_together, write_csv
from fl_lightning.core.constraints import NonNegativeInt, PositiveInt
from fl_lightning.core.term import States
from fl_lightning.data import DeviceDataset
from fl_lightning.errors import UserError
from fl_lightning.executors import ClientResult
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.mean_loss import some_samples


class LocalModels(CohortMeasure):
    """Adds the accuracy of the cohort's local models on the whole test set.

    `test/local` is the mean over the cohort, `test/local_std` the standard deviation, and
    `test/forgetting` what local training lost: the accuracy of w^t minus that mean. FedSOL's
    Figure 7 (Lee et al., CVPR 2024, https://arxiv.org/abs/2308.12532).
    """

    def __init__(self, test: DeviceDataset, every: int = 10):
        super().__init__(every)
        check_classes(test, "LocalModels")
        self.test, self._index = test, some_samples(len(test), None).to(test.device)

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        super().on_round_start(federation, cohort)
        if self.due:
            received = federation.load_global()
            self._received = score_together(federation, received, self.test)["accuracy"]
            self._scorer = ClientScorer(federation)

    def on_client_end(self, federation: Federation, client: int, result: ClientResult) -> None:
        if self.due:
            self.rows[client] = [self._scorer(result, self.test, self._index)[0]]

    def measure(self, federation: Federation) -> Metrics:
        if not self.counted(federation):
            return {}
        accuracy = self.table(federation, 1)
        mean = accuracy.mean().item()
        return {
            "test/local": mean,
            "test/local_std": accuracy.std(correction=0).item(),
            "test/forgetting": self._received - mean,
        }


class Diagnostics:
    """Adds what terms log as diagnostics, such as FedSOL's `term/cos` and `term/proximal_loss`.

    It costs up to two gradients and a forward pass in every local step.
    """

    diagnostics = True


@dataclass(eq=False)
class Gradients(CohortMeasure):
    """Adds `client/gradients`: the gradients of mini-batches that a round's cohort has computed.

    They are the local steps of the cohort times the gradients in a step of the method. `compare
    --score gradients_to:90` adds them up.
    """

    every: int = field(default=1, init=False)

    def measure(self, federation: Federation) -> Metrics:
        """Count the gradients of the round."""
        clients, round = federation.clients, federation.round - 1
        steps = sum(clients.steps_in(client, round) for client in self.counted(federation))
        return {"client/gradients": float(steps * federation.cost.gradients)}


class StateNorms(CohortMeasure):
    """Adds the norms of the states that a method keeps, such as duals and control variates.

    `dual/<name>` is the mean L2 norm over the cohort of a state of the clients, after their visits,
    or the norm of a state of the server. Single numbers are left out. Where two terms have states
    of one name, it is `dual/<class>.<name>`.
    """

    def on_client_end(self, federation: Federation, client: int, result: ClientResult) -> None:
        if self.due:
            kept = _kept(federation, "client", result.states)
            self.rows[client] = [float(state.norm()) for state in kept.values()]

    def measure(self, federation: Federation) -> Metrics:
        states = federation.local_training.before_visit(0)[0]  # of any client, for their names
        tags = [*_kept(federation, "client", states)] if self.counted(federation) else []
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


@dataclass(eq=False)
class Consistency(CohortMeasure):
    """Follows one client: how its own loss and the global loss change (FedSSG's Figure 2).

    After each visit but the first, `consistency/local` is `L_i(u_i)` minus its value at the end of
    the client's visit before, L_i being the loss over the client's samples and u_i its last model.
    `consistency/global` is the change of the global loss in the same round. FedSSG's paper
    (https://arxiv.org/abs/2509.13895) does not define its axes; this is our reading.

    Args:
        client: The client.
        samples: Number of random training samples of the global loss; None is all.
        folder: The folder of the table consistency.csv.
    """

    every: int = field(default=1, init=False)
    client: NonNegativeInt = 0
    samples: PositiveInt | None = None
    folder: Path = field(kw_only=True)
    pairs: list[list[float]] = field(default_factory=list, init=False)
    last: float | None = field(default=None, init=False)

    def on_fit_start(self, federation: Federation) -> None:
        """Raise a UserError if there is no such client."""
        if self.client >= federation.clients.num_clients:
            raise UserError(
                f"client {self.client} cannot be measured: the last one is "
                f"{federation.clients.num_clients - 1}"
            )

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        super().on_round_start(federation, cohort)
        if self.client in cohort:
            loss = TrainingLoss(federation, self.samples)
            self._before = loss(federation.w.detach())

    def on_client_end(self, federation: Federation, client: int, result: ClientResult) -> None:
        if client == self.client:
            data = federation.clients.dataset
            index = federation.clients.partition[client].to(data.device)
            self.rows[client] = [ClientScorer(federation)(result, data, index)[1]]

    def measure(self, federation: Federation) -> Metrics:
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
            header = "round", "local", "global"
            write_csv(self.folder / "consistency.csv", [header, *self.pairs])
        return found

    def state_dict(self) -> dict[str, Any]:
        """The client, its last loss and the pairs so far."""
        return {"client": self.client, "last": self.last, "pairs": self.pairs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, if the run has followed the same client."""
        if state["client"] == self.client:
            self.last, self.pairs = state["last"], state["pairs"]
