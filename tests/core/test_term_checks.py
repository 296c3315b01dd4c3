"""The mistakes that one makes writing a term, and what is said of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from problems import distances, federation, trained, vec
from torch import Tensor

from fl_lightning import Algorithm, SequentialExecutor, StackedExecutor, Term, TermError, zeros
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term_checks import check_alike
from fl_lightning.terms import SAM, Proximal

STACKED = partial(StackedExecutor, width=3)


def in_gradient(mistake: Callable[[Tensor, Any], Any]) -> Callable[..., Any]:
    return lambda self, oracle, w, v: mistake(oracle(w), v)


def assign(name: str, value: Callable[[Tensor, Any], Any]) -> Callable[..., Any]:
    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        setattr(v, name, value(w, v))
        return oracle(w)

    return gradient


def all_reduce_sum(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
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


def by_numpy(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    return torch.from_numpy(np.sign(oracle(w).numpy()))


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


MISTAKES = {
    "an undeclared state is read": (
        "gradient",
        in_gradient(lambda g, v: g + v.d),
        "Declare a state",
    ),
    "an undeclared state is assigned": ("gradient", assign("d", lambda w, v: w), "declare it"),
    "a state gets +=": ("gradient", all_reduce_sum, r"write v.c_i = v.c_i \+"),
    "a state gets another shape": ("gradient", assign("e", lambda w, v: w[:1]), "keep the shape"),
    "a state gets another dtype": ("gradient", assign("e", lambda w, v: w > 0), "keep the dtype"),
    "a state gets a number": ("gradient", assign("e", lambda w, v: 1.0), "a tensor of shape"),
    "a client assigns a server state": ("gradient", assign("c", lambda w, v: w), "`update` only"),
    "a fact is assigned": ("gradient", assign("anchor", lambda w, v: w), "may assign"),
    "gradient forgets to return": (
        "gradient",
        in_gradient(lambda g, v: None),
        "vector like the model",
    ),
    "gradient returns a number": (
        "gradient",
        in_gradient(lambda g, v: g.sum()),
        "vector like the model",
    ),
    "gradient returns another dtype": (
        "gradient",
        in_gradient(lambda g, v: g.float()),
        "torch.float64",
    ),
    "gradient returns it elsewhere": (
        "gradient",
        in_gradient(lambda g, v: g.to("meta")),
        "like the model, cpu",
    ),
    "gradient lacks an argument": ("gradient", lambda self, w, v: w, "def gradient"),
    "start forgets to return": ("start", lambda self, w, v: None, "vector like the model"),
    "start reads where it starts": ("start", lambda self, w, v: v.origin, "It can read"),
    "update forgets to return": (
        "update",
        lambda self, delta, mean, v: None,
        "vector like the model",
    ),
    "update reads a client's fact": (
        "update",
        lambda self, delta, mean, v: delta / v.span,
        "`report` returns",
    ),
    "update reads a client's state": (
        "update",
        lambda self, delta, mean, v: delta + v.c_i,
        "`report` returns",
    ),
    "the message is None": ("report", lambda self, w, v: None, "for no message"),
    "the message is a number": ("report", lambda self, w, v: (w, 1.0), "a tuple of tensors"),
    "the message is of whole numbers": ("report", lambda self, w, v: (w > 0).long(), "return x.to"),
    "personal forgets to return": ("personal", lambda self, w, v: None, "vector like the model"),
    "personal reads where a client started": (
        "personal",
        lambda self, w, v: v.origin,
        "It can read",
    ),
    "a state changes in place": ("gradient", in_place("c_i"), "in place"),
    "a server state changes in place": ("gradient", in_place("c"), "in place"),
    "the received model changes in place": ("gradient", in_place("anchor"), "in place"),
    "it changes under another name": ("gradient", through_an_alias, "in place"),
    "start changes the weights in place": ("start", weights_in_place, r"return w \+ x"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows_before_the_first_round_and_names_the_fix(mistake: str) -> None:
    hook, code, fix = MISTAKES[mistake]
    with pytest.raises(TermError, match=rf"Mistaken\.{hook} (?s:.*){fix}"):
        federation(Algorithm(SAM(), mistaken(hook, code), Proximal()))


DECLARED = {
    "a state begins as nothing": ({"client": {"c_i": None}}, "client state 'c_i' .* NoneType"),
    "a state begins as a tensor": ({"server": {"c": torch.zeros(2)}}, "server state 'c' .* Tensor"),
    "a state begins as a number": (
        {"client": {"c_i": lambda *_: 0.0}},
        "state 'c_i' .* begins as 0.0",
    ),
    "a state begins elsewhere": (
        {"local": {"e": lambda *_: torch.zeros(2, device="meta")}},
        "state 'e' .* begins on meta",
    ),
    "states have no beginning": ({"local": {"e"}}, r"local as a set"),
    "a hook is misspelt": (
        {"gradiant": in_gradient(lambda g, v: -g)},
        "Mistaken has .* 'gradiant', .* is 'gradient'",
    ),
}


@pytest.mark.parametrize("mistake", DECLARED)
def test_a_declaration_that_cannot_be_meant_is_refused(mistake: str) -> None:
    declared, sentence = DECLARED[mistake]
    with pytest.raises(TermError, match=sentence):
        federation(Algorithm(type("Mistaken", (Term,), declared)()))


def test_a_term_may_not_change_itself() -> None:
    @dataclass
    class Shrinking(Term):
        rho: float = 0.1

    with pytest.raises(TermError, match=r"Shrinking .* @dataclass\(frozen=True\)"):
        Algorithm(Shrinking())


@pytest.mark.parametrize("executor", [SequentialExecutor, STACKED], ids=["sequential", "stacked"])
@pytest.mark.parametrize("name", ["anchor", "c"])
def test_what_all_share_may_not_change_in_place_in_a_later_round_either(
    name: str, executor: Any
) -> None:
    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        if v.round == 2:  # the made-up visit is of round 1
            getattr(v, name).mul_(0.5)
        return oracle(w)

    run = federation(
        Algorithm(SAM(), mistaken("gradient", gradient), Proximal()), executor=executor
    )
    run.train_round()
    run.train_round()
    with pytest.raises(TermError, match=r"Mistaken\.gradient changes .* in place"):
        run.train_round()


def test_a_message_is_made_alike_in_all_rounds() -> None:
    terms, one, other = [SAM(), Proximal()], [(), (vec(1, 2), vec(1))], [(), (vec(1, 2, 3), vec(1))]
    check_alike(one, one, terms)
    for message in (other, [(), vec(1, 2)]):
        with pytest.raises(
            TermError, match=r"Proximal\.report returned .* of shapes .* fill up with zeros"
        ):
            check_alike(message, one, terms)


STACKED_ONLY = {
    "if on a tensor": (branch, r"torch\.where"),
    "int() of the steps": (loop, r"torch\.where"),
    "boolean indexing": (pick, r"torch\.where"),
    "random numbers": (noise, "draw random numbers in `update` only"),
    "numpy": (by_numpy, "functions of torch, not of numpy"),
}


@pytest.mark.parametrize("mistake", STACKED_ONLY)
def test_what_cannot_run_for_several_clients_at_once_is_named(mistake: str) -> None:
    code, fix = STACKED_ONLY[mistake]
    algorithm = Algorithm(SAM(), mistaken("gradient", code))
    run = federation(algorithm, executor=STACKED)
    with pytest.raises(
        TermError, match=rf"Mistaken\.gradient cannot run .* {fix}.* sequential executor"
    ) as caught:
        run.train_round()
    assert "bug report" not in str(caught.value)
    trained(algorithm)


def test_what_cannot_be_compiled_is_named_with_what_can() -> None:
    def early(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) if v.round < 1 else 0.5 * oracle(w)

    def fixed(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        return (v.round < 1) * g + (v.round >= 1) * 0.5 * g

    compiled = partial(StackedExecutor, width=1, compiled=5)
    with pytest.raises(TermError, match=r"Mistaken\.gradient branches .* \(v\.round < 3\) \* a \+"):
        trained(Algorithm(mistaken("gradient", early)), executor=compiled)
    plain, same = (
        trained(Algorithm(mistaken("gradient", early))),
        Algorithm(mistaken("gradient", fixed)),
    )
    for executor in (SequentialExecutor, compiled):
        assert max(distances(plain, trained(same, executor=executor)).values()) <= 1e-10


def test_item_in_a_report_is_named_too() -> None:
    def report(self: Term, w: Tensor, v: Any) -> Tensor:
        return w * v.span.item()

    with pytest.raises(TermError, match=r"Mistaken\.report cannot run .*\.item\(\)"):
        federation(Algorithm(mistaken("report", report)), executor=STACKED).train_round()


def test_an_ordinary_error_in_a_term_says_where_it_was() -> None:
    with pytest.raises(RuntimeError) as caught:
        federation(Algorithm(mistaken("gradient", in_gradient(lambda g, v: g @ g[:3]))))
    assert caught.value.__notes__ == ["raised in Mistaken.gradient"]
