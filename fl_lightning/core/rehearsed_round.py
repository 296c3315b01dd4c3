"""One round on random vectors, whose terms are guarded and watched: the first or last of a run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.algorithm import Algorithm, Facts, Sent
from fl_lightning.core.curves import Coefficients
from fl_lightning.core.guarded_term import VISIT, GuardedTerm, StrictView
from fl_lightning.core.oracle import Activations, BatchOracle, Loss, Request
from fl_lightning.core.term import States, Term, init_states
from fl_lightning.core.vector import Layout
from fl_lightning.core.view import KEY, MOVES, ROUND_FACTS
from fl_lightning.errors import ModelError, TermError


def dummy_facts(
    layout: Layout,
    w: Tensor,
    classes: int = 10,
    round: int = 1,
    rounds: int = 2,
    clients: int = 2,
) -> dict[str, Any]:
    """Facts of a made-up visit at `w`, of a client with one sample of each class."""
    vectors = {"anchor": w, "origin": w, "labels": w.new_ones(classes)}
    numbers = {name: w.new_ones(()) for name in ("steps", "epochs", "lr_sum", "size", "weight")}
    numbers["client"] = torch.zeros((), dtype=torch.int64, device=w.device)
    halves = dict.fromkeys(("participation", "inclusion_probability"), 0.5)
    run = {"round": round, "rounds": rounds, "clients": clients, "base_lr_sum": 1.0}
    return {**vectors, **numbers, **halves, **run, "layout": layout}


class RehearsedRound:
    """A visit from random states, by start, one step and report, and the server's update."""

    def __init__(
        self,
        algorithm: Algorithm,
        facts: Facts,
        frozen: Mapping[str, Tensor] = {},
        cohort: int = 1,
    ):
        self.algorithm, now = algorithm, (facts["round"], facts["rounds"])
        terms, self.coefficients = algorithm.at(*now).terms, algorithm.coefficients(*now)
        facts = {name: fact for name, fact in facts.items() if name != "origin"}
        self.counted = [i for i, term in enumerate(terms) if "measure" not in term.roles]
        w, random = facts["anchor"], torch.Generator().manual_seed(facts["round"])
        self.client, self.server, local = (
            _random_states(terms, lifetime, facts, random)
            for lifetime in ("client", "server", "local")
        )
        for term, visit in zip(terms, local, strict=True):
            visit |= {KEY: torch.ones((), dtype=torch.int64, device=w.device)} if term.draws else {}
        self.kept = [{**mine, **visit} for mine, visit in zip(self.client, local, strict=True)]
        self.noise = torch.randn(w.shape, generator=random).to(w)
        classes = max(2, len(facts["labels"]))  # data without classes count as of one
        self.logits = torch.randn(2, classes, generator=random).to(w)
        self.calls, self.views, self.parallel = Counter[str](), list[StrictView](), False
        self.facts, rehearsed = facts, self._guarded(self.coefficients)

        moves = dict[str, Tensor]()
        common = {name: facts[name] for name in ROUND_FACTS} | {"frozen": frozen, MOVES: moves}
        combines = algorithm.combining is not None
        if combines:  # a rule may count on these
            common["participation"] = cohort / facts["clients"]
            common["cohort"] = torch.arange(cohort, device=w.device)
        there = facts | {"anchor": w + 1}
        elsewhere, _ = rehearsed.start(w + 1, there, self.kept, self.server)

        def alone(hook: Callable[..., Any], facts: Facts, *own: Any) -> Any:
            return hook(rehearsed, facts, self.server, *own)

        played = self._visit(alone, facts, self.kept)
        origin, direction, (self.progress, _, bits), self.messages = played
        if bits < 0:
            raise TermError(
                f"the terms send {bits:,.0f} bits, as one counts what another has saved: declare "
                "roles = frozenset({'round'}) where `send` rounds, 'select' where it leaves out"
            )
        self.sent_numbers = round(bits.item() / (8 * w.element_size()))
        self.starts_elsewhere = origin is not w
        self.depends_on_model = int((origin != elsewhere).sum())

        def updated(progress: Tensor) -> Tensor:
            updates = progress.expand(cohort, -1).clone() if combines else None
            return rehearsed.update(progress, self.messages, common, self.server, updates)[0]

        delta, other = updated(self.progress), updated(self.progress + self.noise)
        self.server_uses_progress = not delta.equal(other)
        self.moved = {name: by.numel() for name, by in moves.items()}
        undrawn = [{name: s for name, s in kept.items() if name != KEY} for kept in self.kept]
        rehearsed.personal(w, common, undrawn, self.server)  # only a mistake would show
        numbers = [origin, direction, delta, *tree_leaves(self.messages)]
        self.finite = all(bool(t.isfinite().all()) for t in numbers)

    def _guarded(self, coefficients: Coefficients) -> Algorithm:
        """The algorithm with these numbers for its curves, its terms guarded."""
        terms = self.algorithm.with_coefficients(coefficients).terms
        return Algorithm(*(GuardedTerm(term, i, self.views) for i, term in enumerate(terms)))

    def _visit(
        self, each: Callable[..., Any], facts: Facts, kept: Sequence[States]
    ) -> tuple[Tensor, Tensor, Sent, list[Any]]:
        """Where a client starts, the direction of its step, what it sends, and its messages.

        `each(hook, facts, ...)` calls a hook with the algorithm, the facts, the server's states
        and the rest.
        """

        def start(method: Algorithm, facts: Facts, server: Any, kept: Any) -> Any:
            return method.start(facts["anchor"], facts, kept, server)

        def step(method: Algorithm, facts: Facts, server: Any, w: Tensor, kept: Any) -> Any:
            return method.gradient(BatchOracle(self._evaluate), w, facts, kept, server)

        def end(
            method: Algorithm, facts: Facts, server: Any, g: Tensor, w: Tensor, kept: Any
        ) -> Any:
            return method.send(-g, w - g, facts, kept, server)

        origin, kept = each(start, facts, kept)
        facts = {**facts, "origin": origin}
        with torch.no_grad():  # as in a local step
            direction, kept = each(step, facts, origin.clone(), kept)
        sent, messages, _ = each(end, facts, direction, origin, kept)
        return origin, direction, sent, messages

    def visit_in_parallel(self, compiled: bool) -> None:
        """The visit of two clients under `vmap`; of compiled steps, all numbers are tensors.

        What the server sends is one tensor for clients of one run, and a row for each of several.
        """

        def as_tensor(fact: Any) -> Any:
            is_number = compiled and isinstance(fact, float | int)
            return self.noise.new_full((), fact) if is_number else fact

        facts, coefficients = (tree_map(as_tensor, n) for n in (self.facts, self.coefficients))
        of_round = {name: facts.pop(name) for name in ROUND_FACTS}
        self.parallel = True
        try:
            for several_runs in (False, True):
                self._in_parallel(facts, (of_round, self.server, coefficients), several_runs)
        except Exception as error:
            if compiled:
                error.add_note("with --compile all numbers of the view and of curves are tensors")
            raise

    def _in_parallel(self, facts: Facts, shared: tuple[Any, ...], several_runs: bool) -> None:
        """The visit of two clients, each hook under its own `vmap`, as in the executor."""

        def rows(tree: Any) -> Any:
            return tree_map(lambda t: torch.stack([t, t]) if isinstance(t, Tensor) else t, tree)

        dims = tree_map(lambda t: 0 if several_runs and isinstance(t, Tensor) else None, shared)
        given = rows(shared) if several_runs else shared

        def each(hook: Callable[..., Any], facts: Facts, *own: Any) -> Any:
            def of_one(shared: tuple[Any, ...], facts: Facts, *own: Any) -> Any:
                of_round, server, coefficients = shared
                return hook(self._guarded(coefficients), {**of_round, **facts}, server, *own)

            return vmap(of_one, (dims, 0, *[0] * len(own)))(given, facts, *own)

        self._visit(each, rows(facts), rows(self.kept))

    def _evaluate(self, w: Tensor, request: Request) -> Tensor:
        """A random gradient, or a positive loss."""
        self.calls["forward passes" if request.loss_only else "gradients"] += 1
        for loss in request.losses:  # for what they read of their views

            def value(w: Tensor, loss: Loss = loss) -> Tensor:
                return loss(_DummyPass(self, w, request.layers))  # type: ignore[arg-type]

            last = loss is request.losses[-1]  # the one that is differentiated
            at = w if self.parallel else w.detach().requires_grad_(last)
            try:
                with torch.enable_grad():
                    (grad(value) if self.parallel else value)(at)
            except (TermError, ModelError):
                raise
            except Exception:  # it needs the model
                self.calls["failures"] += 1
        if request.loss_only:
            return 1 + self.logits.abs().mean() + 0 * w.sum()
        return self.noise.roll(self.calls["gradients"]) + 0 * w

    @property
    def unread(self) -> bool:
        """Whether a loss that could not be evaluated may read further states of the server."""
        return self.calls["failures"] > 0 and any(self.server[i] for i in self.counted)

    def uplink(self) -> tuple[int, int]:
        """Numbers that the server must receive: of messages, and in all."""
        weight = self.facts["weight"]  # which the server gave out
        messages = tree_leaves([self.messages[i] for i in self.counted])
        unknown = tree_leaves([self._unknown(i) for i in self.counted])
        sent = [m for m in unknown if m is not weight and not _follows_from(self.progress, m)]
        numbers = sum(m.numel() for m in sent)
        made = len(sent) < sum(m is not weight for m in messages)  # from what is sent
        needed = self.server_uses_progress or made
        return numbers, numbers + needed * self.sent_numbers

    def _unknown(self, i: int) -> Any:
        """The message of a term, without what the server can make itself of what is sent."""
        start = all(map(self._by_server, (v for v in self.views if v._hook == "start")))
        reports = (v for v in self.views if (v._hook, v._term) == ("report", i))
        return () if start and all(map(self._by_server, reports)) else self.messages[i]

    def _by_server(self, view: StrictView) -> bool:
        """Whether the server can do what a hook does: it knows all of the client that this takes.

        It can weigh a client in the place of `send`, if that passes on the move as it is.
        """
        known = {*ROUND_FACTS, "origin", "client", "weight", "log", *self.server[view._term]}
        sends = view._hook == "send"
        if view._assigned - ({"weight"} if sends else set()) or (sends and not view._passes_on):
            return False
        return view._read <= known

    def downlink(self) -> tuple[set[str], set[tuple[int, str]]]:
        """What decides where to start, and what else the client must receive: its term, its name.

        The model's term is -1.
        """
        start_only, needed = {"model"} if self.depends_on_model else set[str](), set()
        for view in self.views:
            if view._term not in self.counted:
                continue
            hook, read, server = view._hook, view._read, self.server[view._term]
            by_server = self._by_server(view)
            server_ends = by_server and hook in ("send", "report")
            if self.unread and hook == "gradient":
                read = read | server.keys()
            for name in read & {"anchor", *server}:
                source = (-1, "model") if name == "anchor" else (view._term, name)
                if by_server and hook == "start":
                    start_only.add(source[1])
                elif hook in VISIT and not (server_ends and name in server):
                    needed.add(source)
        return start_only, needed


