"""Sequential and StackedExecutor are two ways to compute one thing."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from problems import (
    EVERY_ALGORITHM,
    OPTIONS,
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

from fl_lightning import (
    Algorithm,
    ClientData,
    ModelError,
    SequentialExecutor,
    StackedExecutor,
    Term,
    algorithms,
    zeros,
)
from fl_lightning.core.oracle import Oracle

TOLERANCE = 1e-10
NARROW, THREE, WIDE = (partial(StackedExecutor, width=width) for width in (1, 3, 8))


def assert_alike(run: Any, other: Any, tolerance: float = TOLERANCE) -> None:
    unaliased = {
        name: distance
        for name, distance in distances(run, other).items()
        if not distance <= tolerance
    }
    assert not unaliased


def ragged(name: str) -> ClientData:
    """Clients with short last batches; whose halves still hold two samples, as BatchNorm needs, for Per-FedAvg."""
    return (
        classification((16, 10, 12, 11, 4, 6), batch_size=6)
        if name == "perfedavg"
        else classification()
    )


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_executors_agree_with_batchnorm_dropout_momentum_decay_clipping_and_ragged_clients(
    name: str,
) -> None:
    algorithm, clients = hard(EVERY_ALGORITHM[name]), ragged(name)
    one_by_one = federation(algorithm, clients=clients)
    losses = [one_by_one.train_round()["train/loss"] for _ in range(3)]
    for executor in (THREE,) if name in OPTIONS else (NARROW, THREE, WIDE):
        together = federation(algorithm, clients=clients, executor=executor)
        assert [together.train_round()["train/loss"] for _ in range(3)] == pytest.approx(
            losses, abs=TOLERANCE
        )
        assert_alike(one_by_one, together)


@pytest.mark.parametrize("name", ["fedsam", "scaffold", "fedlesam_d", "fedtoga"])
def test_executors_agree_under_adamw(name: str) -> None:
    algorithm = EVERY_ALGORITHM[name].with_outer_terms(local=partial(AdamW, lr=0.01))
    one_by_one = trained(algorithm, module=classifier(norm=False))
    for executor in (NARROW, THREE, WIDE):
        assert_alike(
            one_by_one, trained(algorithm, module=classifier(norm=False), executor=executor)
        )


def test_what_the_comparison_is_made_of_matters() -> None:
    """None of the ingredients of the test above is idle: leaving one out moves the model."""
    usual = everything(trained(hard(algorithms.fedsam())))["model"]
    sgd = partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    without = {
        "clipping": {"algorithm": algorithms.fedsam().with_outer_terms(local=sgd)},
        "momentum": {
            "algorithm": hard(algorithms.fedsam()).with_outer_terms(
                local=partial(SGD, lr=0.1, weight_decay=0.01)
            )
        },
        "decay": {
            "algorithm": hard(algorithms.fedsam()).with_outer_terms(
                local=partial(SGD, lr=0.1, momentum=0.9)
            )
        },
        "dropout": {"module": classifier(dropout=0.0)},
        "norm": {"module": classifier(norm=False)},
        "schedule": {"schedule": lambda round, epoch: 0.9**round},
    }
    for what, change in without.items():
        run = trained(**{"algorithm": hard(algorithms.fedsam()), **change})
        other = everything(run)["model"]
        assert other.shape != usual.shape or (other - usual).abs().max() > 1e-5, what


def test_batchnorm_statistics_are_the_weighted_mean_of_the_clients() -> None:
    def statistics(cohort: list[int]) -> dict[str, Tensor]:
        run = federation(algorithms.fedavg(), sampler=lambda *_: cohort)
        run.train_round()
        return run.buffers

    first, fifth, both = statistics([0]), statistics([4]), statistics([0, 4])
    for name in ("norm.running_mean", "norm.running_var"):
        expected = (13 * first[name] + 4 * fifth[name]) / (13 + 4)
        torch.testing.assert_close(both[name], expected, rtol=0, atol=1e-12)
    assert both["norm.num_batches_tracked"] == round((13 * 6 + 4 * 2) / (13 + 4))


def test_a_perturbed_pass_does_not_move_batchnorm_statistics_a_second_time() -> None:
    plain, sharp = (
        federation(a, sampler=lambda *_: [0]) for a in (Algorithm(), algorithms.fedsam(rho=0.5))
    )
    plain.train_round()
    sharp.train_round()
    assert (
        plain.buffers["norm.num_batches_tracked"] == sharp.buffers["norm.num_batches_tracked"] == 6
    )


def test_a_client_trained_alone_is_the_client_trained_among_others() -> None:
    algorithm = hard(algorithms.scaffold())
    among = federation(algorithm, executor=WIDE)
    alone = federation(algorithm, sampler=lambda *_: [2])
    among.train_round()
    alone.train_round()
    mine, theirs = (run.store.read(2, run.w.device)[0]["c_i"] for run in (alone, among))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=TOLERANCE)


# ------------------------------------------------------------------------------------- what a step changes in place


@dataclass(frozen=True)
class Keeping(Term):
    """Keeps the weights themselves and the very direction that it returns; or copies of both."""

    copied: bool = False
    client = {"before": zeros, "g": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w) + 0.1 * (w - v.before) + 0.5 * v.g
        v.before, v.g = (w.clone(), g.clone()) if self.copied else (w, g)
        return g


@pytest.mark.parametrize(
    "executor", [SequentialExecutor, NARROW, THREE, partial(StackedExecutor, width=1, compiled=5)]
)
def test_what_a_term_keeps_stays_as_it_was_in_the_step(executor: Any, traces: list[Any]) -> None:
    """Optimizers move the weights in place, and this one the gradient too."""
    local = partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    expected = trained(Algorithm(Keeping(copied=True), local=local))
    assert_alike(trained(Algorithm(Keeping(), local=local), executor=executor), expected)


# --------------------------------------------------------------------------------------------- models that do not stack


class Branching(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if out.sum() > 0 else -out


class HiddenDropout(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5))


@pytest.mark.parametrize("model", [Branching, HiddenDropout])
def test_a_model_that_cannot_be_stacked_is_told_to_train_sequentially(
    model: type[nn.Linear],
) -> None:
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
        federation(Algorithm(), executor=partial(StackedExecutor, width=0))


@pytest.mark.parametrize("executor", [SequentialExecutor, THREE])
def test_a_run_neither_reads_nor_moves_the_global_generator(executor: Any) -> None:
    models = []
    for seed in (1, 2):
        module, clients = classifier(), classification()
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        run = trained(algorithms.fedtoga(), module=module, clients=clients, executor=executor)
        assert torch.get_rng_state().equal(before)
        models.append(run.w.detach())
    assert models[0].equal(models[1])


def test_dropout_and_order_come_from_the_seed() -> None:
    def model(**seeds: int) -> Tensor:
        clients: ClientData = classification(seed=seeds.get("order", 0))
        run = federation(Algorithm(), clients=clients, seed=seeds.get("run", 0), sampler=cohorts)
        run.train_round()
        return run.w.detach()

    assert model().equal(model())
    assert not model().equal(model(run=1))
    assert not model().equal(model(order=1))


@pytest.mark.parametrize("compiled", [0, 5])
def test_bf16_trains_batchnorm_of_several_clients_too(compiled: int, traces: list[Any]) -> None:
    """A number is rounded by up to 0.4 %; the models' moves differ by 0.3 %."""
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    runs = [
        trained(
            algorithms.fedsam(),
            fabric=fabric,
            module=classifier(dtype=torch.float32),
            clients=clients,
            **executor,
        )
        for executor in ({}, {"executor": partial(StackedExecutor, width=3, compiled=compiled)})
        for clients in [classification((10,) * 6, dtype=torch.float32)]
    ]
    moved, unaliased = (runs[0].w - runs[0].first).norm(), (runs[0].w - runs[1].w).norm()
    assert unaliased < 0.01 * moved
    assert len(traces) == (2 if compiled else 0)
