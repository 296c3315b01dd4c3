"""User-defined losses: added, replaced, of features and of other models; and mistakes in them."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from executors import STACKED, assert_agree, on_all_executors, on_eager_executors
from oracles import autograd
from problems import adding, classification, classifier, distances, federation, hard, term, trained
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD

from fl_lightning import Algorithm, ModelError, StackedExecutor, Term, TermError, scalar
from fl_lightning.core.oracle import ForwardPass, Oracle
from fl_lightning.terms import Contrastive, Distill, Proximal

pytestmark = pytest.mark.usefixtures("traces")


def distance(b: ForwardPass, v: Any) -> Tensor:
    """From the outputs and features of the received model."""
    received = b.at(v.anchor)
    features = (b.activations["tanh"][1] - received.activations["tanh"][1]).square().mean()
    return b.loss + (b.out - received.out).square().mean() + features


@on_eager_executors
def test_the_batch_at_other_weights_is_evaluated(executor: Any) -> None:
    """With received statistics and without dropout, as teachers are."""
    evaluated = classifier().eval()

    def finite_if_equal(b: ForwardPass, v: Any) -> Tensor:
        gap = (b.at(v.anchor).out - evaluated(b.x)).abs().max()
        return b.loss.where(gap < 1e-9, torch.nan)

    federation(Algorithm(adding(finite_if_equal)), executor=executor).train_round()


SMALL_OUTPUTS = adding(lambda b, v: b.loss + b.out.square().mean())
SMALL_FEATURES = adding(
    lambda b, v: b.loss + (b.activations["tanh"][0] * b.activations["tanh"][1]).mean(), "tanh"
)
TEACHER = adding(distance, "tanh")
HARDER = adding(lambda b, v: b.loss + b.at(v.anchor).loss * b.out.square().mean())
SMOOTHED = adding(lambda b, v: F.cross_entropy(b.out, b.y, label_smoothing=0.3))

Pass = tuple[Tensor, Tensor]
"""What the layer `tanh` receives, and the outputs."""


def by_hand(w: Tensor, x: Tensor) -> Pass:
    A, a, B, b = w.split([48, 8, 24, 3])
    h = x @ A.view(8, 6).T + a
    return h, h.tanh() @ B.view(3, 8).T + b


def small(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y) + out.square().mean()


def taught(now: Pass, then: Pass, y: Tensor) -> Tensor:
    outputs = (now[1] - then[1]).square().mean()
    return F.cross_entropy(now[1], y) + outputs + (now[0].tanh() - then[0].tanh()).square().mean()


BY_HAND: dict[str, tuple[list[Term], Callable[[Pass, Pass, Tensor], Tensor]]] = {
    "two are added": (
        [SMALL_OUTPUTS, SMALL_FEATURES],
        lambda now, then, y: small(now[1], y) + (now[0] * now[0].tanh()).mean(),
    ),
    "the outer one replaces, the inner one adds": (
        [SMALL_OUTPUTS, SMOOTHED],
        lambda now, then, y: (
            F.cross_entropy(now[1], y, label_smoothing=0.3) + now[1].square().mean()
        ),
    ),
    "another model on the same batch": ([TEACHER], taught),
    "the loss so far elsewhere is a constant": (
        [HARDER, SMALL_OUTPUTS],
        lambda now, then, y: small(now[1], y) + small(then[1], y) * now[1].square().mean(),
    ),
}


@on_eager_executors
@pytest.mark.parametrize("case", BY_HAND)
def test_a_loss_has_the_gradient_written_by_hand(case, executor):
    """In two steps: in the first one the weights are those of the received model."""
    terms, loss = BY_HAND[case]
    data = classification([8], batch_size=8, steps=2)
    run = federation(
        Algorithm(*terms, local=partial(SGD, lr=0.5)),
        clients=data,
        module=classifier(norm=False, dropout=0.0),
        decays=False,
        sampler=lambda *_: [0],
        executor=executor,
    )
    w = anchor = run.w.detach().clone()
    batches = data.visit(0, 0)
    for x, y in (batches[0], batches[1]):

        def value(w: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return loss(by_hand(w, x), by_hand(anchor, x), y)

        w = w - 0.5 * autograd(w, value)
    run.train_round()
    torch.testing.assert_close(run.w.detach(), w, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "term",
    [SMALL_OUTPUTS, SMALL_FEATURES, TEACHER, HARDER],
    ids=["outputs", "features", "at", "loss"],
)
def test_executors_agree_on_user_defined_losses_under_batchnorm_and_dropout(term):
    algorithm = hard(Algorithm(term))
    one_by_one = trained(algorithm)
    assert distances(one_by_one, trained(hard(Algorithm())))["model"] > 1e-6
    assert_agree(one_by_one, trained(algorithm, executor=STACKED))


@on_eager_executors
def test_a_term_that_never_asks_the_oracle_steps_all_the_same(executor):
    """Client 1 takes two steps of size 0.1."""
    algorithm = Algorithm(term(gradient=lambda self, oracle, w, v: w))
    one = {"decays": False, "sampler": lambda *_: [1]}
    run = federation(algorithm, executor=executor, **one)
    run.train_round()
    torch.testing.assert_close(run.w.detach(), 0.9**2 * run.server.initial_w, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("returned", "shown"), [(lambda b: b.out.sum(1), r"shape \(2,\)"), (lambda b: None, "None")]
)
def test_a_loss_that_is_not_one_number_is_named(returned, shown):
    mistaken = adding(lambda b, v: returned(b))
    message = rf"Asking\.gradient's loss returned {shown}, not one number"
    with pytest.raises(TermError, match=message):
        federation(Algorithm(SMALL_OUTPUTS, mistaken))
    with pytest.raises(ModelError, match=r"the loss of the task returned .*, not one number"):
        federation(Algorithm(), loss=lambda out, y: returned(Namespace(out=out))).prepare()


@dataclass(frozen=True)
class Weighed(Term):
    """Sends the mean of a loss over the steps, by which the server's step is weighed."""

    ask: Callable[[Oracle, Tensor], Tensor]
    local = {"F": scalar}
    server = {"F_mean": scalar}

    def gradient(self, oracle, w, v):
        v.F = v.F + self.ask(oracle, w) / v.steps
        return oracle(w)

    def report(self, w, v):
        return v.F

    def update(self, delta, mean, v):
        v.F_mean = mean
        return delta * mean.sqrt()


