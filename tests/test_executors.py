"""Sequential and Stacked are two ways to compute one thing."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from problems import (
    EVERY_ALGORITHM,
    classification,
    classifier,
    cohorts,
    distances,
    everything,
    federation,
    hard,
    trained,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from fl_lightning import Algorithm, ClientData, ModelError, Sequential, Stacked, Term, catalogue
from fl_lightning.oracle import Oracle, Pass

TOLERANCE = 1e-10
NARROW, THREE, WIDE = (partial(Stacked, width=width) for width in (1, 3, 8))


def assert_alike(run: Any, other: Any, tolerance: float = TOLERANCE) -> None:
    apart = {name: distance for name, distance in distances(run, other).items() if not distance <= tolerance}
    assert not apart


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_executors_agree_with_batchnorm_dropout_momentum_decay_clipping_and_ragged_clients(name: str) -> None:
    algorithm = hard(EVERY_ALGORITHM[name])
    one_by_one = federation(algorithm)
    losses = [one_by_one.train_round()["train/loss"] for _ in range(3)]
    for executor in (NARROW, THREE, WIDE):
        together = federation(algorithm, executor=executor)
        assert [together.train_round()["train/loss"] for _ in range(3)] == pytest.approx(losses, abs=TOLERANCE)
        assert_alike(one_by_one, together)


@pytest.mark.parametrize("name", ["fedsam", "scaffold", "fedlesam_d", "fedtoga"])
def test_executors_agree_under_adamw(name: str) -> None:
    algorithm = EVERY_ALGORITHM[name].and_then(local=partial(AdamW, lr=0.01))
    one_by_one = trained(algorithm, module=classifier(norm=False))
    for executor in (NARROW, THREE, WIDE):
        assert_alike(one_by_one, trained(algorithm, module=classifier(norm=False), executor=executor))


def test_what_the_comparison_is_made_of_matters() -> None:
    """None of the ingredients of the test above is idle: leaving one out moves the model."""
    usual = everything(trained(hard(catalogue.fedsam())))["model"]
    sgd = partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    without = {
        "clipping": {"algorithm": catalogue.fedsam().and_then(local=sgd)},
        "momentum": {"algorithm": hard(catalogue.fedsam()).and_then(local=partial(SGD, lr=0.1, weight_decay=0.01))},
        "decay": {"algorithm": hard(catalogue.fedsam()).and_then(local=partial(SGD, lr=0.1, momentum=0.9))},
        "dropout": {"module": classifier(dropout=0.0)},
        "norm": {"module": classifier(norm=False)},
        "schedule": {"schedule": lambda round, epoch: 0.9**round},
    }
    for what, change in without.items():
        run = trained(**{"algorithm": hard(catalogue.fedsam()), **change})
        other = everything(run)["model"]
        assert other.shape != usual.shape or (other - usual).abs().max() > 1e-5, what


def test_batchnorm_statistics_are_the_weighted_mean_of_the_clients() -> None:
    def statistics(cohort: list[int]) -> dict[str, Tensor]:
        run = federation(catalogue.fedavg(), participation=lambda *_: cohort)
        run.train_round()
        return run.buffers

    first, fifth, both = statistics([0]), statistics([4]), statistics([0, 4])
    for name in ("norm.running_mean", "norm.running_var"):
        expected = (13 * first[name] + 4 * fifth[name]) / (13 + 4)
        torch.testing.assert_close(both[name], expected, rtol=0, atol=1e-12)
    assert both["norm.num_batches_tracked"] == round((13 * 6 + 4 * 2) / (13 + 4))


def test_a_perturbed_pass_does_not_move_batchnorm_statistics_a_second_time() -> None:
    plain, sharp = (federation(a, participation=lambda *_: [0]) for a in (Algorithm(), catalogue.fedsam(rho=0.5)))
    plain.train_round()
    sharp.train_round()
    assert plain.buffers["norm.num_batches_tracked"] == sharp.buffers["norm.num_batches_tracked"] == 6


def test_a_client_trained_alone_is_the_client_trained_among_others() -> None:
    algorithm = hard(catalogue.scaffold())
    among = federation(algorithm, executor=WIDE)
    alone = federation(algorithm, participation=lambda *_: [2])
    among.train_round()
    alone.train_round()
    mine, theirs = (run.store.read(2, run.w.device)[0]["c_i"] for run in (alone, among))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=TOLERANCE)


# ------------------------------------------------------------------------------------------------- losses of one's own


@dataclass(frozen=True)
class SmallOutputs(Term):
    """Adds to the loss."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: b.loss + b.out.square().mean())(w)


@dataclass(frozen=True)
class SmallFeatures(Term):
    """Adds a function of what a layer received and returned."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        def penalty(b: Pass) -> Tensor:
            received, returned = b.seen["tanh"]
            return b.loss + (received * returned).mean()

        return oracle.of(penalty, "tanh")(w)


@dataclass(frozen=True)
class Teacher(Term):
    """Adds the distance to what the received model answers, and to its features."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        def distance(b: Pass) -> Tensor:
            teacher = b.at(v.anchor)
            features = (b.seen["tanh"][1] - teacher.seen["tanh"][1]).square().mean()
            return b.loss + (b.out - teacher.out).square().mean() + features

        return oracle.of(distance, "tanh")(w)


