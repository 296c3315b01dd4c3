"""Runs in lockstep train as each does alone."""

from functools import partial
from typing import Any

import pytest
from adapters import adapted, adapted_federation
from every_algorithm import LORA
from executors import TRACED, Around, assert_agree
from problems import SIZES, STACKED, classification, federation, hard
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import Federation, UserError, algorithms, linear
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.executors import GraphExecutor
from fl_lightning.federation.lockstep import LockstepExecutor, Turn, ask, run_in_lockstep
from fl_lightning.terms import MSAM


def together(make: Any, runs: list[dict[str, Any]], executor: Any = STACKED) -> list[Federation]:
    def run(options: dict[str, Any]) -> Federation:
        made: Federation = make(executor=partial(LockstepExecutor, executor), **options)
        made.prepare()
        ask(made)
        made.fit()
        return made

    turns = [Turn(partial(run, options)) for options in runs]
    run_in_lockstep(turns)
    for turn in turns:
        if turn.error:
            raise turn.error
    return [turn.value for turn in turns]


def make(
    algorithm: Algorithm,
    seed: int = 0,
    lr: float = 0.1,
    sizes: tuple[int, ...] = SIZES,
    **options: Any,
) -> Federation:
    local = partial(SGD, lr=lr, momentum=0.9, weight_decay=0.01)
    clients = classification(sizes, seed=seed)
    return federation(hard(algorithm).replace(local=local), clients=clients, seed=seed, **options)


SWEEPS = {
    "scaffold": [
        {"algorithm": algorithms.scaffold(), "seed": 2},
        {"algorithm": algorithms.scaffold(), "lr": 0.03, "rounds": 2},
    ],
    "fedtoga": [
        {"algorithm": algorithms.fedtoga(rho=0.2)},
        {"algorithm": algorithms.fedtoga(rho=0.1, beta=linear(0.8, 0.1), lam=0.05)},
        {"algorithm": algorithms.fedtoga(rho=0.3, kappa=0.5, beta=0.7), "seed": 1},
    ],
    "fedsol": [{"algorithm": algorithms.fedsol(tau=tau)} for tau in (3.0, 2.0)],
    "m_sam": [{"algorithm": Algorithm(MSAM(rho)), "sizes": (10,) * 6} for rho in (0.1, 0.2)],
}


def assert_as_alone(found: list[Federation], runs: list[dict[str, Any]]) -> None:
    for other, options in zip(found, runs, strict=True):
        alone = make(**options)
        alone.fit()
        assert other.round == alone.round
        assert_agree(other, alone)


@pytest.mark.parametrize("name", SWEEPS)
def test_runs_in_lockstep_train_as_each_does_alone(name: str) -> None:
    """With clients of different lengths; one run is shorter."""
    assert_as_alone(together(make, SWEEPS[name]), SWEEPS[name])


def with_adapters(
    algorithm: Algorithm, seed: int = 0, scale: float = 1.0, **options: Any
) -> Federation:
    module = adapted()
    module.get_parameter("inner.base_layer.weight").data.mul_(scale)
    return adapted_federation(hard(algorithm), module=module, seed=seed, **options)


@pytest.mark.parametrize("name", ["fedit", "rolora", "fedsa_lora", "hetlora"])
def test_runs_of_adapters_share_their_base(name: str) -> None:
    runs = [{"algorithm": LORA[name], "seed": seed} for seed in range(2)]
    for other, options in zip(together(with_adapters, runs), runs, strict=True):
        alone = with_adapters(**options)
        alone.fit()
        assert_agree(other, alone)


@pytest.mark.parametrize(
    ("name", "scale", "match"),
    [("fedit", 2.0, "a frozen parameter differs"), ("fedex_lora", 1.0, "each server moves")],
)
def test_runs_of_different_bases_are_no_one_program(name: str, scale: float, match: str) -> None:
    runs = [{"algorithm": LORA[name]}, {"algorithm": LORA[name], "scale": scale}]
    with pytest.raises(UserError, match=match):
        together(with_adapters, runs)


@pytest.mark.parametrize(
    "executor",
    [partial(GraphExecutor, width=3, stacked=True), partial(TRACED, width=3)],
    ids=["graphs", "traced"],
)
def test_runs_share_graphs_and_compiled_steps(executor: Any, traces: list[Any]) -> None:
    """Of full groups of equal clients, the others are eager."""
    sampler = {"sampler": lambda *_: [0, 5], "rounds": 2}
    runs = [{**run, **sampler, "sizes": (10,) * 6} for run in SWEEPS["fedtoga"][:2]]
    found = together(make, runs, executor)
    assert_as_alone(found, runs)
    assert bool(traces) == (executor.func is not GraphExecutor)
    executors = [run.local_training.executor._executor for run in found]
    assert all(getattr(executor, "graphs", True) for executor in executors)


class OwnError(Exception):
    def __init__(self, layer: str, reason: str):
        super().__init__(f"{layer}: {reason}")


def failing_on_batches(inner: nn.Module, x: Tensor) -> Any:
    """Takes the two samples of a trial, and no batch."""
    if len(x) > 2:
        raise OwnError("inner", "too many")
    return inner(x)


def test_an_error_of_a_class_that_cannot_be_copied_is_shown_as_it_is() -> None:
    mine = {"algorithm": Algorithm(), "module": Around(failing_on_batches)}
    runs = [{**mine, "lr": lr} for lr in (0.1, 0.2)]
    with pytest.raises(OwnError, match="inner: too many"):
        together(make, runs)