@on_all_executors
def test_the_oracle_returns_the_loss_whose_gradient_it_takes(executor):
    # Dropout's masks included; BatchNorm's statistics and the training loss are as if nobody
    # had asked one client after another.
    weighed = Weighed(lambda oracle, w: 0 * oracle.loss(2 * w) + oracle.loss(w))
    plain = federation(hard(Algorithm()))
    run = federation(hard(Algorithm(weighed)), executor=executor)
    metrics = run.train_round()
    loss = plain.train_round()["train/loss"]
    assert loss > 0.1
    assert metrics["train/loss"] == pytest.approx(loss, abs=1e-12)
    assert run.server.states[0]["F_mean"].item() == pytest.approx(loss, abs=1e-12)
    for name, buffer in plain.server.buffers.items():
        torch.testing.assert_close(run.server.buffers[name], buffer, rtol=0, atol=1e-12)
    assert run.cost.gradients == 1


@on_all_executors
def test_where_no_gradient_is_asked_for_a_loss_is_the_training_loss_and_moves_statistics(executor):
    still = term(gradient=lambda self, oracle, w, v: 0 * oracle(w))
    asks = term(gradient=lambda self, oracle, w, v: 0 * (oracle.loss(w) - oracle.loss(2 * w)) * w)
    by_gradient = federation(hard(Algorithm(still)))
    by_loss = federation(hard(Algorithm(asks)), executor=executor)
    loss = by_gradient.train_round()["train/loss"]
    assert by_loss.train_round()["train/loss"] == pytest.approx(loss, abs=1e-12)
    assert_agree(by_gradient, by_loss)


