"""Mistakes in a user-defined loss, and the messages of every executor."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from problems import classifier, trained
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import (
    Algorithm,
    ModelError,
    SequentialExecutor,
    StackedExecutor,
    Term,
    TermError,
    scalar,
)
from fl_lightning.core.oracle import ForwardPass, Oracle
from fl_lightning.terms import Contrastive, Distill

TOGETHER = {
    "stacked": partial(StackedExecutor, width=3),
    "traced": partial(StackedExecutor, width=1, compiled=5),
    "traced and stacked": partial(StackedExecutor, width=2, compiled=5),
}
ALL = {"sequential": SequentialExecutor, **TOGETHER}
ON_ALL = pytest.mark.parametrize("executor", ALL.values(), ids=ALL)

pytestmark = pytest.mark.usefixtures("traces")


def mistaken(loss: Callable[[ForwardPass, Any], Tensor], *layers: str) -> Term:
    """A term that asks for the loss in the middle of two others."""

    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: loss(b, v), *layers)(w)

    return type("Mistaken", (Term,), {"gradient": gradient, "local": {"F": scalar}})()


def adds_up(b: ForwardPass, v: Any) -> Tensor:
    v.F = v.F + b.loss.detach()
    return b.loss


MISTAKES: dict[str, tuple[Term, str]] = {
    "it assigns a state": (
        mistaken(adds_up),
        r"'s loss assigns v\.F, .* v\.F = v\.F \+ oracle\.loss\(w\)",
    ),
    "it looks at what it has not named": (
        mistaken(lambda b, v: b.activations["drop"][1].sum(), "tanh"),
        r"'s loss, .*'drop'.* oracle\.of\(loss, 'drop'\).* 'outer', 'tanh'",
    ),
}


@ON_ALL
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_loss_is_one_sentence_that_names_the_term(
    mistake: str, executor: Any
) -> None:
    term, said = MISTAKES[mistake]
    with pytest.raises((TermError, ModelError), match=rf"Mistaken\.gradient{said}"):
        trained(Algorithm(Distill(), term, Contrastive()), executor=executor)


@ON_ALL
@pytest.mark.parametrize(
    "ask", [lambda oracle, w: oracle(w).sum(), lambda oracle, w: oracle.loss(w)]
)
def test_a_loss_asks_no_oracle(ask: Callable[[Oracle, Tensor], Tensor], executor: Any) -> None:
    # One after another it would change the weights under the pass of which the gradient is
    # yet to come.

    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: b.loss + ask(oracle, w))(w)

    term = type("Mistaken", (Term,), {"gradient": gradient})()
    with pytest.raises(
        TermError, match=r"Mistaken\.gradient's loss asks for oracle.*\(w\), .* b\.at\(w\)\.loss"
    ):
        trained(Algorithm(term), executor=executor)


@pytest.mark.parametrize("executor", TOGETHER.values(), ids=TOGETHER)
def test_a_loss_that_one_hot_encodes_is_named_with_what_to_write_instead(executor: Any) -> None:
    term = mistaken(lambda b, v: b.loss + (F.one_hot(b.y, 3) * b.out).mean())
    with pytest.raises(TermError, match=r"Mistaken\.gradient's loss .* torch\.arange"):
        trained(Algorithm(Distill(), term, Contrastive()), executor=executor)
    trained(Algorithm(term))


def test_a_submodule_that_the_model_does_not_call_is_named() -> None:
    module = classifier()
    module.add_module("spare", torch.nn.ModuleDict({"idle": torch.nn.Linear(2, 2)}).double())
    module.forward = lambda x: torch.nn.Sequential(*list(module)[:-1])(x)  # type: ignore[method-assign]
    term = mistaken(lambda b, v: b.activations["spare.idle"][1].sum(), "spare.idle")
    with pytest.raises(ModelError, match=r"'spare\.idle'.* does not call"):
        trained(Algorithm(term), module=module)