@dataclass(frozen=True)
class Smoothed(Term):
    """Replaces the loss."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: F.cross_entropy(b.out, b.y, label_smoothing=0.3))(w)


OWN_LOSSES = [SmallOutputs(), SmallFeatures(), Teacher()]


def one_step(*terms: Term, executor: Any = Sequential, start: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
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


@pytest.mark.parametrize("executor", [Sequential, WIDE])
def test_an_added_loss_has_the_gradient_written_by_hand(executor: Any) -> None:
    before, after, (x, y) = one_step(SmallOutputs(), SmallFeatures(), executor=executor)

    def loss(A: Tensor, a: Tensor, B: Tensor, b: Tensor) -> Tensor:
        h = x @ A.T + a
        out = h.tanh() @ B.T + b
        return F.cross_entropy(out, y) + out.square().mean() + (h * h.tanh()).mean()

    torch.testing.assert_close(before - after, by_hand(before, loss), rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", [Sequential, WIDE])
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

    torch.testing.assert_close(alone_before - alone_after, by_hand(alone_before, smoothed), rtol=0, atol=1e-12)
    torch.testing.assert_close(both_before - both_after, by_hand(both_before, and_small), rtol=0, atol=1e-12)


def test_another_model_on_the_same_batch_pulls_by_hand_too() -> None:
    """At the received model the distance and its gradient are zero, so the second step is the first that feels it."""
    data = classification([8], batch_size=8, steps=2)
    run = federation(
        Algorithm(Teacher(), local=partial(SGD, lr=0.5)),
        clients=data,
        module=classifier(norm=False, dropout=0.0),
        schedule=lambda *_: 1.0,
        participation=lambda *_: [0],
    )
    anchor = run.w.detach().clone()
    w = anchor
    batches = data.visit(0, 0)
    C, c, D, d = (p.view(s) for p, s in zip(anchor.split([48, 8, 24, 3]), SHAPES, strict=True))
    for x, y in (batches[0], batches[1]):

        def loss(A: Tensor, a: Tensor, B: Tensor, b: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
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
    assert_alike(one_by_one, trained(algorithm, executor=THREE))


@pytest.mark.parametrize("executor", [Sequential, WIDE])
def test_two_added_losses_commute(executor: Any) -> None:
    for first, second in [(SmallOutputs(), SmallFeatures()), (SmallFeatures(), Teacher())]:
        one, other = (trained(hard(Algorithm(*pair)), executor=executor) for pair in [(first, second), (second, first)])
        assert_alike(one, other, 1e-12)


def test_a_term_that_never_asks_the_oracle_steps_all_the_same() -> None:
    @dataclass(frozen=True)
    class Shrink(Term):
        def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
            return w

    for executor in (Sequential, WIDE):
        run = federation(Algorithm(Shrink()), schedule=lambda *_: 1.0, participation=lambda *_: [1], executor=executor)
        run.train_round()  # client 1 takes four steps of size 0.1
        torch.testing.assert_close(run.w.detach(), 0.9**4 * run.first, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------- models that do not stack


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if out.sum() > 0 else -out


class HiddenDropout(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5))


@pytest.mark.parametrize("model", [Branching, HiddenDropout])
def test_a_model_that_cannot_be_stacked_is_told_to_train_sequentially(model: type[nn.Linear]) -> None:
    run = federation(Algorithm(), module=model(6, 3).double(), executor=WIDE)
    with pytest.raises(ModelError, match="sequential executor"):
        run.train_round()
    trained(Algorithm(), module=model(6, 3).double())


def test_dropout_from_torchs_own_generator_is_still_reproducible_one_by_one() -> None:
    models = []
    for seed in (3, 4):
        module = HiddenDropout(6, 3).double()
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
        torch.manual_seed(seed)
        models.append(trained(Algorithm(), module=module).w.detach())
    assert models[0].equal(models[1])


def test_stacked_needs_a_width() -> None:
    with pytest.raises(ValueError, match="width is 0"):
        federation(Algorithm(), executor=partial(Stacked, width=0))


@pytest.mark.parametrize("executor", [Sequential, THREE])
def test_a_run_neither_reads_nor_moves_the_global_generator(executor: Any) -> None:
    models = []
    for seed in (1, 2):
        module, clients = classifier(), classification()
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        run = trained(catalogue.fedtoga(), module=module, clients=clients, executor=executor)
        assert torch.get_rng_state().equal(before)
        models.append(run.w.detach())
    assert models[0].equal(models[1])


def test_dropout_and_order_come_from_the_seed() -> None:
    def model(**seeds: int) -> Tensor:
        clients: ClientData = classification(seed=seeds.get("order", 0))
        run = federation(Algorithm(), clients=clients, seed=seeds.get("run", 0), participation=cohorts)
        run.train_round()
        return run.w.detach()

    assert model().equal(model())
    assert not model().equal(model(run=1))
    assert not model().equal(model(order=1))
