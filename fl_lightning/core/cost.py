"""The cost of an algorithm, derived from its terms by running them once on random vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.core.algorithm import Algorithm, Facts, dummy_facts
from fl_lightning.core.oracle import Loss
from fl_lightning.core.term import ROUND_FACTS, States, Term, View, init_states
from fl_lightning.core.vector import Layout


@dataclass(frozen=True)
class Cost:
    """Counts of numbers (not bytes) for one client.

    They are upper bounds where a message could be part of the model, as of FedSpeed with active
    duals: its paper sends u_i + h_i alone, the terms send both.

    Attributes:
        uplink: Sent to the server after a visit: the model, and messages that are no multiple of
            the model's progress.
        downlink: Received before a visit: the model, and the server states that the client's hooks
            read. Those that only decide where to start are one vector together with the model.
        client_state: Kept between rounds.
        server_state: Kept by the server besides the model.
        gradients: Gradient evaluations in one local step.
        sends: Names of what is sent: the model, and the terms with messages.
        receives: Names of what is received: the model or the start, and server states.
        keeps: Names of the client's states.
        has_horizon: Whether the method depends on the number of rounds of a run.
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

    def __init__(self) -> None:
        self.calls, self.random = 0, torch.Generator().manual_seed(0)

    def __call__(self, w: Tensor) -> Tensor:
        self.calls += 1
        return torch.randn(w.shape, generator=self.random).to(w)

    def loss(self, w: Tensor) -> Tensor:
        return (1 + torch.rand((), generator=self.random)).to(w)

    def of(self, loss: Loss, *layers: str) -> "_Stub":
        return self

    def part(self, index: int, count: int) -> "_Stub":
        return self


class _RecordingView(View):
    """A view that notes the names that its hook reads and assigns."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name[0] != "_":
            self.__dict__["_read"].add(name)
        return value

    def __setattr__(self, name: str, value: Tensor) -> None:
        super().__setattr__(name, value)
        self.__dict__["_assigned"].add(name)


@dataclass
class _Use:
    """The names that one hook of one term has read and assigned."""

    hook: str
    term: int
    read: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)


class _Recorded(Algorithm):
    """An algorithm that notes what its hooks use."""

    uses: list[_Use]

    def _views(self, hook: str, facts: Facts, *states: Sequence[States]) -> list[View]:
        views = list[View]()
        for i, (term, *given) in enumerate(zip(self.terms, *states, strict=True)):
            view = _RecordingView(term, hook, facts, *given)
            self.uses.append(use := _Use(hook, i))
            view.__dict__.update(_read=use.read, _assigned=use.assigned)
            views.append(view)
        return views


class _DummyRound:
    """One visit from random states, by start, one step and report, and the server's update."""

    def __init__(self, algorithm: Algorithm, layout: Layout, w: Tensor, classes: int):
        self.terms, self.w, random = algorithm.terms, w, torch.Generator().manual_seed(1)

        def begun(lifetime: str) -> list[States]:
            return [_random(term, lifetime, w, random) for term in algorithm.terms]

        self.client, self.server = begun("client"), begun("server")
        local = begun("local")
        kept = [{**mine, **visit} for mine, visit in zip(self.client, local, strict=True)]
        recorded, oracle = _Recorded(*algorithm.terms), _Stub()
        self.uses = recorded.uses = []
        facts = dummy_facts(layout, w, classes)
        started = {name: fact for name, fact in facts.items() if name != "origin"}
        server = self.server

        origin, states = recorded.start(w, started, kept, server)
        elsewhere, _ = recorded.start(w + 1, {**started, "anchor": w + 1}, kept, server)
        self.origin_depends_on_model = not origin.equal(elsewhere)
        facts["origin"] = origin
        direction, states = recorded.gradient(oracle, origin, facts, states, server)
        self.progress, self.gradients = -direction, oracle.calls
        messages, _ = recorded.report(origin - direction, facts, states, server)
        common = {name: facts[name] for name in ROUND_FACTS}
        delta, _ = recorded.update(self.progress, messages, common, server)
        other, _ = recorded.update(2 * self.progress, messages, common, server)
        self.server_uses_progress = not delta.equal(other)
        self.has_horizon = any("rounds" in use.read for use in self.uses)
        self.messages = [
            (type(term).__name__, message)
            for term, own in zip(self.terms, messages, strict=True)
            for message in tree_leaves(own)
            if message is not facts["weight"]  # the server gave it out
        ]
        recorded.personal(w, common, kept, server)  # only a mistake would show

    def uplink(self) -> tuple[int, tuple[str, ...]]:
        """Numbers and names of what the server must receive."""
        sent = [(name, m) for name, m in self.messages if not _follows_from(self.progress, m)]
        model = self.server_uses_progress or len(sent) < len(self.messages)
        names = ["model"] * model + list(dict.fromkeys(name for name, _ in sent))
        numbers = model * self.progress.numel() + sum(m.numel() for _, m in sent)
        return numbers, tuple(names)

    def downlink(self) -> tuple[int, tuple[str, ...]]:
        """Numbers and names of what the client must receive."""
        start_only, needed = set[str](), set[tuple[int, str]]()
        if self.origin_depends_on_model:
            start_only.add("model")
        for use in self.uses:
            for name in use.read & {"anchor", *self.server[use.term]}:
                source = (-1, "model") if name == "anchor" else (use.term, name)
                if use.hook in ("gradient", "report") or (use.hook == "start" and use.assigned):
                    needed.add(source)
                elif use.hook == "start":
                    start_only.add(source[1])
        start_only -= {name for _, name in needed}
        names = [name for _, name in sorted(needed)]
        if start_only:  # one vector, made of whatever decides where to start
            names.insert(0, "model" if start_only == {"model"} else "start")
        numbers = sum(
            self.w.numel() if i < 0 else self.server[i][name].numel() for i, name in needed
        )
        return numbers + bool(start_only) * self.w.numel(), tuple(names)


def cost(algorithm: Algorithm, layout: Layout, w: Tensor, classes: int = 10) -> Cost:
    """The cost of `algorithm` for a model like `w` and data of so many classes.

    Raises:
        TermError: If a term has a mistake that shows in a dummy round, such as changing a tensor
            in place.
    """
    dummy = _DummyRound(algorithm, layout, w, classes)
    up, sends = dummy.uplink()
    down, receives = dummy.downlink()
    return Cost(
        uplink=up,
        downlink=down,
        client_state=sum(t.numel() for t in tree_leaves(dummy.client)),
        server_state=sum(t.numel() for t in tree_leaves(dummy.server)),
        gradients=dummy.gradients,
        sends=sends,
        receives=receives,
        keeps=tuple(name for states in dummy.client for name in states),
        has_horizon=dummy.has_horizon,
    )


def _random(term: Term, lifetime: str, w: Tensor, random: torch.Generator) -> States:
    states = init_states(getattr(term, lifetime), w, w, f" of {type(term).__name__}")
    return {
        name: torch.randn(t.shape, generator=random).to(t) if t.is_floating_point() else t
        for name, t in states.items()
    }


def _follows_from(progress: Tensor, message: Tensor) -> bool:
    """Whether a message is a multiple of the client's progress, which the server has anyway."""
    if message.shape != progress.shape:
        return False
    rest = message - progress * (message.dot(progress) / progress.dot(progress))
    return bool(rest.norm() <= 1e-4 * message.norm())
