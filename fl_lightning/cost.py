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
        downlink: Received before a visit: the model, and the server states that the client's hooks depend on. What only
            tells where to start is one vector together with the model.
        client_state: Kept between rounds.
        server_state: Kept by the server beside the model.
        gradients: Gradient evaluations in one local step.
        sends: What is sent, by name: the model, and the terms whose messages are.
        receives: What is received: the model or the start, and server states.
        keeps: The client's states.
        has_horizon: Whether the method depends on how many rounds a run has.
    """

    uplink: int
    downlink: int
    client_state: int
    server_state: int
    gradients: int
    sends: tuple[str, ...]
    receives: tuple[str, ...]
    keeps: tuple[str, ...]
    has_horizon: bool


class _Stub:
    """An oracle that answers a random vector and counts how often it is asked."""

    def __init__(self, seed: int = 0):
        self.calls, self.random = 0, torch.Generator().manual_seed(seed)

    def __call__(self, w: Tensor) -> Tensor:
        self.calls += 1
        return torch.randn(w.shape, generator=self.random).to(w) + 0 * w.sum()  # a gradient at NaN is NaN

    def of(self, loss: Loss, *taps: str) -> "_Stub":
        return self

    def part(self, index: int, count: int) -> "_Stub":
        return self


@dataclass
class _Told:
    """What the server tells a client: the model, and its own states, one dictionary a term."""

    model: Tensor
    states: list[States]

    def names(self) -> list[tuple[int, str]]:
        return [(-1, "model"), *((i, name) for i, states in enumerate(self.states) for name in states)]

    def size(self, which: tuple[int, str]) -> int:
        return self.model.numel() if which[0] < 0 else self.states[which[0]][which[1]].numel()

    def poisoned(self, which: tuple[int, str]) -> "_Told":
        """The same with one vector not a number, which spreads to whatever depends on it."""
        term, name = which
        if term < 0:
            return _Told(torch.full_like(self.model, torch.nan), self.states)
        states = [dict(s) for s in self.states]
        states[term][name] = torch.full_like(states[term][name], torch.nan)
        return _Told(self.model, states)


@dataclass
class _Visit:
    """What came of a made-up visit."""

    origin: Tensor
    begun: list[States]
    progress: Tensor
    messages: list[Any]
    gradients: int
    delta: Tensor


class _Trial:
    """A made-up visit, from random states: start, one step, report; and what the server does with it."""

    def __init__(self, algorithm: Algorithm, layout: Layout, w: Tensor):
        self.algorithm, self.layout = algorithm, layout
        random = torch.Generator().manual_seed(1)

        def begun(declared: Mapping[str, Begin]) -> States:
            return {k: torch.randn(t.shape, generator=random).to(w) for k, t in begin(declared, w, w).items()}

        self.client = [begun(term.client) for term in algorithm.terms]
        self.states = [{**kept, **begun(t.local)} for kept, t in zip(self.client, algorithm.terms, strict=True)]
        self.told = _Told(w, [begun(term.server) for term in algorithm.terms])

    def run(
        self, first: _Told | None = None, later: _Told | None = None, moved: float = 1.0, rounds: float = 2
    ) -> _Visit:
        """Let the client see `first` where it starts and `later` afterwards; multiply its progress by `moved`."""
        first, later, oracle = first or self.told, later or self.told, _Stub()
        facts = trial_facts(self.layout, first.model) | {"rounds": rounds}
        del facts["origin"]
        origin, begun = self._hook("start", first.model, facts, self.states, first.states)
        here = torch.zeros_like(origin) if origin.isnan().any() else origin  # what follows is not of interest then
        facts |= {"anchor": later.model, "origin": here}
        direction, states = self._hook("gradient", oracle, here, facts, begun, later.states)
        messages, _ = self._hook("report", here - direction, facts, states, later.states)
        common = {name: facts[name] for name in ("anchor", "share", "expected", "round", "rounds", "nominal", "layout")}
        delta, _ = self._hook("update", moved * -direction, messages, common, later.states)
        return _Visit(origin, begun, -direction, messages, oracle.calls, delta)

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

    def downlink(self) -> tuple[int, list[str]]:
        """Numbers and names of what the client must be told."""
        needed, start_only = list[tuple[int, str]](), list[str]()
        for which in self.told.names():
            poisoned = self.told.poisoned(which)
            late, early = self.run(later=poisoned), self.run(first=poisoned)
            if _spoiled(late.progress, late.messages) or _spoiled(early.begun):
                needed.append(which)
            elif _spoiled(early.origin):
                start_only.append(which[1])
        names = [name for _, name in needed]
        if start_only:  # one vector tells it, whatever it is made of
            names.insert(0, "model" if start_only == ["model"] else "start")
        return sum(map(self.told.size, needed)) + bool(start_only) * self.told.model.numel(), names

    def has_horizon(self) -> bool:
        """Whether anything depends on the number of rounds."""
        visit, usual = self.run(rounds=torch.nan), self.run()
        outcomes = [(v.origin, v.progress, v.messages, v.delta) for v in (visit, usual)]
        return any(_spoiled(one) and not _spoiled(other) for one, other in zip(*outcomes, strict=True))

    def uplink(self) -> tuple[int, list[str]]:
        """Numbers and names of what the server must be told."""
        visit = self.run()
        told = [(t, m) for t, ms in zip(self.algorithm.terms, visit.messages, strict=True) for m in tree_leaves(ms)]
        own = [(type(term).__name__, m) for term, m in told if not _follows_from(visit.progress, m)]
        model = len(own) < len(told) or _spoiled(self.run(moved=torch.nan).delta)
        names = ["model"] * model + list(dict.fromkeys(name for name, _ in own))
        return model * visit.progress.numel() + sum(m.numel() for _, m in own), names


def cost(algorithm: Algorithm, layout: Layout, w: Tensor) -> Cost:
    """Count what `algorithm` sends, keeps and computes for a model like `w`.

    Raises:
        TermError: If a term makes a mistake that shows in a made-up round, such as changing a tensor in place.
    """
    for term in algorithm.terms:  # each alone, so that an error names it
        _Trial(Algorithm(term), layout, w).run()
    trial = _Trial(algorithm, layout, w)
    up, sends = trial.uplink()
    down, receives = trial.downlink()
    return Cost(
        uplink=up,
        downlink=down,
        client_state=sum(t.numel() for t in tree_leaves(trial.client)),
        server_state=sum(t.numel() for t in tree_leaves(trial.told.states)),
        gradients=trial.run().gradients,
        sends=tuple(sends),
        receives=tuple(receives),
        keeps=tuple(name for states in trial.client for name in states),
        has_horizon=trial.has_horizon(),
    )


def _spoiled(*trees: Any) -> bool:
    return any(bool(t.isnan().any()) for t in tree_leaves(trees))


def _follows_from(progress: Tensor, message: Tensor) -> bool:
    """Whether a message is a multiple of the client's progress, which the server has anyway."""
    if message.shape != progress.shape:
        return False
    rest = message - progress * (message.dot(progress) / progress.dot(progress))
    return bool(rest.norm() <= 1e-4 * message.norm())
