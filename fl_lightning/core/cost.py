"""The cost of an algorithm, derived from its terms by running them once on random vectors."""

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.core.algorithm import Algorithm, Facts, dummy_facts
from fl_lightning.core.oracle import Loss
from fl_lightning.core.term import States, Term, View, init_states
from fl_lightning.core.vector import Layout
from fl_lightning.core.view import ROUND_FACTS

SENT = frozenset(ROUND_FACTS)
"""Facts that the server knows before a visit."""


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
        forward_passes: Its forward passes without a gradient: of `oracle.loss`, and of `b.at` in a
            loss.
        sends: Names of what is sent: the model, and the terms with messages.
        receives: Names of what is received: the model or the start, and server states.
        keeps: Names of the client's states.
        has_horizon: Whether the method depends on the number of rounds of a run.
        exact: False where the dummy round gave numbers that are not finite, or a loss could not be
            evaluated without the model; then everything that may be sent or received counts.
    """

    uplink: int
    downlink: int
    client_state: int
    server_state: int
    gradients: int
    forward_passes: int
    sends: tuple[str, ...]
    receives: tuple[str, ...]
    keeps: tuple[str, ...]
    has_horizon: bool
    exact: bool


class _Calls:
    """What a dummy step has asked for."""

    gradients = forward_passes = 0
    failed = False  # whether a loss could not be evaluated


class _Stub:
    """An oracle that answers random gradients and random positive losses, and counts both."""

    def __init__(self, classes: int, losses: tuple[Loss, ...] = ()):
        self.calls, self.random = _Calls(), torch.Generator().manual_seed(0)
        self.classes, self.losses = classes, losses

    def __call__(self, w: Tensor) -> Tensor:
        self.calls.gradients += 1
        self._evaluate(w)
        return torch.randn(w.shape, generator=self.random).to(w)

    def loss(self, w: Tensor) -> Tensor:
        self.calls.forward_passes += 1
        self._evaluate(w)
        return (1 + torch.rand((), generator=self.random)).to(w)

    def of(self, loss: Loss, *layers: str) -> "_Stub":
        other = copy(self)
        other.losses = *self.losses, loss
        return other

    def part(self, index: int, count: int) -> "_Stub":
        return self

    def _evaluate(self, w: Tensor) -> None:
        """Call the losses, for what they read of their views."""
        for loss in self.losses:
            try:
                loss(_StubPass(self.calls, w, self.classes))  # type: ignore[arg-type]
            except Exception:  # it needs the model
                self.calls.failed = True


class _StubPass:
    """A forward pass of two samples with random logits; activations are the logits too."""

    def __init__(self, calls: _Calls, w: Tensor, classes: int):
        self.calls, self.w = calls, w
        self.out = torch.randn(2, classes, generator=torch.Generator().manual_seed(0)).to(w)
        self.x, self.y, self.loss = self.out, self.out.argmin(1), self.out.new_ones(())
        self.activations: Any = defaultdict(lambda: (self.out, self.out))

    def at(self, w: Tensor) -> "_StubPass":
        self.calls.forward_passes += 1
        return self

    def with_head_offset(self, e: Tensor, detached: bool = False) -> "_StubPass":
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
        recorded, oracle = _Recorded(*algorithm.terms), _Stub(classes)
        self.uses = recorded.uses = []
        facts = dummy_facts(layout, w, classes)
        started = {name: fact for name, fact in facts.items() if name != "origin"}
        server = self.server

        origin, states = recorded.start(w, started, kept, server)
        elsewhere, _ = recorded.start(w + 1, {**started, "anchor": w + 1}, kept, server)
        self.origin_depends_on_model = not origin.equal(elsewhere)
        facts["origin"] = origin
        direction, states = recorded.gradient(oracle, origin, facts, states, server)
        self.progress, self.calls = -direction, oracle.calls
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
        numbers = [origin, direction, delta, *(message for _, message in self.messages)]
        self.finite = all(bool(t.isfinite().all()) for t in numbers)

    @property
    def unread(self) -> bool:
        """Whether a loss that could not be evaluated may read further states of the server."""
        return self.calls.failed and any(self.server)

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
            server = self.server[use.term]
            read = use.read | server.keys() if self.unread and use.hook == "gradient" else use.read
            for name in read & {"anchor", *server}:
                source = (-1, "model") if name == "anchor" else (use.term, name)
                # the server can compute a start that depends on nothing of the client's
                if use.hook == "start" and not (use.assigned or use.read - server.keys() - SENT):
                    start_only.add(source[1])
                elif use.hook in ("start", "gradient", "report"):
                    needed.add(source)
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
    with torch.random.fork_rng(devices=[]):  # a loss may draw random numbers
        dummy = _DummyRound(algorithm, layout, w, classes)
    up, sends = dummy.uplink()
    down, receives = dummy.downlink()
    return Cost(
        uplink=up,
        downlink=down,
        client_state=sum(t.numel() for t in tree_leaves(dummy.client)),
        server_state=sum(t.numel() for t in tree_leaves(dummy.server)),
        gradients=dummy.calls.gradients,
        forward_passes=dummy.calls.forward_passes,
        sends=sends,
        receives=receives,
        keeps=tuple(name for states in dummy.client for name in states),
        has_horizon=dummy.has_horizon,
        exact=dummy.finite and not dummy.unread,
    )


def _random(term: Term, lifetime: str, w: Tensor, random: torch.Generator) -> States:
    states = init_states(getattr(term, lifetime), w, w, f" of {type(term).__name__}")
    return {  # between 0 and 1, as second moments have roots, and counts have logarithms
        name: torch.rand(t.shape, generator=random).to(t) if t.is_floating_point() else t
        for name, t in states.items()
    }


def _follows_from(progress: Tensor, message: Tensor) -> bool:
    """Whether a message is a multiple of the client's progress, which the server has anyway."""
    if message.shape != progress.shape:
        return False
    rest = message - progress * (message.dot(progress) / progress.dot(progress))
    return bool(rest.norm() <= 1e-4 * message.norm())
