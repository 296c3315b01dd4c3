"""What a visit begins with and ends with: its learning rates, its facts, and what terms log."""

from collections import Counter
from collections.abc import Sequence
from math import ceil, inf
from textwrap import shorten

import torch
from torch import Tensor, nn

from fl_lightning.core.curves import OfRound, rate_in
from fl_lightning.core.device import to_device_async
from fl_lightning.core.randomness import seeded_rng
from fl_lightning.core.rehearsed_round import RehearsedRound, dummy_facts
from fl_lightning.core.term import States, Term
from fl_lightning.core.view import LOGGED, LOGGED_WEIGHT
from fl_lightning.data import ClientData
from fl_lightning.errors import UserError
from fl_lightning.federation.server import Server


class LocalRates:
    """The clients' learning rates, and the facts of their visits (see `View`).

    Args:
        server: Gives the method as it is in this round.
        clients: The training data of the clients.

    Attributes:
        base_lr_sum: `lr_sum` of a client of mean size in the first round.

    Raises:
        UserError: If a term divides by the learning rate, and a round has none.
    """

    def __init__(self, server: Server, clients: ClientData):
        self.server, self.clients = server, clients
        vector = nn.Parameter(torch.zeros(1, device=server.w.device))
        own = float(server.algorithm.local([vector]).param_groups[0]["lr"])
        self._lr: OfRound = server.algorithm.lr or (lambda round, rounds: own)
        self.base_lr_sum = self.average_visit(0)["lr_sum"]
        still = next((t for t in range(server.rounds) if not self.of_round(t)), None)
        if still is not None:
            self._check_without_rate(still)

    def _check_without_rate(self, round: int) -> None:
        """Raise a UserError if terms need a learning rate in a round that has none."""
        server, w = self.server, self.server.initial_w
        of = server.layout, w, self.clients.dataset.num_classes, round, server.rounds
        facts = dummy_facts(*of, self.clients.num_clients)
        without = facts | {"lr_sum": w.new_zeros(()), "base_lr_sum": self.base_lr_sum}
        with seeded_rng(0, w.device):  # a loss may draw random numbers
            usual, still = (
                RehearsedRound(server.scheduled, given, server.frozen, server.cohort)
                for given in (facts, without)
            )
        if usual.finite and not still.finite:
            raise UserError(
                f"the learning rate of round {round + 1:,} is 0, by which the algorithm divides: "
                "let the schedule stay above 0"
            )

    def of_round(self, round: int) -> float:
        """The local learning rate of a round, before `Algorithm.rate`."""
        return rate_in(self._lr, "lr", round, self.server.rounds)

    def of_visit(self, round: int, steps: int) -> list[float]:
        """The learning rate of each step of a visit.

        Raises:
            UserError: If the algorithm's rate gives no learning rates.
        """
        lr, rate = self.of_round(round), self.server.algorithm_in(round).rate
        rates = [rate(step, steps) for step in range(steps)]
        if not (all(0 <= r < inf for r in rates) and any(rates)):
            raise UserError(
                f"the algorithm's rate gives {shorten(str(rates), 60)} for the {steps} steps of a "
                "visit: return numbers of at least 0, not all of them 0"
            )
        return [lr * float(r) for r in rates]  # a tensor is no key of equal rates

    def of_cohort(
        self, cohort: Sequence[int], weights: Sequence[float], probabilities: Tensor | None
    ) -> tuple[list[list[float]], dict[str, tuple[Tensor, ...]]]:
        """What differs between the visits of a cohort: learning rates, and facts by name.

        Args:
            cohort: At least one client.
            weights: Their aggregation weights.
            probabilities: Of each client to take part in a round, where that differs.

        Returns:
            The learning rate of each step, a list a client; a fact's values, a tensor a client, all
            copied to the device together.
        """
        clients, like, index = self.clients, self.server.w, torch.tensor(cohort)
        steps = [clients.steps_in(client, self.server.round) for client in cohort]
        lrs = {n: self.of_visit(self.server.round, n) for n in {*steps}}
        numbers = {
            "steps": steps,
            "epochs": [n / clients.steps_per_epoch(c) for n, c in zip(steps, cohort, strict=True)],
            "lr_sum": [self.server.algorithm.lr_sum(lrs[n]) for n in steps],
            "size": (clients.sizes[index] / clients.mean_size).tolist(),
            "weight": weights,
        }
        if probabilities is not None:
            numbers["inclusion_probability"] = probabilities[index].tolist()
        table = torch.tensor([*numbers.values()], dtype=like.dtype)
        table = torch.cat([table, clients.labels_of(index).T.to(like.dtype)])
        columns = to_device_async(table.T.contiguous(), like.device)
        facts = {name: columns[:, i].unbind() for i, name in enumerate(numbers)}
        facts["labels"] = columns[:, len(numbers) :].unbind()
        facts["client"] = to_device_async(index, like.device).unbind()
        return [lrs[n] for n in steps], facts

    def average_visit(self, round: int) -> dict[str, float]:
        """The facts of a visit of a client of mean size in a round."""
        clients, steps = self.clients, self.clients.mean_steps
        return {
            "steps": steps,
            "epochs": steps / ceil(clients.mean_size / clients.batch_size),
            "lr_sum": self.server.algorithm.lr_sum(self.of_visit(round, steps)),
            "size": 1.0,
            "weight": 1.0,
        }


class TermLogs:
    """The scalars that terms publish by `v.log`: their `logs`, and their `diagnostics` if asked.

    Attributes:
        tags: `term/<name>` for each; `term/<class>.<name>` where two terms log the same name.
    """

    def __init__(self, terms: Sequence[Term], diagnostics: bool):
        self._names = [(*t.logs, *(t.diagnostics if diagnostics else ())) for t in terms]
        often = Counter(name for names in self._names for name in names)
        self.tags = [
            f"term/{type(term).__name__}.{name}" if often[name] > 1 else f"term/{name}"
            for term, names in zip(terms, self._names, strict=True)
            for name in names
        ]

    def states(self, w: Tensor) -> list[States]:
        """The sums and weights at the start of a visit, one dictionary a term."""
        kinds = LOGGED, LOGGED_WEIGHT
        hidden = [[kind + name for name in names for kind in kinds] for names in self._names]
        zeros = iter(w.new_zeros(sum(map(len, hidden))).unbind())
        return [{name: next(zeros) for name in names} for names in hidden]

    def means(self, states: Sequence[States]) -> list[Tensor]:
        """The mean of each scalar over the visit, 0-dim; nan if it was never logged."""
        own = zip(self._names, states, strict=True)
        pairs = [(term, name) for names, term in own for name in names]
        return [term[LOGGED + name] / term[LOGGED_WEIGHT + name] for term, name in pairs]
