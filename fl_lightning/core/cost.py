"""The cost of an algorithm, derived from its terms by running them once on random vectors."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.core.algorithm import Algorithm, Facts, dummy_facts
from fl_lightning.core.oracle import BatchOracle, Request
from fl_lightning.core.term import States, Term, View, init_states
from fl_lightning.core.vector import Layout
from fl_lightning.core.view import ROUND_FACTS


@dataclass(frozen=True)
class Cost:
    """Counts of numbers (not bytes) for one client.

    Upper bounds where a message could be part of the model: FedSpeed's paper sends u_i + h_i alone,
    the terms send both.

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
    receives: tuple[str, ...]
    keeps: tuple[str, ...]
    has_horizon: bool
    exact: bool


def _stub(calls: Counter[str], classes: int) -> BatchOracle:
    """An oracle that answers random gradients and positive losses; it counts them, and failures."""
    random = torch.Generator().manual_seed(0)

    def evaluate(w: Tensor, request: Request) -> Tensor:
        calls["forward passes" if request.loss_only else "gradients"] += 1
        for loss in request.losses:  # for what they read of their views
            try:
                loss(_StubPass(calls, w, classes))  # type: ignore[arg-type]
            except Exception:  # it needs the model
                calls["failures"] += 1
        if request.loss_only:
            return 1 + torch.rand((), generator=random)
        return torch.randn(w.shape, generator=random).to(w)

    return BatchOracle(evaluate)


class _StubPass:
    """A forward pass of two samples with random logits; activations are the logits too."""

    def __init__(self, calls: Counter[str], w: Tensor, classes: int):
        self.calls, self.w = calls, w
        self.out = torch.randn(2, classes, generator=torch.Generator().manual_seed(0)).to(w)
        self.x, self.y, self.loss = self.out, self.out.argmin(1), self.out.new_ones(())
        self.activations: Any = defaultdict(lambda: (self.out, self.out))

    def at(self, w: Tensor) -> "_StubPass":
        self.calls["forward passes"] += 1
        return self

    def with_head_offset(self, e: Tensor, detached: bool = False) -> "_StubPass":
        return self


class _RecordingView(View):
    """A view that notes the names that one hook of one term reads and assigns."""

    _term: int
    _hook: str
    _read: set[str]
    _assigned: set[str]

    def __init__(self, index: int, term: Term, hook: str, facts: Facts, *states: States):
        super().__init__(term, hook, facts, *states)
        self.__dict__.update(_term=index, _hook=hook, _read=set(), _assigned=set())

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name[0] != "_":
            self.__dict__["_read"].add(name)
        return value

    def __setattr__(self, name: str, value: Tensor) -> None:
        super().__setattr__(name, value)
        self.__dict__["_assigned"].add(name)


class _Recorded(Algorithm):
    """An algorithm that keeps the views of its hooks."""

    used: list[_RecordingView]

    def _views(self, hook: str, facts: Facts, *states: Sequence[States]) -> list[View]:
        given = enumerate(zip(self.terms, *states, strict=True))
        views = [_RecordingView(i, term, hook, facts, *its) for i, (term, *its) in given]
        self.used += views
        return [*views]


class _DummyRound:
    """One visit from random states, by start, one step and report, and the server's update."""

    def __init__(self, terms: Sequence[Term], layout: Layout, w: Tensor, classes: int):
        self.w, random = w, torch.Generator().manual_seed(1)

        def begun(lifetime: str) -> list[States]:
            return [_random(term, lifetime, w, random) for term in terms]

        self.client, self.server = begun("client"), begun("server")
        local = begun("local")
        kept = [{**mine, **visit} for mine, visit in zip(self.client, local, strict=True)]
        self.calls = Counter[str]()
        recorded, oracle = _Recorded(*terms), _stub(self.calls, classes)
        self.used = recorded.used = []
        facts = dummy_facts(layout, w, classes)
        started = {name: fact for name, fact in facts.items() if name != "origin"}
        server = self.server

        origin, states = recorded.start(w, started, kept, server)
        elsewhere, _ = recorded.start(w + 1, {**started, "anchor": w + 1}, kept, server)
        self.origin_depends_on_model = not origin.equal(elsewhere)
        facts["origin"] = origin
        direction, states = recorded.gradient(oracle, origin.clone(), facts, states, server)
        self.progress = -direction
        messages, _ = recorded.report(origin - direction, facts, states, server)
        common = {name: facts[name] for name in ROUND_FACTS}
        delta, _ = recorded.update(self.progress, messages, common, server)
        other, _ = recorded.update(2 * self.progress, messages, common, server)
        self.server_uses_progress = not delta.equal(other)
        self.has_horizon = any("rounds" in view._read for view in self.used)
        # the server gave out the weight
        self.messages = [m for m in tree_leaves(messages) if m is not facts["weight"]]
        recorded.personal(w, common, kept, server)  # only a mistake would show
        numbers = [origin, direction, delta, *self.messages]
        self.finite = all(bool(t.isfinite().all()) for t in numbers)

    @property
    def unread(self) -> bool:
        """Whether a loss that could not be evaluated may read further states of the server."""
        return self.calls["failures"] > 0 and any(self.server)

    def uplink(self) -> int:
        """Numbers that the server must receive."""
        sent = [m for m in self.messages if not _follows_from(self.progress, m)]
        if self.server_uses_progress or len(sent) < len(self.messages):
            sent.append(self.progress)
        return sum(m.numel() for m in sent)

    def downlink(self) -> tuple[int, tuple[str, ...]]:
        """Numbers and names of what the client must receive."""
        start_only, needed = set[str](), set[tuple[int, str]]()
        if self.origin_depends_on_model:
            start_only.add("model")
        for view in self.used:
            hook, read, server = view._hook, view._read, self.server[view._term]
            # the server can compute a start that depends on nothing of the client's
            own = view._assigned or read - server.keys() - {*ROUND_FACTS}
            by_server = hook == "start" and not own
            if self.unread and hook == "gradient":
                read = read | server.keys()
            for name in read & {"anchor", *server}:
                source = (-1, "model") if name == "anchor" else (view._term, name)
                if by_server:
                    start_only.add(source[1])
                elif hook in ("start", "gradient", "report"):
                    needed.add(source)
        start_only -= {name for _, name in needed}
        names = [name for _, name in sorted(needed)]
        if start_only:  # one vector, made of whatever decides where to start
            names.insert(0, "model" if start_only == {"model"} else "start")
        vectors = [self.w if i < 0 else self.server[i][name] for i, name in needed]
        vectors += [self.w] * bool(start_only)
        return sum(vector.numel() for vector in vectors), tuple(names)


def cost(algorithm: Algorithm, layout: Layout, w: Tensor, classes: int = 10) -> Cost:
    """The cost of `algorithm` for a model like `w` and data with these classes.

    Terms of the role "measure" do not count.
    """
    terms = [term for term in algorithm.terms if "measure" not in term.roles]
    with torch.random.fork_rng(devices=[]):  # a loss may draw random numbers
        dummy = _DummyRound(terms, layout, w, classes)
    down, receives = dummy.downlink()
    return Cost(
        uplink=dummy.uplink(),
        downlink=down,
        client_state=sum(t.numel() for t in tree_leaves(dummy.client)),
        server_state=sum(t.numel() for t in tree_leaves(dummy.server)),
        gradients=dummy.calls["gradients"],
        forward_passes=dummy.calls["forward passes"],
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
