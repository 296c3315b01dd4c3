"""The server: the global model, its states and its optimizer."""

from collections.abc import Sequence
from copy import deepcopy
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm, Facts
from fl_lightning.core.curves import rate_in
from fl_lightning.core.device import to_device_async
from fl_lightning.core.network import digest
from fl_lightning.core.randomness import derived_seed, seeded_rng
from fl_lightning.core.rehearsal import Rehearsal, rehearse
from fl_lightning.core.term import init_states
from fl_lightning.core.vector import Layout
from fl_lightning.core.view import MOVES
from fl_lightning.executors.executor import Buffers
from fl_lightning.federation.aggregation import DISTANCES, RoundStatus, RoundSums
from fl_lightning.federation.divergence import all_finite, finite, watched


class Server:
    """The server of a federation. Every rank holds the whole server and takes the same steps.

    Args:
        module: The model, on its device; its weights are w^0.
        layout: Its trained parameters as one vector.
        algorithm: The method.
        seed: Seed of what terms draw in `update`, and for the first values of states.
        rounds: Number of rounds of the run.
        clients: Number of clients N.
        cohort: The most clients of a round; so many updates are rehearsed, but at most 100.

    Attributes:
        scheduled: The method as it was given.
        w: The global model, a flat Parameter of the server's optimizer.
        initial_w: w^0.
        buffers: The global buffers by name.
        own_buffers: Names of those that each client keeps for itself; here they stay as they began.
        saved_buffers: Names of those that a module's `state_dict` has: others are not sent.
        frozen: The parameters that are not trained, by name: the module's own tensors.
        saved: The names of those that a checkpoint holds. Of the others it holds digests.
        states: The server's states, one dictionary a term.
        optimizer: Applies the mean update, as the gradient `-delta`, to `w`.
        round: Rounds completed.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        algorithm: Algorithm,
        seed: int = 0,
        rounds: int = 1,
        clients: int = 1,
        cohort: int = 1,
    ):
        self.layout, self.scheduled, self.seed = layout, algorithm, seed
        self.round, self.rounds, self.clients, self.cohort = 0, rounds, clients, min(cohort, 100)
        self.saved = set[str]()
        self.w = nn.Parameter(layout.read(module))
        self.optimizer = algorithm.server([self.w])
        self.reset(module)

    @property
    def algorithm(self) -> Algorithm:
        """The method as it is in this round."""
        return self.algorithm_in(self.round)

    def algorithm_in(self, round: int) -> Algorithm:
        """The method as it is in a round, with numbers in the place of its curves.

        After the last round it is as in that: a curve may end where a coefficient may not be.
        """
        return self.scheduled.at(min(round, self.rounds - 1), self.rounds)

    def reset(self, module: nn.Module) -> None:
        """Begin from the weights and buffers of a module."""
        with torch.no_grad():
            self.w.copy_(self.layout.read(module))
        self.initial_w = self.w.detach().clone()
        self.buffers = {k: b.clone() for k, b in module.named_buffers()}
        self.saved_buffers = self.buffers.keys() & module.state_dict().keys()
        parts = [term.keeps for term in self.algorithm.terms if term.keeps is not None]
        self.own_buffers = [k for k in self.buffers if any(self.layout.has(p, k) for p in parts)]
        trained = set(self.layout.names)
        self.frozen = {k: p.detach() for k, p in module.named_parameters() if k not in trained}
        of = self.initial_w, self.initial_w, self.layout, self.clients
        drawn = derived_seed(self.seed, "server states")
        self.states = init_states(self.algorithm.terms, "server", *of, drawn)
        self._digests = dict[str, str]()
        self._initially_finite = finite(self.states)

    def rehearse(
        self, algorithm: Algorithm, classes: int, parallel: bool, compiled: bool
    ) -> Rehearsal:
        """Rehearse a method with this model, for data of so many classes (see `rehearse`)."""
        of = self.layout, self.initial_w, classes, self.rounds, parallel, compiled
        return rehearse(algorithm, *of, self.clients, self.frozen, self.cohort)

    @property
    def shared_buffers(self) -> Buffers:
        """The buffers that clients receive and send."""
        return {k: b for k, b in self.buffers.items() if k not in self.own_buffers}

    def step(
        self,
        delta: Tensor,
        messages: Sequence[Any],
        facts: Facts,
        updates: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        """Update the states and the model, but for frozen parameters.

        Args:
            delta: The mean model update of the cohort, (d,).
            messages: The mean message of each term.
            facts: The facts of the round.
            updates: The update of each client, (M, d), for a term that combines them.

        Returns:
            How far the model moved from `facts["anchor"]`, (d,); whether the terms' update and each
            state stayed finite, each 0-dim; and by how much frozen parameters are to move.
        """
        moves: dict[str, Tensor] = {}
        facts = {**facts, "frozen": self.frozen, MOVES: moves}
        with seeded_rng(derived_seed(self.seed, "server", self.round), self.w.device):
            delta, states = self.algorithm.update(delta, messages, facts, self.states, updates)
        moved = torch.stack([all_finite(change) for change in (delta, *moves.values())]).all()
        stayed = [all_finite(state) for state in watched(self._initially_finite, states)]
        self.states, self.w.grad = states, -delta
        if (curve := self.algorithm.server_lr) is not None:
            lr = rate_in(curve, "server_lr", self.round, self.rounds)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
        self.optimizer.step()
        return self.w.detach() - facts["anchor"], [moved, *stayed], moves

    def finish_round(
        self, sums: RoundSums, facts: Facts, cohort: Sequence[int], logged: Sequence[str]
    ) -> tuple[RoundStatus, dict[str, float], list[float]]:
        """Step with the means of a round, and read its numbers, all at once and after the step.

        The sums, of a cohort, are complete; `logged` are the tags of what terms log.

        Returns:
            What the ranks agree on; the scalars of the round, and whether each part stayed finite
            (see `step`, and the move). If the round does not count nothing has moved.
        """
        # clients that are skipped take no part
        facts = {**facts, "participation": sums.participants() / self.clients}
        if (updates := sums.updates) is not None:
            facts["cohort"] = sums.counting(to_device_async(torch.tensor(cohort), self.w.device))
        idle = {"train/loss": nan, **dict.fromkeys(DISTANCES, 0.0)}  # if the round does not count
        before = self.states, deepcopy(self.optimizer.state_dict())
        (progress, moved), messages, buffers, (loss, squared) = sums.means()
        try:
            move, flags, moves = self.step(progress, messages, facts, updates)
        except Exception:
            status, _ = sums.read()
            if status.counts:
                raise
            return status, idle, []  # a term refused numbers that are not finite
        distances = sums.distances(moved, squared, move)
        finite = [flag.to(move) for flag in (*flags, distances[-1].isfinite())]
        tags = "train/loss", *DISTANCES, *logged
        status, numbers = sums.read([loss, *distances, *sums.logged(), *finite])
        with torch.no_grad():
            if not status.counts:
                self.w.copy_(facts["anchor"])
                self.states, optimizer = before
                self.optimizer.load_state_dict(optimizer)
                return status, idle, []
            for name, by in moves.items():
                self.frozen[name] += by
        self.saved |= moves.keys()
        self.buffers = {**self.buffers, **buffers}
        return status, dict(zip(tags, numbers, strict=False)), numbers[len(tags) :]

    def traffic(self, rehearsal: Rehearsal, cohort: int, bits: float) -> dict[str, float]:
        """Megabytes that a cohort has sent and received, with the buffers of a `state_dict`.

        `bits` is the size of its updates, which counts if terms have assigned it.
        """
        sent = self.saved_buffers & self.shared_buffers.keys()
        buffers = sum(self.buffers[k].nbytes for k in sent)

        def megabytes(numbers: int) -> float:
            return (numbers * self.w.element_size() + buffers) / 1e6 * cohort

        cost = rehearsal.cost
        counted = "bits" in rehearsal.assigned and cost.uplink != cost.messages
        up = bits / 8e6 + megabytes(cost.messages) if counted else megabytes(cost.uplink)
        return {"comm/uplink_mb": up, "comm/downlink_mb": megabytes(cost.downlink)}

    def base(self) -> dict[str, str]:
        """The digest of each frozen parameter that a checkpoint leaves out."""
        left_out = [name for name in self.frozen if name not in self.saved]
        for name in left_out:
            if name not in self._digests:
                self._digests[name] = digest(self.frozen[name])
        return {name: self._digests[name] for name in left_out}


def load_model(module: nn.Module, layout: Layout, w: Tensor, buffers: Buffers) -> nn.Module:
    """The module, in evaluation mode, with these weights and buffers."""
    layout.load(module, w)
    live = dict(module.named_buffers())
    with torch.no_grad():
        for name, value in buffers.items():
            live[name].copy_(value)
    return module.eval()


def copy_of(module: nn.Module) -> nn.Module:
    """A deep copy of a module. Activations that it keeps as attributes lose their graphs."""
    kept = [t for m in module.modules() for t in vars(m).values() if isinstance(t, Tensor)]
    return deepcopy(module, {id(t): t.detach() for t in kept if not t.is_leaf})
