"""Local steps as CUDA graphs, which recordings stand in for.

`test_agree.py` replays each kind of gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from executors import (
    BRANCHES,
    ROWS,
    Around,
    Counting,
    Normalized,
    Waiting,
    assert_agree,
    descending,
    noisy,
)
from problems import (
    EVERY_ALGORITHM,
    classification,
    classifier,
    cpu,
    everything,
    federation,
    hard,
    round_after_round,
    trained,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from fl_lightning import Algorithm, Term, algorithms, linear, zeros
from fl_lightning.core.oracle import Oracle
from fl_lightning.executors import replay

pytestmark = pytest.mark.usefixtures("captures")
on_both_ways = pytest.mark.parametrize("executor", [BRANCHES, ROWS], ids=["branches", "rows"])
SIZES = 10, 10, 7, 7, 12, 10
"""Samples of clients in batches of five: two steps, of some the last one short; one has three."""

COHORTS = [0, 1], [2, 3], [0, 1, 4]
"""Of equal steps, in the last round of unequal ones."""


def assert_same_as_sequential(
    executor: Any, algorithm: Algorithm, **make: Callable[[], Any]
) -> None:
    """Train by replays, and one client after another; `make` makes options anew for each."""
    replayed, one_by_one = (
        trained(
            algorithm,
            clients=classification(SIZES, epochs=1),
            sampler=lambda n, seed, round: COHORTS[round],
            **{name: f() for name, f in make.items()},
            **way,
        )
        for way in ({"executor": executor}, {})
    )
    assert_agree(replayed, one_by_one, 1e-12)


def test_a_mac_trains_in_branches_on_its_cpu(
    monkeypatch: pytest.MonkeyPatch, captures: list[Any]
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert_same_as_sequential(BRANCHES, algorithms.fedavg())
    assert captures


@on_both_ways
@pytest.mark.parametrize("local", [hard, descending])
def test_clients_of_equal_steps_are_rows_of_one_program(
    local: Any, executor: Any, captures: list[Any]
) -> None:
    """The others are branches. SGD without momentum is part of the graph."""
    assert_same_as_sequential(executor, local(EVERY_ALGORITHM["fedsmoo"]))
    rows = {len(step.func.__self__._lrs) for step in captures}
    assert rows == ({1} if executor is BRANCHES else {1, 2})


@on_both_ways
def test_a_graph_keeps_no_number_of_a_curve(executor: Any, captures: list[Any]) -> None:
    curved = algorithms.fedtoga(beta=linear(0.8, 0.1))
    assert_same_as_sequential(executor, descending(curved))
    assert captures


@dataclass(frozen=True)
class Keeping(Term):
    """Keeps the weights themselves, and swaps two states."""

    client = {"before": zeros, "a": zeros, "b": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w) + 0.1 * (w - v.before) + 0.5 * v.a - 0.2 * v.b
        v.before, v.a, v.b = w, v.b, v.a + 0.1 * g
        return g


@on_both_ways
@pytest.mark.parametrize("local", [hard, descending])
def test_a_term_may_keep_the_weights_and_swap_states(local: Any, executor: Any) -> None:
    """A replay writes over all of them: each must be read before."""
    assert_same_as_sequential(executor, local(Algorithm(Keeping())))


@on_both_ways
@pytest.mark.parametrize("local", [partial(AdamW, lr=0.01), Normalized])
def test_any_other_optimizer_steps_after_each_replay(local: Any, executor: Any) -> None:
    other = algorithms.scaffold().with_outer_terms(local=local)
    assert_same_as_sequential(executor, other, module=partial(classifier, norm=False))


@on_both_ways
def test_bf16_trains_towards_what_float32_finds(executor: Any) -> None:
    given = {"fabric": cpu("bf16-mixed"), "clients": classification(dtype=torch.float32)}
    one_by_one, replayed = (
        trained(algorithms.fedsam(), module=classifier(dtype=torch.float32), **given, **way)
        for way in ({}, {"executor": executor})
    )
    moved = everything(one_by_one)["model"] - one_by_one.server.initial_w
    assert (one_by_one.w - replayed.w).norm() < 0.01 * moved.norm()


def test_compiled_steps_are_captured_too(traces: list[Any]) -> None:
    compiled = partial(BRANCHES, compiled=5)
    assert_same_as_sequential(compiled, descending(algorithms.fedavg()))
    assert len(traces) == 1


# --------------------------------------------------------------------- what no graph can repeat


def not_stacking() -> nn.Module:
    """It asks where its input lies, which `vmap` refuses."""
    return Around(lambda inner, x: inner(x) if x.data_ptr() else -inner(x))


def noisy_loss(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out + 0.1 * torch.rand_like(out), y)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "waits": ({"algorithm": Algorithm(Waiting())}, "RuntimeError"),
    "counts": ({"algorithm": Algorithm(Counting())}, "AttributeError"),
    "draws": ({"module": noisy}, "Around or its loss draws random numbers"),
    "loss draws": ({"loss": noisy_loss}, "or its loss draws random numbers"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_graph_can_repeat_trains_eagerly_and_one_line_says_so(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, reason = REFUSED[case]
    options = {"algorithm": algorithms.fedavg(), "clients": classification(SIZES), **given}
    module = options.pop("module", classifier)
    run = trained(module=module(), executor=BRANCHES, **options)
    assert_agree(run, trained(module=module(), **options), 0)
    (line,) = capsys.readouterr().out.splitlines()
    assert "one after another" in line
    assert reason in line


def test_a_model_that_does_not_stack_trains_in_branches(
    capsys: pytest.CaptureFixture[str], captures: list[Any]
) -> None:
    algorithm = descending(algorithms.fedavg())
    assert_same_as_sequential(ROWS, algorithm, module=not_stacking)
    (line,) = capsys.readouterr().out.splitlines()
    assert "in branches" in line
    assert captures


def test_too_little_memory_frees_the_graphs_and_trains_fewer_clients_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = classification(SIZES)
    run = federation(algorithms.fedavg(), clients=clients, executor=BRANCHES)
    run.train_round()
    executor: Any = run.local_training.executor
    branches, take = [*executor._replayed.values()], replay.ReplayedStep.take

    def full(step: Any, k: int) -> None:
        if step in branches:
            raise torch.OutOfMemoryError("CUDA out of memory")
        take(step, k)

    monkeypatch.setattr(replay.ReplayedStep, "take", full)
    round_after_round(run, 2)
    assert run.local_training.group_size == 1
    assert not {*branches} & {*executor._replayed.values()}
    assert_agree(run, trained(algorithms.fedavg(), clients=clients), 1e-12)
    assert "continuing with 1" in capsys.readouterr().out
