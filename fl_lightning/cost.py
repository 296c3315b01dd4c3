"""What an algorithm costs, derived from its terms by running them once on made-up vectors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.algorithm import Algorithm, trial_facts
from fl_lightning.oracle import Loss
from fl_lightning.term import Begin, States, TermError, begin
from fl_lightning.vector import Layout


@dataclass(frozen=True)
class Cost:
    """Counted in numbers (not bytes), for one client; an upper bound where a message could ride on the model.

    FedSpeed with active duals is such a case: its paper sends u_i + h_i alone, the terms send both.

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


class _Stub:
    """An oracle that answers a random vector and counts how often it is asked."""

    def __init__(self, seed: int = 0):
        self.calls, self.random = 0, torch.Generator().manual_seed(seed)

    def __call__(self, w: Tensor) -> Tensor:
        self.calls += 1
        return torch.randn(w.shape, generator=self.random).to(w) + 0 * w.sum()  # a gradient at NaN is NaN

    def of(self, loss: Loss, *taps: str) -> "_Stub":
        return self


class _Trial:
    """One made-up visit, from random states: start, one step, report; and what the server does with it."""

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
        common = {name: facts[name] for name in ("anchor", "share", "round", "rounds", "layout")}
        del facts["origin"]
        origin, states = self._hook("start", self.w, facts, self.states, shared)
        facts["origin"] = origin
        direction, states = self._hook("gradient", oracle, origin, facts, states, shared)
        w = origin - direction
        message, _ = self._hook("report", w, facts, states, shared)
        self._hook("update", w - origin, message, common, shared)
        return w - self.w, tree_leaves(message), oracle.calls

    def _hook(self, hook: str, *given: Any) -> Any:
        """Run a hook of all terms, which may not change what they were given."""
        versions = [(t, t._version) for t in tree_leaves(given) if isinstance(t, Tensor)]
        result = getattr(self.algorithm, hook)(*given)
        if any(t._version != version for t, version in versions):
            raise TermError(
                f"{', '.join(type(term).__name__ for term in self.algorithm.terms)}.{hook} changes a tensor in place, "
                "for everyone who shares it, the global model among them: instead of v.c.add_(x) or w[0] = x write "
                "v.c = v.c + x and return w + x"
            )
        return result


def cost(algorithm: Algorithm, layout: Layout, w: Tensor) -> Cost:
    """Count what `algorithm` sends, keeps and computes for a model like `w`.

    Raises:
        TermError: If a term makes a mistake that shows in a made-up round, such as changing a tensor in place.
    """
    for term in algorithm.terms:  # each alone, so that an error names it
        alone = _Trial(Algorithm(term), layout, w)
        alone.run(alone.shared)
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