LOSSES_ASKED: dict[str, Callable[[Oracle, Tensor], Tensor]] = {
    "elsewhere": lambda oracle, w: oracle.loss(2 * w),
    "after a gradient": lambda oracle, w: 0 * oracle(w).sum() + oracle.loss(w),
    "of another loss": lambda oracle, w: oracle.of(lambda b: b.loss.square()).loss(w),
    "of a part": lambda oracle, w: oracle.part(0, 2).loss(w),
}


@pytest.mark.parametrize("asked", LOSSES_ASKED)
def test_executors_agree_on_what_a_loss_is(asked):
    algorithm = hard(Algorithm(Proximal(0.1), Weighed(LOSSES_ASKED[asked])))
    given = {"rounds": 1, "sampler": lambda *_: [0, 1, 2]}
    given["clients"] = classification((11, 8, 7), batch_size=4)  # BatchNorm needs two in a half
    one_by_one = trained(algorithm, **given)
    assert one_by_one.server.states[1]["F_mean"] > 0.1
    for executor in (STACKED, partial(StackedExecutor, width=6, compiled=4)):
        assert_agree(one_by_one, trained(algorithm, executor=executor, **given))


def adds_up(b: ForwardPass, v: Any) -> Tensor:
    v.F = v.F + b.loss.detach()
    return b.loss


MISTAKES: dict[str, tuple[Term, str]] = {
    "it assigns a state": (
        adding(adds_up, local={"F": scalar}),
        r"Asking\.gradient's loss assigns v\.F, .* v\.F = v\.F \+ oracle\.loss\(w\)",
    ),
    "it looks at what it has not named": (
        adding(lambda b, v: b.activations["drop"][1].sum(), "tanh"),
        r".*'drop'.* oracle\.of\(loss, 'drop'\).* 'outer', 'tanh'\n"
        r"raised in Asking\.gradient's loss",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_loss_is_one_sentence_that_names_the_term(mistake):
    mistaken, said = MISTAKES[mistake]
    with pytest.raises((TermError, ModelError), match=said):
        federation(Algorithm(Distill(), mistaken, Contrastive()))


CONSTANT = (
    lambda b, v: b.loss.detach(),
    lambda b, v: b.out.new_ones(()),
    lambda b, v: b.at(v.anchor).loss,
)


@pytest.mark.parametrize("value", CONSTANT)
@on_eager_executors
def test_a_loss_without_a_gradient_is_refused_unless_another_is_added(value, executor):
    said = r"Asking\.gradient's loss has no gradient"
    with pytest.raises(TermError, match=said):
        federation(Algorithm(adding(value)), executor=executor)
    federation(Algorithm(Distill(), adding(value)), executor=executor)


@pytest.mark.parametrize(
    "ask", [lambda oracle, w: oracle(w).sum(), lambda oracle, w: oracle.loss(w)]
)
def test_a_loss_asks_no_oracle(ask):
    """It would change the weights under the pass whose gradient is still to be taken."""

    def gradient(self, oracle, w, v):
        return oracle.of(lambda b: b.loss + ask(oracle, w))(w)

    said = r"Mine\.gradient's loss asks for oracle.*\(w\), .* b\.at\(w\)\.loss"
    with pytest.raises(TermError, match=said):
        federation(Algorithm(term(gradient=gradient)))


def test_a_submodule_that_the_model_does_not_call_is_named():
    module = classifier()
    module.add_module("spare", torch.nn.ModuleDict({"idle": torch.nn.Linear(2, 2)}).double())
    module.forward = lambda x: torch.nn.Sequential(*list(module)[:-1])(x)  # type: ignore[method-assign]
    mistaken = adding(lambda b, v: b.activations["spare.idle"][1].sum(), "spare.idle")
    with pytest.raises(ModelError, match=r"'spare\.idle'.* does not call"):
        trained(Algorithm(mistaken), module=module)
