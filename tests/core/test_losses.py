"""Losses of a user's own: added, replaced, of features and of other models."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from problems import classification, classifier, distances, federation, hard, trained
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD

from fl_lightning import Algorithm, SequentialExecutor, StackedExecutor, Term, scalar
from fl_lightning.core.oracle import ForwardPass, Oracle
from fl_lightning.errors import ModelError
from fl_lightning.terms import Proximal

STACKED = partial(StackedExecutor, width=3)
BOTH = pytest.mark.parametrize(
    "executor", [SequentialExecutor, STACKED], ids=["sequential", "stacked"]
)
TRACED = {
    f"traced, {width} at once": partial(StackedExecutor, width=width, compiled=5)
    for width in (1, 2)
}
ALL = {"sequential": SequentialExecutor, "stacked": STACKED, **TRACED}
ON_ALL = pytest.mark.parametrize("executor", ALL.values(), ids=ALL)


@dataclass(frozen=True)
class SmallOutputs(Term):
    """Adds to the loss."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: b.loss + b.out.square().mean())(w)


@dataclass(frozen=True)
class SmallFeatures(Term):
    """Adds a function of what a layer received and returned."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        def penalty(b: ForwardPass) -> Tensor:
            received, returned = b.activations["tanh"]
            return b.loss + (received * returned).mean()

        return oracle.of(penalty, "tanh")(w)


@dataclass(frozen=True)
class Teacher(Term):
    """Adds the distance to what the received model answers, and to its features."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        def distance(b: ForwardPass) -> Tensor:
            teacher = b.at(v.anchor)
            features = (b.activations["tanh"][1] - teacher.activations["tanh"][1]).square().mean()
            return b.loss + (b.out - teacher.out).square().mean() + features

        return oracle.of(distance, "tanh")(w)


@dataclass(frozen=True)
class Harder(Term):
    """Adds the more to the loss, the higher it is at the received model."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: b.loss + b.at(v.anchor).loss * b.out.square().mean())(w)


@dataclass(frozen=True)
class Smoothed(Term):
    """Replaces the loss."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: F.cross_entropy(b.out, b.y, label_smoothing=0.3))(w)


OWN_LOSSES = [SmallOutputs(), SmallFeatures(), Teacher(), Harder()]


def one_step(
    *terms: Term, executor: Any = SequentialExecutor, start: Tensor | None = None
) -> tuple[Tensor, Tensor, Any]:
    """Weights before and after one step of size 1 on one batch of one client, and that batch."""
    data = classification([8], batch_size=8, epochs=1)
    module = classifier(norm=False, dropout=0.0)
    algorithm = Algorithm(*terms, local=partial(SGD, lr=1.0))
    options = {"schedule": lambda *_: 1.0, "participation": lambda *_: [0], "executor": executor}
    run = federation(algorithm, clients=data, module=module, **options)
    before = run.w.detach().clone()
    run.train_round()
    return before, run.w.detach(), data.visit(0, 0)[0]


SHAPES = [(8, 6), (8,), (3, 8), (3,)]


def by_hand(w: Tensor, loss: Any) -> Tensor:
    """Autograd's gradient of a loss of the classifier's two weight matrices and two biases."""
    w = w.clone().requires_grad_()
    A, a, B, b = (part.view(s) for part, s in zip(w.split([48, 8, 24, 3]), SHAPES, strict=True))
    loss(A, a, B, b).backward()
    assert w.grad is not None
    return w.grad


@BOTH
def test_an_added_loss_has_the_gradient_written_by_hand(executor: Any) -> None:
    before, after, (x, y) = one_step(SmallOutputs(), SmallFeatures(), executor=executor)

    def loss(A: Tensor, a: Tensor, B: Tensor, b: Tensor) -> Tensor:
        h = x @ A.T + a
        out = h.tanh() @ B.T + b
        return F.cross_entropy(out, y) + out.square().mean() + (h * h.tanh()).mean()

    torch.testing.assert_close(before - after, by_hand(before, loss), rtol=0, atol=1e-12)


