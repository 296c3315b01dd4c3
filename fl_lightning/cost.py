"""What an algorithm costs, derived from its terms by running them once on made-up vectors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.algorithm import Algorithm
from fl_lightning.oracle import Loss
from fl_lightning.term import Begin, States
from fl_lightning.vector import Layout


@dataclass(frozen=True)
class Cost:
    """Counted in numbers (not bytes), for one client.

    Attributes:
        uplink: Sent to the server after a visit: the model, and messages that cannot be read off the model.
        downlink: Received before a visit: the model, and the server states that the client's hooks depend on.
        client_state: Kept between rounds.
        server_state: Kept by the server beside the model.
        gradients: Gradient evaluations in one local step.
    """

    uplink: int
    downlink: int
    client_state: int
    server_state: int
    gradients: int


def begin(declared: Mapping[str, Begin], first: Tensor, now: Tensor) -> States:
    """States as they begin, given w^0 and the model received now."""
    return {name: beginning(first, now) for name, beginning in declared.items()}


def trial_facts(layout: Layout, w: Tensor) -> dict[str, Any]:
    """Facts of a made-up visit, to run hooks outside a round."""
    one = w.new_ones(())
    own = {"origin": w, "steps": one, "epochs": one, "span": one, "size": one, "weight": one}
    return {"anchor": w, "share": 0.5, "round": 1, "rounds": 2, "layout": layout, **own}


class _Stub:
    """An oracle that answers a random vector and counts how often it is asked."""

    def __init__(self, seed: int = 0):
        self.calls, self.random = 0, torch.Generator().manual_seed(seed)

    def __call__(self, w: Tensor) -> Tensor:
        self.calls += 1
        return torch.randn(w.shape, generator=self.random).to(w)

    def of(self, loss: Loss, *taps: str) -> "_Stub":
        return self


class _Trial:
    """One made-up visit: start, one step, report, from random states."""

    def __init__(self, algorithm: Algorithm, layout: Layout, w: Tensor):
        self.algorithm, self.layout, self.w = algorithm, layout, w
        random = torch.Generator().manual_seed(1)

        def begun(declared: Mapping[str, Begin]) -> States:
            return {k: torch.randn(t.shape, generator=random).to(w) for k, t in begin(declared, w, w).items()}

        self.client = [begun(term.client) for term in algorithm.terms]
        self.states = [{**kept, **begun(t.local)} for kept, t in zip(self.client, algorithm.terms, strict=True)]
        self.shared = [begun(term.server) for term in algorithm.terms]

    def run(self, shared: list[States]) -> tuple[Tensor, list[Tensor], int]:
        """What came out: the client's progress, its messages, and the gradient evaluations of the step."""
        facts, oracle = trial_facts(self.layout, self.w), _Stub()
        origin, states = self.algorithm.start(self.w, facts, self.states, shared)
        facts["origin"] = origin
        direction, states = self.algorithm.gradient(oracle, origin, facts, states, shared)
        message, states = self.algorithm.report(origin - direction, facts, states, shared)
        return origin - direction - self.w, tree_leaves(message), oracle.calls


def cost(algorithm: Algorithm, layout: Layout, w: Tensor) -> Cost:
    """Count what `algorithm` sends, keeps and computes for a model like `w`."""
    trial = _Trial(algorithm, layout, w)
    progress, messages, gradients = trial.run(trial.shared)
    down = 0
    for i, states in enumerate(trial.shared):
        for name, state in states.items():
            poisoned = [dict(s) for s in trial.shared]
            poisoned[i][name] = torch.full_like(state, torch.nan)  # spreads to whatever depends on it
            moved, told, _ = trial.run(poisoned)
            down += state.numel() * any(bool(t.isnan().any()) for t in (moved, *told))
    return Cost(
        uplink=w.numel() + sum(m.numel() for m in messages if not _follows_from(progress, m)),
        downlink=w.numel() + down,
        client_state=sum(t.numel() for t in tree_leaves(trial.client)),
        server_state=sum(t.numel() for t in tree_leaves(trial.shared)),
        gradients=gradients,
    )


def _follows_from(progress: Tensor, message: Tensor) -> bool:
    """Whether a message is a multiple of the client's progress, which the server has anyway."""
    if message.shape != progress.shape:
        return False
    rest = message - progress * (message.dot(progress) / progress.dot(progress))
    return bool(rest.norm() <= 1e-4 * message.norm())
