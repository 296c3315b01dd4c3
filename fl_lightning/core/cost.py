"""What an algorithm costs, derived from its terms by running them once on made-up vectors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.core.algorithm import Algorithm, dummy_facts
from fl_lightning.core.oracle import Loss
from fl_lightning.core.term import ROUND_FACTS, States, Term, init_states
from fl_lightning.core.term_checks import check_untouched, versions
from fl_lightning.core.vector import Layout


@dataclass(frozen=True)
class Cost:
    """Counted in numbers (not bytes), for one client; an upper bound where a message could ride on the model.

    FedSpeed with active duals is such a case: its paper sends u_i + h_i alone, the terms send both.

    Attributes:
        uplink: Sent to the server after a visit: the model, and messages that cannot be read off
            the model.
        downlink: Received before a visit: the model, and the server states that the client's hooks
            depend on. What only tells where to start is one vector together with the model.
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
    """An oracle that answers random gradients, which it counts, and random positive losses."""

    def __init__(self, seed: int = 0):
        self.calls, self.random = 0, torch.Generator().manual_seed(seed)

    def __call__(self, w: Tensor) -> Tensor:
        self.calls += 1
        return (
            torch.randn(w.shape, generator=self.random).to(w) + 0 * w.sum()
        )  # a gradient at NaN is NaN

    def loss(self, w: Tensor) -> Tensor:
        return (1 + torch.rand((), generator=self.random)).to(w) + 0 * w.sum()

    def of(self, loss: Loss, *layers: str) -> "_Stub":
        return self

    def part(self, index: int, count: int) -> "_Stub":
        return self


@dataclass
class _Told:
    """What the server tells a client: the model, and its own states, one dictionary a term."""

    model: Tensor
    states: list[States]

    def names(self) -> list[tuple[int, str]]:
        return [
            (-1, "model"),
            *((i, name) for i, states in enumerate(self.states) for name in states),
        ]

    def __getitem__(self, which: tuple[int, str]) -> Tensor:
        return self.model if which[0] < 0 else self.states[which[0]][which[1]]

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
    """What came of a made-up visit; `weight` is what the server weighs the client with."""

    weight: Tensor
    origin: Tensor
    begun: list[States]
    progress: Tensor
    messages: list[Any]
    gradients: int
    delta: Tensor


