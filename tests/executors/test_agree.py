"""All executors compute the same thing."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from every_algorithm import DIFFERENT_GRADIENTS
from executors import (
    BRANCHES,
    EAGER,
    STACKED,
    TOLERANCE,
    TRACED,
    Normalized,
    assert_agree,
    noisy,
    ragged_clients,
)
from problems import (
    EVERY_ALGORITHM,
    classification,
    classifier,
    cpu,
    everything,
    federation,
    hard,
    trained,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from fl_lightning import Algorithm, StackedExecutor, Term, algorithms, zeros
from fl_lightning.core.oracle import Oracle
from fl_lightning.federation.fine_tuning import FineTuning

NARROW, WIDE = (partial(StackedExecutor, width=width) for width in (1, 8))
COHORTS = [0, 4], [0, 3]
"""Of unequal lengths; client 0 comes twice, and client 3 late."""


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_executors_agree_with_batchnorm_dropout_momentum_decay_clipping_and_ragged_clients(
    name: str, traces: list[Any], captures: list[Any]
) -> None:
    """One trace, which takes half a second, serves all rounds, clients and learning rates.

    Client 0's graph of a full batch is captured in the first round, and replayed in the second.
    """
    algorithm, clients = hard(EVERY_ALGORITHM[name]), ragged_clients(name)
    # BatchNorm makes a gradient 0, whose rounding noise some methods blow up to full length
    module = partial(classifier, norm=algorithm.clips)
    given = {"clients": clients, "sampler": lambda clients, seed, round: COHORTS[round]}
    one_by_one = federation(algorithm, module=module(), **given)
    losses = [one_by_one.train_round()["train/loss"] for _ in COHORTS]
    others = {STACKED: TOLERANCE}
    if name in DIFFERENT_GRADIENTS:
        others |= {partial(TRACED, compiled=clients.batch_size): TOLERANCE, BRANCHES: 1e-12}
    for executor, tolerance in others.items():
        other = federation(algorithm, executor=executor, module=module(), **given)
        found = [other.train_round()["train/loss"] for _ in COHORTS]
        assert found == pytest.approx(losses, abs=tolerance)
        assert_agree(one_by_one, other, tolerance)
    of_gradient = len(others) > 1
    assert (len(traces), len(captures) > 1) == (of_gradient, of_gradient)


@pytest.mark.parametrize("executor", [NARROW, WIDE], ids=["1", "8"])
@pytest.mark.parametrize(
    ("name", "local"),
    [
        *((name, partial(AdamW, lr=0.01)) for name in ("scaffold", "fedtoga")),
        ("fedavg", Normalized),
    ],
)
def test_executors_agree_under_adamw_and_an_optimizer_that_looks_at_all_that_it_has(
    name: str, local: Any, executor: Any
) -> None:
    algorithm = EVERY_ALGORITHM[name].replace(local=local)
    one_by_one, other = (
        trained(algorithm, module=classifier(norm=False), **options)
        for options in ({}, {"executor": executor})
    )
    assert_agree(one_by_one, other)


def test_batchnorm_statistics_are_the_weighted_mean_of_the_clients() -> None:
    def statistics(cohort: list[int]) -> dict[str, Tensor]:
        run = federation(algorithms.fedavg(), sampler=lambda *_: cohort)
        run.train_round()
        return run.server.buffers

    first, fifth, both = statistics([0]), statistics([4]), statistics([0, 4])
    for name in ("norm.running_mean", "norm.running_var"):
        expected = (13 * first[name] + 4 * fifth[name]) / (13 + 4)
        torch.testing.assert_close(both[name], expected, rtol=0, atol=1e-12)
    assert both["norm.num_batches_tracked"] == round((13 * 3 + 4 * 1) / (13 + 4))


def test_a_perturbed_pass_does_not_move_batchnorm_statistics_a_second_time() -> None:
    for algorithm in (Algorithm(), algorithms.fedsam(rho=0.5)):
        run = federation(algorithm, sampler=lambda *_: [0])
        run.train_round()
        assert run.server.buffers["norm.num_batches_tracked"] == 3


# ------------------------------------------------------------------------------ changes in place


@dataclass(frozen=True)
class Keeping(Term):
    """Keeps the weights themselves and the direction that it returns; or copies of both."""

    copied: bool = False
    client = {"before": zeros, "g": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w) + 0.1 * (w - v.before) + 0.5 * v.g
        v.before, v.g = (w.clone(), g.clone()) if self.copied else (w, g)
        return g


@pytest.mark.parametrize("executor", [*EAGER.values(), NARROW, TRACED])
def test_what_a_term_keeps_stays_as_it_was_in_the_step(executor: Any, traces: list[Any]) -> None:
    """Optimizers move the weights in place, and this one the gradient too."""
    local = partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    expected = trained(Algorithm(Keeping(copied=True), local=local))
    assert_agree(trained(Algorithm(Keeping(), local=local), executor=executor), expected)


class Sharing(nn.Module):
    """Uses one block twice, under one name or two, and one weight in two layers."""

    def __init__(self, names: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh()).double()
        self.again = self.block if names == 2 else None
        self.layer = nn.Linear(6, 6).double()
        self.layer.weight = self.block[0].weight
        self.head = nn.Linear(6, 3).double()

    def forward(self, x: Tensor) -> Any:
        return self.head(self.layer((self.again or self.block)(self.block(x))))


def test_a_block_with_two_names_trains_as_with_one(traces: list[Any]) -> None:
    """With a method that looks into the model, and takes its last layer apart."""
    algorithm, clients = hard(algorithms.fedsol()), classification()
    expected = trained(algorithm, module=Sharing(1), clients=clients)
    for executor in (*EAGER.values(), TRACED):
        run = trained(algorithm, module=Sharing(2), clients=clients, executor=executor)
        assert_agree(run, expected)
        assert [n for n, _ in run.load_global().named_parameters()] == expected.layout.names
    assert traces


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.norm = nn.Linear(6, 6).double(), nn.BatchNorm1d(6).double()
        self.head = nn.Linear(6, 3).double()

    def forward(self, x: Tensor) -> Any:
        return self.head(input=self.norm(input=self.layer(input=x)))


def test_executors_agree_on_layers_that_are_called_with_names() -> None:
    """With a method that reads what enters the head."""
    algorithm, clients = hard(algorithms.moon()), classification()
    first, other = (
        trained(algorithm, module=ByName(), clients=clients, executor=executor)
        for executor in EAGER.values()
    )
    assert_agree(first, other)


def test_executors_agree_on_a_loss_of_more_digits_than_the_model() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.double(), y)

    def fit(executor: Any) -> tuple[Any, float]:
        given = {"module": classifier(dtype=torch.float32), "loss": loss, "executor": executor}
        run = federation(Algorithm(), clients=classification(dtype=torch.float32), **given)
        return run, run.train_round()["train/loss"]

    (run, expected), (other, found) = map(fit, EAGER.values())
    assert found == pytest.approx(expected, abs=1e-6)
    assert_agree(other, run, 1e-6)


def test_executors_agree_on_a_loss_of_pairs_in_a_batch_of_one_sample() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out[1:] - out[:-1]).square().mean() if len(out) > 1 else torch.zeros(()).double()

    def run(executor: Any) -> Any:
        clients = classification((6, 7, 11, 5, 4, 9))
        module = classifier(norm=False)
        return trained(Algorithm(), module=module, clients=clients, loss=loss, executor=executor)

    assert_agree(*map(run, EAGER.values()))


def test_stacked_needs_a_width() -> None:
    with pytest.raises(ValueError, match=r"width .* not 0"):
        federation(Algorithm(), executor=partial(StackedExecutor, width=0))


# --------------------------------------------------------------------------------- random numbers


@pytest.mark.parametrize("module", [classifier, noisy])
def test_runs_neither_read_nor_move_the_global_generator(module: type[nn.Module]) -> None:
    """What the model draws itself depends on the client alone."""
    runs = []
    several = NARROW if module is noisy else STACKED
    for seed, executor in enumerate((EAGER["sequential"], EAGER["sequential"], several)):
        options = {"module": module(), "clients": classification(), "executor": executor}
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        runs.append(trained(algorithms.fedavg(), **options))
        assert torch.get_rng_state().equal(before)
    assert runs[0].w.equal(runs[1].w)
    assert_agree(runs[0], runs[2])


@pytest.mark.parametrize("compiled", [0, 5])
def test_bf16_trains_batchnorm_of_several_clients_too(compiled: int, traces: list[Any]) -> None:
    """A number is rounded by up to 0.4 %; the models' moves differ by 0.3 %."""
    clients = classification((10,) * 6, dtype=torch.float32)
    given = {"fabric": cpu("bf16-mixed"), "clients": clients, "rounds": 1}
    one_by_one, stacked = (
        trained(algorithms.fedsam(), module=classifier(dtype=torch.float32), **given, **executor)
        for executor in ({}, {"executor": partial(STACKED, compiled=compiled)})
    )
    moved = everything(one_by_one)["model"] - one_by_one.server.initial_w
    assert (one_by_one.w - stacked.w).norm() < 0.01 * moved.norm()
    assert len(traces) == (1 if compiled else 0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_executors_agree_under_a_rate_within_the_visit(momentum: float, traces: list[Any]) -> None:
    """Clients of different lengths are at different rates in the same step, and train together."""
    local = partial(SGD, lr=0.1, momentum=momentum)
    algorithm = algorithms.scaffold().replace(local=local, rate=lambda k, K: 2 * (1 - k / K))
    cohort = {"sampler": lambda *_: [0, 1, 2]}
    one_by_one = trained(algorithm, **cohort)
    for executor in (STACKED, partial(TRACED, width=3)):
        assert_agree(one_by_one, trained(algorithm, executor=executor, **cohort))
    assert len(traces) == 1


def test_executors_agree_in_fine_tuning_with_batchnorm_and_dropout() -> None:
    one, several = (
        [*FineTuning(trained(algorithms.fedavg(), **options), 0.05).models(range(6), 2)]
        for options in ({}, {"executor": partial(STACKED, width=4)})
    )
    torch.testing.assert_close(one, several, rtol=0, atol=1e-10)