class _DummyPass:
    """A forward pass of two samples with random logits; activations are the logits too."""

    def __init__(self, round: RehearsedRound, w: Tensor, layers: tuple[str, ...]):
        self.round, self.layers, self.out = round, layers, round.logits + 0 * w.sum()
        self.x, self.y, self.loss = self.out, self.out.argmin(1), 1 + 0 * w.sum()
        self.activations = Activations(layers)
        self.activations.update(dict.fromkeys(layers, (self.out, self.out)))

    def at(self, w: Tensor) -> "_DummyPass":
        self.round.calls["forward passes"] += 1
        return _DummyPass(self.round, w.detach(), self.layers)

    def with_head_offset(self, e: Tensor, detached: bool = False) -> "_DummyPass":
        return self


def _random_states(
    terms: Sequence[Term], lifetime: str, facts: Facts, random: torch.Generator
) -> list[States]:
    w = facts["anchor"]
    begun = init_states(terms, lifetime, w, w, facts["layout"], facts["clients"])

    def drawn(t: Tensor) -> Tensor:  # from 0 to 1: second moments have roots, counts logarithms
        return torch.rand(t.shape, generator=random).to(t) if t.is_floating_point() else t

    return [{name: drawn(t) for name, t in states.items()} for states in begun]


def _follows_from(progress: Tensor, message: Tensor) -> bool:
    """Whether a message is a multiple of the client's progress, which the server has anyway."""
    if message.shape != progress.shape:
        return False
    rest = message - progress * (message.dot(progress) / progress.dot(progress))
    return bool(rest.norm() <= 1e-4 * message.norm())