@BOTH
def test_a_loss_that_ignores_the_loss_so_far_replaces_it(executor: Any) -> None:
    """The outer term chooses its loss first; the inner one adds to what it is asked for."""
    alone_before, alone_after, (x, y) = one_step(Smoothed(), executor=executor)
    both_before, both_after, _ = one_step(SmallOutputs(), Smoothed(), executor=executor)

    def outputs(A: Tensor, a: Tensor, B: Tensor, b: Tensor) -> Tensor:
        return (x @ A.T + a).tanh() @ B.T + b

    def smoothed(*parts: Tensor) -> Tensor:
        return F.cross_entropy(outputs(*parts), y, label_smoothing=0.3)

    def and_small(*parts: Tensor) -> Tensor:
        return smoothed(*parts) + outputs(*parts).square().mean()

    torch.testing.assert_close(
        alone_before - alone_after, by_hand(alone_before, smoothed), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(
        both_before - both_after, by_hand(both_before, and_small), rtol=0, atol=1e-12
    )


def test_another_model_on_the_same_batch_pulls_by_hand_too() -> None:
    # At the received model the distance and its gradient are zero, so the second step is the
    # first that feels it.
    data = classification([8], batch_size=8, steps=2)
    run = federation(
        Algorithm(Teacher(), local=partial(SGD, lr=0.5)),
        clients=data,
        module=classifier(norm=False, dropout=0.0),
        schedule=lambda *_: 1.0,
        sampler=lambda *_: [0],
    )
    anchor = run.w.detach().clone()
    w = anchor
    batches = data.visit(0, 0)
    C, c, D, d = (p.view(s) for p, s in zip(anchor.split([48, 8, 24, 3]), SHAPES, strict=True))
    for x, y in (batches[0], batches[1]):

        def loss(
            A: Tensor, a: Tensor, B: Tensor, b: Tensor, x: Tensor = x, y: Tensor = y
        ) -> Tensor:
            h, h0 = (x @ A.T + a).tanh(), (x @ C.T + c).tanh()
            out, out0 = h @ B.T + b, h0 @ D.T + d
            return F.cross_entropy(out, y) + (out - out0).square().mean() + (h - h0).square().mean()

        w = w - 0.5 * by_hand(w, loss)
    run.train_round()
    torch.testing.assert_close(run.w.detach(), w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("term", OWN_LOSSES, ids=lambda term: type(term).__name__)
def test_executors_agree_on_losses_of_ones_own_under_batchnorm_and_dropout(term: Term) -> None:
    algorithm = hard(Algorithm(term))
    one_by_one = trained(algorithm)
    plain = trained(hard(Algorithm()))
    assert distances(one_by_one, plain)["model"] > 1e-6
    assert max(distances(one_by_one, trained(algorithm, executor=STACKED)).values()) <= 1e-10


@BOTH
def test_two_added_losses_commute(executor: Any) -> None:
    for first, second in [(SmallOutputs(), SmallFeatures()), (SmallFeatures(), Teacher())]:
        one, other = (
            trained(hard(Algorithm(*pair)), executor=executor)
            for pair in [(first, second), (second, first)]
        )
        assert max(distances(one, other).values()) <= 1e-12


def test_a_term_that_never_asks_the_oracle_steps_all_the_same() -> None:
    @dataclass(frozen=True)
    class Shrink(Term):
        def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
            return w

    for executor in (SequentialExecutor, STACKED):
        run = federation(
            Algorithm(Shrink()),
            schedule=lambda *_: 1.0,
            sampler=lambda *_: [1],
            executor=executor,
        )
        run.train_round()  # client 1 takes four steps of size 0.1
        torch.testing.assert_close(
            run.w.detach(), 0.9**4 * run.server.initial_w, rtol=0, atol=1e-12
        )


@BOTH
@pytest.mark.parametrize(
    ("returned", "shown"), [(lambda b: b.out.sum(1), r"of shape \(8,\)"), (lambda b: None, "None")]
)
def test_a_loss_that_is_not_one_number_is_named(returned: Any, shown: str, executor: Any) -> None:
    @dataclass(frozen=True)
    class Mistaken(Term):
        def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
            def penalty(b: ForwardPass) -> Any:
                return returned(b)

            return oracle.of(penalty)(w)

    with pytest.raises(
        ModelError,
        match=rf"the loss .*Mistaken.gradient.*penalty returned .*{shown}, not one number",
    ):
        one_step(SmallOutputs(), Mistaken(), executor=executor)


# what a loss is, and is elsewhere


@BOTH
def test_the_loss_at_other_weights_is_the_loss_so_far_there_and_a_constant(executor: Any) -> None:
    # What an outer term adds is in it already; at the first step the other weights are the
    # client's own.
    before, after, (x, y) = one_step(Harder(), SmallOutputs(), executor=executor)

    def loss(A: Tensor, a: Tensor, B: Tensor, b: Tensor) -> Tensor:
        out = (x @ A.T + a).tanh() @ B.T + b
        so_far = F.cross_entropy(out, y) + out.square().mean()
        return so_far + so_far.detach() * out.square().mean()

    torch.testing.assert_close(before - after, by_hand(before, loss), rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Told(Term):
    # Tells the server the mean over clients and steps of a loss, by which the server's step
    # is weighed.

    ask: Callable[[Oracle, Tensor], Tensor]
    local = {"F": scalar}
    server = {"F_mean": scalar}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        v.F = v.F + self.ask(oracle, w) / v.steps
        return oracle(w)

    def report(self, w: Tensor, v: Any) -> Tensor:
        return v.F

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.F_mean = mean
        return delta * mean.sqrt()


@ON_ALL
@pytest.mark.usefixtures("traces")
def test_the_oracle_tells_the_loss_whose_gradient_it_takes(executor: Any) -> None:
    # Dropout's masks included; BatchNorm's statistics and the training loss are as if nobody
    # had asked.
    told = Told(lambda oracle, w: 0 * oracle.loss(2 * w) + oracle.loss(w))
    run, plain = (federation(hard(Algorithm(*terms)), executor=executor) for terms in ([told], []))
    metrics = run.train_round()
    loss = plain.train_round()["train/loss"]
    assert loss > 0.1
    assert metrics["train/loss"] == pytest.approx(loss, abs=1e-12)
    assert run.server.states[0]["F_mean"].item() == pytest.approx(loss, abs=1e-12)
    for name, buffer in plain.buffers.items():
        torch.testing.assert_close(run.buffers[name], buffer, rtol=0, atol=1e-12)
    assert run.cost.gradients == 1


LOSSES_ASKED: dict[str, Callable[[Oracle, Tensor], Tensor]] = {
    "elsewhere": lambda oracle, w: oracle.loss(2 * w),
    "after a gradient": lambda oracle, w: 0 * oracle(w).sum() + oracle.loss(w),
    "of another loss": lambda oracle, w: oracle.of(lambda b: b.loss.square()).loss(w),
    "of a part": lambda oracle, w: oracle.part(0, 2).loss(w),
}


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize("asked", LOSSES_ASKED)
def test_executors_agree_on_what_a_loss_is(asked: str) -> None:
    algorithm = hard(Algorithm(Proximal(0.1), Told(LOSSES_ASKED[asked])))
    even = {
        "clients": classification((11, 8, 7, 12, 4, 15), batch_size=4)
    }  # two samples in a half, for BatchNorm
    one_by_one = trained(algorithm, **even)
    assert one_by_one.shared[1]["F_mean"] > 0.1
    executors = {**ALL, "traced, all at once": partial(StackedExecutor, width=6, compiled=4)}
    for name, executor in executors.items():
        unaliased = distances(one_by_one, trained(algorithm, executor=executor, **even))
        assert max(unaliased.values()) <= 1e-10, name
