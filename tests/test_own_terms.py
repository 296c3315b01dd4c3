"""A term of a user's own, and the mistakes that one makes writing it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from problems import (
    distances,
    federation,
    hard,
    layout,
    rows,
    trained,
    vec,
)
from torch import Tensor

from fl_lightning import (
    Algorithm,
    Stacked,
    Term,
    TermError,
    initial,
    scalar,
    zeros,
)
from fl_lightning.cost import trial_facts
from fl_lightning.oracle import Oracle
from fl_lightning.term import FACTS
from fl_lightning.terms import (
    SAM,
    Proximal,
)

STACKED = partial(Stacked, width=3)


@dataclass(frozen=True)
class Anchored(Term):
    """Pulls towards the mean of the models this client received; the server leans on the mean of the pulls."""

    mu: float = 0.1
    client = {"mean_i": initial, "visits": scalar}
    server = {"pull": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.mu * (w - v.mean_i)

    def report(self, w: Tensor, v: Any) -> tuple[Tensor, Tensor]:
        v.visits = v.visits + 1
        v.mean_i = v.mean_i + (v.anchor - v.mean_i) / v.visits
        return v.mean_i - v.anchor, v.visits

    def update(self, delta: Tensor, mean: tuple[Tensor, Tensor], v: Any) -> Tensor:
        v.pull = v.pull + v.share * mean[0]
        return delta + self.mu * v.pull / mean[1]


def test_a_users_term_runs_in_both_executors() -> None:
    one_by_one, together = trained(hard(Algorithm(Anchored()))), trained(hard(Algorithm(Anchored())), executor=STACKED)
    assert max(distances(one_by_one, together).values()) <= 1e-10
    assert rows(one_by_one, "visits").tolist() == [2, 2, 2, 2, 2, 1]


def in_gradient(mistake: Callable[[Tensor, Any], Any]) -> Callable[..., Any]:
    return lambda self, oracle, w, v: mistake(oracle(w), v)


def assign(name: str, value: Callable[[Tensor, Any], Any]) -> Callable[..., Any]:
    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        setattr(v, name, value(w, v))
        return oracle(w)

    return gradient


def add_up(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    v.c_i += 1
    return oracle(w)


def branch(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return oracle(w) if w.sum() > 0 else -oracle(w)


def loop(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return sum((oracle(w) for _ in range(int(v.steps))), torch.zeros_like(w))


def pick(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return oracle(w) * w[w > 0].sum()


def noise(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return oracle(w) + torch.randn_like(w)


def in_place(name: str) -> Callable[..., Any]:
    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        getattr(v, name).add_(1)
        return oracle(w)

    return gradient


def through_an_alias(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    v.c_i = v.anchor
    v.c_i.mul_(2)
    return oracle(w)


def weights_in_place(self: Term, w: Tensor, v: Any) -> Tensor:
    w.mul_(2)
    return w


def mistaken(hook: str, code: Callable[..., Any]) -> Term:
    states = {"client": {"c_i": zeros}, "server": {"c": zeros}, "local": {"e": zeros}}
    return type("Mistaken", (Term,), {**states, hook: code})()


AT_ONCE = {
    "an undeclared state is read": ("gradient", in_gradient(lambda g, v: g + v.d), "Declare a state"),
    "an undeclared state is assigned": ("gradient", assign("d", lambda w, v: w), "Declare it"),
    "a state gets +=": ("gradient", add_up, r"write v.c_i = v.c_i \+"),
    "a state gets another shape": ("gradient", assign("e", lambda w, v: w[:1]), "keep the shape in which it began"),
    "a state gets a number": ("gradient", assign("e", lambda w, v: 1.0), "a tensor of shape"),
    "a client assigns a server state": ("gradient", assign("c", lambda w, v: w), "assigned in `update` only"),
    "a fact is assigned": ("gradient", assign("anchor", lambda w, v: w), "may assign"),
    "gradient forgets to return": ("gradient", in_gradient(lambda g, v: None), "must return a vector like the model"),
    "gradient returns a number": ("gradient", in_gradient(lambda g, v: g.sum()), "must return a vector like the model"),
    "start forgets to return": ("start", lambda self, w, v: None, "must return a vector like the model"),
    "start reads where it starts": ("start", lambda self, w, v: v.origin, "It can read"),
    "update forgets to return": ("update", lambda self, delta, mean, v: None, "must return a vector like the model"),
    "update reads a client's fact": ("update", lambda self, delta, mean, v: delta / v.span, "`report` returns"),
    "update reads a client's state": ("update", lambda self, delta, mean, v: delta + v.c_i, "`report` returns"),
    "the message is None": ("report", lambda self, w, v: None, "to say nothing"),
    "the message is a number": ("report", lambda self, w, v: (w, 1.0), "return a tensor or a tuple of tensors"),
    "a state changes in place": ("gradient", in_place("c_i"), r"write v.c = v.c \+ x"),
    "a server state changes in place": ("gradient", in_place("c"), r"write v.c = v.c \+ x"),
    "the received model changes in place": ("gradient", in_place("anchor"), r"write v.c = v.c \+ x"),
    "it changes under another name": ("gradient", through_an_alias, r"write v.c = v.c \+ x"),
    "start changes the weights in place": ("start", weights_in_place, r"return w \+ x"),
}


@pytest.mark.parametrize("mistake", AT_ONCE)
def test_a_mistake_shows_before_the_first_round_and_names_the_mend(mistake: str) -> None:
    hook, code, mend = AT_ONCE[mistake]
    with pytest.raises(TermError, match=rf"Mistaken\.{hook} (?s:.*){mend}"):
        federation(Algorithm(SAM(), mistaken(hook, code), Proximal()))


STACKED_ONLY = {"if on a tensor": branch, "int() of the steps": loop, "boolean indexing": pick}


@pytest.mark.parametrize("mistake", STACKED_ONLY)
def test_what_cannot_run_for_several_clients_at_once_is_named(mistake: str) -> None:
    algorithm = Algorithm(SAM(), mistaken("gradient", STACKED_ONLY[mistake]))
    run = federation(algorithm, executor=STACKED)
    with pytest.raises(TermError, match=r"Mistaken\.gradient cannot run .* torch\.where.* sequential executor"):
        run.train_round()
    trained(algorithm)


def test_item_in_a_report_is_named_too() -> None:
    def report(self: Term, w: Tensor, v: Any) -> Tensor:
        return w * v.span.item()

    with pytest.raises(TermError, match=r"Mistaken\.report cannot run .*\.item\(\)"):
        federation(Algorithm(mistaken("report", report)), executor=STACKED).train_round()


def test_an_ordinary_error_in_a_term_says_where_it_was() -> None:
    with pytest.raises(RuntimeError) as caught:
        federation(Algorithm(mistaken("gradient", in_gradient(lambda g, v: g @ g[:3]))))
    assert caught.value.__notes__ == ["raised in Mistaken.gradient"]


@pytest.mark.parametrize("name", [*sorted(FACTS), "_mine", "c"])
def test_a_states_name_may_not_hide_anything_else(name: str) -> None:
    hiding = type("Hiding", (Term,), {"server": {"c": zeros}, "client": {name: zeros}})
    with pytest.raises(TermError, match=rf"Hiding declares a state '{name}'.*Rename it"):
        Algorithm(hiding())


def test_the_facts_are_those_that_a_visit_tells() -> None:
    told: set[str] = set()

    @dataclass(frozen=True)
    class Witness(Term):
        def report(self, w: Tensor, v: Any) -> Any:
            told.update(name for name in v.__dict__ if not name.startswith("_"))
            return ()

    trained(Algorithm(Witness()))
    assert told == FACTS == set(trial_facts(layout(), vec(1, 1)))
