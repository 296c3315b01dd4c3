"""Mistakes in a user-defined loss, and the messages of every executor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executors import ALL, on_all_executors
from problems import adding, classifier, term, trained
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import Algorithm, ModelError, Term, TermError, scalar
from fl_lightning.core.oracle import ForwardPass, Oracle
from fl_lightning.terms import Contrastive, Distill

FUNCTIONAL = {name: executor for name, executor in ALL.items() if name != "sequential"}

pytestmark = pytest.mark.usefixtures("traces")


def adds_up(b: ForwardPass, v: Any) -> Tensor:
    v.F = v.F + b.loss.detach()
    return b.loss


MISTAKES: dict[str, tuple[Term, str]] = {
    "it assigns a state": (
        adding(adds_up, local={"F": scalar}),
        r"'s loss assigns v\.F, .* v\.F = v\.F \+ oracle\.loss\(w\)",
    ),
    "it looks at what it has not named": (
        adding(lambda b, v: b.activations["drop"][1].sum(), "tanh"),
        r"'s loss, .*'drop'.* oracle\.of\(loss, 'drop'\).* 'outer', 'tanh'",
    ),
}


@on_all_executors
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_loss_is_one_sentence_that_names_the_term(
    mistake: str, executor: Any
) -> None:
    mistaken, said = MISTAKES[mistake]
    with pytest.raises((TermError, ModelError), match=rf"Asking\.gradient{said}"):
        trained(Algorithm(Distill(), mistaken, Contrastive()), executor=executor)


@on_all_executors
@pytest.mark.parametrize(
    "ask", [lambda oracle, w: oracle(w).sum(), lambda oracle, w: oracle.loss(w)]
)
def test_a_loss_asks_no_oracle(ask: Callable[[Oracle, Tensor], Tensor], executor: Any) -> None:
    """It would change the weights under the pass whose gradient is still to be taken."""

    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: b.loss + ask(oracle, w))(w)

    said = r"Mine\.gradient's loss asks for oracle.*\(w\), .* b\.at\(w\)\.loss"
    with pytest.raises(TermError, match=said):
        trained(Algorithm(term(gradient=gradient)), executor=executor)


@pytest.mark.parametrize("executor", FUNCTIONAL.values(), ids=FUNCTIONAL)
def test_a_loss_that_one_hot_encodes_is_named_with_what_to_write_instead(executor: Any) -> None:
    mistaken = adding(lambda b, v: b.loss + (F.one_hot(b.y, 3) * b.out).mean())
    with pytest.raises(TermError, match=r"Asking\.gradient's loss .* torch\.arange"):
        trained(Algorithm(Distill(), mistaken, Contrastive()), executor=executor)
    trained(Algorithm(mistaken))


def test_a_submodule_that_the_model_does_not_call_is_named() -> None:
    module = classifier()
    module.add_module("spare", torch.nn.ModuleDict({"idle": torch.nn.Linear(2, 2)}).double())
    module.forward = lambda x: torch.nn.Sequential(*list(module)[:-1])(x)  # type: ignore[method-assign]
    mistaken = adding(lambda b, v: b.activations["spare.idle"][1].sum(), "spare.idle")
    with pytest.raises(ModelError, match=r"'spare\.idle'.* does not call"):
        trained(Algorithm(mistaken), module=module)