class _DummyRound:
    """A made-up visit, from random states: start, one step, report; and what the server does with it."""

    def __init__(self, algorithm: Algorithm, layout: Layout, w: Tensor, classes: int):
        self.algorithm, self.layout, self.classes = algorithm, layout, classes
        random = torch.Generator().manual_seed(1)

        def begun(term: Term, lifetime: str) -> States:
            states = init_states(getattr(term, lifetime), w, w, f" of {type(term).__name__}")
            return {
                k: torch.randn(t.shape, generator=random).to(t) if _real(t) else t
                for k, t in states.items()
            }

        self.client = [begun(term, "client") for term in algorithm.terms]
        self.states = [
            {**kept, **begun(t, "local")}
            for kept, t in zip(self.client, algorithm.terms, strict=True)
        ]
        self.told = _Told(w, [begun(term, "server") for term in algorithm.terms])

    def run(
        self,
        first: _Told | None = None,
        later: _Told | None = None,
        moved: float = 1.0,
        rounds: float = 2,
    ) -> _Visit:
        """Let the client see `first` where it starts and `later` afterwards; multiply its progress by `moved`."""
        first, later, oracle = first or self.told, later or self.told, _Stub()
        facts = dummy_facts(self.layout, first.model, self.classes) | {"rounds": rounds}
        del facts["origin"]
        origin, begun = self._hook("start", first.model, facts, self.states, first.states)
        here = (
            torch.zeros_like(origin) if origin.isnan().any() else origin
        )  # what follows is not of interest then
        facts |= {"anchor": later.model, "origin": here}
        direction, states = self._hook("gradient", oracle, here, facts, begun, later.states)
        messages, _ = self._hook("report", here - direction, facts, states, later.states)
        delta, _ = self._hook("update", moved * -direction, messages, _common(facts), later.states)
        return _Visit(facts["weight"], origin, begun, -direction, messages, oracle.calls, delta)

    def personal(self) -> None:
        """Let the client make its own model, which a run does after its last round."""
        facts = _common(dummy_facts(self.layout, self.told.model))
        self._hook("personal", self.told.model, facts, self.states, self.told.states)

    def _hook(self, hook: str, *given: Any) -> Any:
        """Run a hook of all terms, which may not change what they were given."""
        tensors = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
        before = versions(tensors)
        result = getattr(self.algorithm, hook)(*given)
        check_untouched(
            tensors,
            before,
            f"{', '.join(type(term).__name__ for term in self.algorithm.terms)}.{hook}",
        )
        return result

    def downlink(self) -> tuple[int, list[str]]:
        """Numbers and names of what the client must be told."""
        needed, start_only = list[tuple[int, str]](), list[str]()
        for which in self.told.names():
            if not _real(self.told[which]):
                needed.append(which)  # who reads a whole number cannot be found out in this way
                continue
            poisoned = self.told.poisoned(which)
            late, early = self.run(later=poisoned), self.run(first=poisoned)
            if _spoiled(late.progress, late.messages) or _spoiled(early.begun):
                needed.append(which)
            elif _spoiled(early.origin):
                start_only.append(which[1])
        names = [name for _, name in needed]
        if start_only:  # one vector tells it, whatever it is made of
            names.insert(0, "model" if start_only == ["model"] else "start")
        return sum(self.told[which].numel() for which in needed) + bool(
            start_only
        ) * self.told.model.numel(), names

    def has_horizon(self) -> bool:
        """Whether anything depends on the number of rounds."""
        visit, usual = self.run(rounds=torch.nan), self.run()
        outcomes = [(v.origin, v.progress, v.messages, v.delta) for v in (visit, usual)]
        return any(
            _spoiled(one) and not _spoiled(other) for one, other in zip(*outcomes, strict=True)
        )

    def uplink(self) -> tuple[int, list[str]]:
        """Numbers and names of what the server must be told."""
        visit = self.run()
        every = [
            (t, m)
            for t, ms in zip(self.algorithm.terms, visit.messages, strict=True)
            for m in tree_leaves(ms)
        ]
        told = [
            (term, message) for term, message in every if message is not visit.weight
        ]  # the server gave it out
        own = [(type(term).__name__, m) for term, m in told if not _follows_from(visit.progress, m)]
        model = len(own) < len(told) or _spoiled(self.run(moved=torch.nan).delta)
        names = ["model"] * model + list(dict.fromkeys(name for name, _ in own))
        return model * visit.progress.numel() + sum(m.numel() for _, m in own), names


def cost(algorithm: Algorithm, layout: Layout, w: Tensor, classes: int = 10) -> Cost:
    """Count what `algorithm` sends, keeps and computes for a model like `w` and data of so many classes.

    Raises:
        TermError: If a term makes a mistake that shows in a made-up round, such as changing a
            tensor in place.
    """
    for term in algorithm.terms:  # each alone, so that an error names it
        alone = _DummyRound(Algorithm(term), layout, w, classes)
        alone.run()
        alone.personal()
    trial = _DummyRound(algorithm, layout, w, classes)
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


def _common(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in ROUND_FACTS}


def _real(t: Tensor) -> bool:
    return t.is_floating_point()


def _spoiled(*trees: Any) -> bool:
    return any(bool(t.isnan().any()) for t in tree_leaves(trees))


def _follows_from(progress: Tensor, message: Tensor) -> bool:
    """Whether a message is a multiple of the client's progress, which the server has anyway."""
    if message.shape != progress.shape:
        return False
    rest = message - progress * (message.dot(progress) / progress.dot(progress))
    return bool(rest.norm() <= 1e-4 * message.norm())
