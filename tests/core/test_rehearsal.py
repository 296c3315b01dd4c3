"""Mistakes in a user-defined term, and their messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from executors import on_eager_executors
from mistakes import in_gradient, mistaken
from problems import federation, term, trained
from torch import Tensor

from fl_lightning import Algorithm, Term, TermError, initial, scalar, zeros
from fl_lightning.core.oracle import Oracle
from fl_lightning.terms import SAM, Proximal


def assign(name: str, value: Callable[[Tensor, Any], Any]) -> Callable[..., Any]:
    def gradient(self, oracle, w, v):
        setattr(v, name, value(w, v))
        return oracle(w)

    return gradient


def plus_equals(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    v.c_i += 1
    return oracle(w)


def in_place(name: str) -> Callable[..., Any]:
    def gradient(self, oracle, w, v):
        getattr(v, name).add_(1)
        return oracle(w)

    return gradient


def through_an_alias(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
    v.c_i = v.anchor
    v.c_i.mul_(2)
    return oracle(w)


MEAN_RATE = r"v\.lr.* v\.lr_sum / v\.steps is their mean"
NOTHING = r"failed .* clients report nothing: let `report` return"
MISTAKES: dict[str, dict[str, tuple[Callable[..., Any], str]]] = {
    "gradient": {
        "reads what is not declared": (in_gradient(lambda g, v: g + v.d), "declare a state"),
        "assigns what is not declared": (assign("d", lambda w, v: w), "declare it"),
        "uses +=": (plus_equals, r"instead of v.c \+= x, .* write v.c = v.c \+"),
        "changes a shape": (assign("e", lambda w, v: w[:1]), "as it began, of shape"),
        "changes a dtype": (assign("e", lambda w, v: w > 0), "as it began, of dtype"),
        "assigns a number": (assign("e", lambda w, v: 1.0), "as it began, of shape"),
        "assigns a server state": (assign("c", lambda w, v: w), "`update` only"),
        "assigns a fact": (assign("anchor", lambda w, v: w), "may assign"),
        "returns nothing": (in_gradient(lambda g, v: None), "vector like the model"),
        "returns a number": (in_gradient(lambda g, v: g.sum()), "vector like the model"),
        "returns another dtype": (in_gradient(lambda g, v: g.float()), "torch.float64"),
        "returns it elsewhere": (in_gradient(lambda g, v: g.to("meta")), "model, of device cpu"),
        "lacks an argument": (lambda self, w, v: w, "def gradient"),
        "changes a state in place": (in_place("c_i"), "in place"),
        "changes the received model in place": (in_place("anchor"), "in place"),
        "changes it under another name": (through_an_alias, "in place"),
        "changes the server's state in place": (in_place("c"), "in place"),
        "asks for it at a part": (
            lambda self, oracle, w, v: oracle(w[:1]),
            "vector like the model",
        ),
        "differentiates by autograd": (
            lambda self, oracle, w, v: torch.autograd.grad((w + oracle(w)).sum(), w)[0],
            r"torch\.func\.grad",
        ),
        "differentiates the oracle": (
            lambda self, oracle, w, v: torch.func.grad(oracle.loss)(w),
            "by torch.func",
        ),
        "maps the oracle": (
            lambda self, oracle, w, v: torch.func.vmap(oracle)(w.expand(2, -1))[0],
            "by torch.func",
        ),
        "penalizes the weights in a loss": (
            lambda self, oracle, w, v: oracle.of(lambda b: b.loss + (w - v.anchor).dot(w))(w),
            r"depends on w.* oracle\.of\(loss\)\(w\) \+",
        ),
        "keeps a gradient in itself": (
            lambda self, oracle, w, v: vars(self).setdefault("g", oracle(w)),
            r"self\.g.* as local = ",
        ),
        "reads the learning rate": (in_gradient(lambda g, v: v.lr * g), MEAN_RATE),
    },
    "start": {
        "returns nothing": (lambda self, w, v: None, "vector like the model"),
        "reads where it starts": (lambda self, w, v: v.origin, "what `start` returns"),
        "changes the weights in place": (lambda self, w, v: w.mul_(2), r"return w \+ x"),
    },
    "report": {
        "returns nothing": (lambda self, w, v: None, r"\(\) for no message"),
        "returns a number": (lambda self, w, v: (w, 1.0), "return tensors"),
        "returns whole numbers": (lambda self, w, v: (w > 0).long(), r"such as x.to\(w\)"),
        "returns other shapes": (lambda self, w, v: w[v.round :], "fill up with zeros"),
    },
    "update": {
        "returns nothing": (lambda self, delta, mean, v: None, "vector like the model"),
        "reads a client's fact": (
            lambda self, delta, mean, v: delta / v.lr_sum,
            "`report` returns",
        ),
        "multiplies by a mean of nothing": (lambda self, delta, mean, v: delta * mean, NOTHING),
        "indexes a mean of nothing": (lambda self, delta, mean, v: delta + mean[0], NOTHING),
        "takes its norm": (lambda self, delta, mean, v: delta / mean.norm(), NOTHING),
    },
    "personal": {
        "returns nothing": (lambda self, w, v: None, "vector like the model"),
        "reads where a client started": (lambda self, w, v: v.origin, "It can read"),
        "draws": (lambda self, w, v: w + v.uniform(w), "start, gradient, send or report"),
    },
}


@pytest.mark.parametrize(
    ("hook", "mistake"),
    [(hook, mistake) for hook, mistakes in MISTAKES.items() for mistake in mistakes],
)
def test_a_mistake_shows_before_the_first_round_and_names_the_fix(hook, mistake):
    code, fix = MISTAKES[hook][mistake]
    with pytest.raises(TermError, match=rf"Mistaken\.{hook} (?s:.*){fix}") as caught:
        federation(Algorithm(SAM(), mistaken(hook, code), Proximal()))
    assert str(caught.value).count("Mistaken") == 1


def test_a_gradient_that_another_term_keeps_may_not_change_in_place():
    def keep(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        v.c_i = oracle(w)
        return v.c_i

    keeping = term("Keeping", client={"c_i": zeros}, gradient=keep)
    halving = mistaken("gradient", in_gradient(lambda g, v: g.mul_(0.5)))
    with pytest.raises(TermError, match=r"Mistaken\.gradient .* in place"):
        federation(Algorithm(keeping, halving))
    trained(Algorithm(halving, keeping))


DECLARED = {
    "a state begins as nothing": ({"client": {"c_i": None}}, "client = {'c_i': None}: map each"),
    "a state begins as a number": ({"client": {"c_i": lambda *_: 0.0}}, "'c_i' .* begins as 0.0"),
    "a state begins elsewhere": (
        {"local": {"e": lambda *_: torch.zeros(2, device="meta")}},
        "state 'e' .* begins on meta",
    ),
    "states have no beginning": ({"local": {"e"}}, r"local = {'e'}: map each"),
    "names of no initializers": ({"server": ["c"]}, r"server = \['c'\]: map each"),
    "an initializer takes the model alone": (
        {"server": {"c": torch.zeros_like}},
        r"state 'c' of Mistaken cannot begin .* takes \(first, now\)",
    ),
    "the tags are one text": ({"roles": "server"}, r"roles = 'server': write \('server',\)"),
    "a hook is misspelt": (
        {"gradiant": in_gradient(lambda g, v: -g)},
        "Mistaken has .* 'gradiant', .* is 'gradient'",
    ),
}


@pytest.mark.parametrize("mistake", DECLARED)
def test_a_declaration_that_cannot_be_meant_is_refused(mistake):
    declared, sentence = DECLARED[mistake]
    with pytest.raises(TermError, match=sentence):
        federation(Algorithm(term("Mistaken", **declared)))


def test_a_method_may_be_like_a_hook_after_an_underscore():
    """As the refusal of a misspelt hook advises."""
    federation(Algorithm(term(_gradiant=in_gradient(lambda g, v: -g))))


def test_a_term_may_not_change_itself():
    @dataclass
    class Shrinking(Term):
        rho: float = 0.1

    with pytest.raises(TermError, match=r"Shrinking .* @dataclass\(frozen=True\)"):
        federation(Algorithm(Shrinking()))


def test_a_term_of_dataclass_that_changes_itself_is_told_of_states():
    @dataclass(frozen=True)
    class Keeping(Term):
        def gradient(self, oracle, w, v):
            self.g = oracle(w)
            return self.g

    with pytest.raises(TermError, match=r"Keeping\.gradient assigns .*'g'.* as local = "):
        federation(Algorithm(Keeping()))


def only_in_last_round(hook: str, code: Callable[..., Any]) -> Callable[..., Any]:
    def late(self, *arguments):
        v = arguments[-1]
        plain = getattr(Term, hook)(self, *arguments)
        return code(self, *arguments) if v.round == v.rounds - 1 else plain

    return late


@pytest.mark.parametrize(
    ("hook", "mistake"),
    [
        ("gradient", "returns another dtype"),
        ("gradient", "changes the received model in place"),
        ("start", "reads where it starts"),
        ("report", "returns a number"),
        ("update", "multiplies by a mean of nothing"),
        ("personal", "returns nothing"),
    ],
)
def test_a_mistake_that_only_the_last_round_makes_shows_before_the_first(hook, mistake):
    code, fix = MISTAKES[hook][mistake]
    late = mistaken(hook, only_in_last_round(hook, code))
    with pytest.raises(TermError, match=rf"Mistaken\.{hook} (?s:.*){fix}"):
        federation(Algorithm(SAM(), late, Proximal()), rounds=3)


MESSAGES: dict[str, Callable[[Tensor], Any]] = {
    "fewer": lambda w: (w,),
    "shorter": lambda w: (w, w[1:]),
    "another order": lambda w: (w, w[None]),
    "another structure": lambda w: [w, w],
}


@on_eager_executors
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_another_structure_is_refused_in_every_round(message, executor):
    def report(self, w, v):
        return MESSAGES[message](w) if v.round == 1 else (w, w)

    run = federation(Algorithm(mistaken("report", report)), rounds=3, executor=executor)
    run.train_round()
    with pytest.raises(TermError, match=r"`report` returned messages of shapes .* zeros"):
        run.train_round()


IN_THE_MIDDLE = "changes the received model in place", "changes the server's state in place"
IN_THE_MIDDLE += "assigns what is not declared", "changes a shape"


@on_eager_executors
@pytest.mark.parametrize("mistake", IN_THE_MIDDLE)
def test_what_would_be_wrong_in_silence_is_refused_in_every_round(mistake, executor):
    code, fix = MISTAKES["gradient"][mistake]

    def gradient(self, oracle, w, v):
        return code(self, oracle, w, v) if v.round == 1 else oracle(w)

    run = federation(Algorithm(SAM(), mistaken("gradient", gradient)), rounds=3, executor=executor)
    run.train_round()
    with pytest.raises(TermError, match=fix):
        run.train_round()


@pytest.mark.parametrize(
    ("name", "part"),
    {"weight": "by_size", "server_lr": 0.5, "lr": 0.1, "rate": 0.5, "local": 0.1}.items(),
)
def test_the_parts_of_an_algorithm_are_functions(name, part):
    with pytest.raises(TermError, match=f"{name} of an algorithm is {part!r}"):
        Algorithm(**{name: part})


def test_a_state_that_stays_0_is_found() -> None:
    def report(self: Term, w: Tensor, v: Any) -> Any:
        v.last = v.round
        c_i = v.c_i + w  # noqa: F841
        return ()

    forgetful = term(client={"c_i": zeros, "last": scalar, "first": initial}, report=report)
    run = federation(Algorithm(SAM(), forgetful))
    assert run.local_training.rehearsal.idle == ["v.c_i of Mine"]
