"""A term of a user's own: what it may keep, read and call what it likes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from problems import (
    classification,
    classifier,
    distances,
    federation,
    hard,
    layout,
    rows,
    trained,
    vec,
)
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import (
    Algorithm,
    SequentialExecutor,
    StackedExecutor,
    Term,
    TermError,
    initial,
    scalar,
    zeros,
)
from fl_lightning.core.cost import dummy_facts
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import FACTS

STACKED = partial(StackedExecutor, width=3)


@dataclass(frozen=True)
class Anchored(Term):
    # Pulls towards the mean of the models this client received; the server leans on the mean
    # of the pulls.

    mu: float = 0.1
    client = {"mean_i": initial, "visits": scalar}
    server = {"pull": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.mu * (w - v.mean_i)

    def report(self, w: Tensor, v: Any) -> tuple[Tensor, Tensor]:
        v.visits = v.visits + 1
        v.mean_i = v.mean_i + (v.anchor - v.mean_i) / v.visits
        return v.mean_i - v.anchor, v.visits

    def update(self, delta: Tensor, mean: tuple[Tensor, Tensor], v: Any) -> Tensor:
        v.pull = v.pull + v.share * mean[0]
        return delta + self.mu * v.pull / mean[1]


def test_a_users_term_runs_in_both_executors() -> None:
    one_by_one, together = (
        trained(hard(Algorithm(Anchored()))),
        trained(hard(Algorithm(Anchored())), executor=STACKED),
    )
    assert max(distances(one_by_one, together).values()) <= 1e-10
    assert rows(one_by_one, "visits").tolist() == [2, 2, 2, 2, 2, 1]


def test_methods_and_coefficients_of_ones_own_are_not_hooks() -> None:
    @dataclass(frozen=True)
    class Mine(Term):
        updates: Callable[[Tensor], Tensor] = (
            torch.neg
        )  # a coefficient, though its name is close to a hook's

        def distance(self, w: Tensor, v: Any) -> Tensor:
            return w - v.anchor

    Algorithm(Mine())


def test_a_state_may_count_in_whole_numbers() -> None:
    @dataclass(frozen=True)
    class Counting(Term):
        client = {"count": lambda first, now: torch.zeros((), dtype=torch.long)}
        server = {"rounds_so_far": lambda first, now: torch.zeros((), dtype=torch.long)}

        def report(self, w: Tensor, v: Any) -> Any:
            v.count = v.count + 1
            return ()

        def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
            v.rounds_so_far = v.rounds_so_far + 1
            return delta / v.rounds_so_far

    for executor in (SequentialExecutor, STACKED):
        run = trained(Algorithm(Counting()), executor=executor)
        assert rows(run, "count").tolist() == [2, 2, 2, 2, 2, 1]
        assert run.server.states[0]["rounds_so_far"] == run.round


@pytest.mark.parametrize("name", [*sorted(FACTS), "_mine", "c"])
def test_a_states_name_may_not_hide_anything_else(name: str) -> None:
    hiding = type("Hiding", (Term,), {"server": {"c": zeros}, "client": {name: zeros}})
    with pytest.raises(TermError, match=rf"Hiding declares a state '{name}'.*rename it"):
        Algorithm(hiding())


def test_the_facts_are_those_that_a_visit_tells() -> None:
    told: set[str] = set()

    @dataclass(frozen=True)
    class Witness(Term):
        def report(self, w: Tensor, v: Any) -> Any:
            told.update(name for name in v.__dict__ if not name.startswith("_"))
            return ()

    trained(Algorithm(Witness()))
    assert told == FACTS == set(dummy_facts(layout(), vec(1, 1)))


# how many samples of a class


@dataclass(frozen=True)
class Balanced(Term):
    # Adds a class's log frequency to its score (Ren et al., NeurIPS 2020); keeps and sends
    # the counts.

    client = {"counts": lambda first, now: now.new_zeros(3)}
    server = {"mean_counts": lambda first, now: now.new_zeros(3)}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: F.cross_entropy(b.out + v.labels.clamp(min=1e-3).log(), b.y))(w)

    def report(self, w: Tensor, v: Any) -> Tensor:
        v.counts = v.labels
        return v.labels

    def update(self, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        v.mean_counts = mean
        return delta


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_view_tells_how_many_samples_of_each_class_a_client_holds(dtype: torch.dtype) -> None:
    clients = classification(dtype=dtype)
    for executor in (SequentialExecutor, STACKED):
        run = trained(
            Algorithm(Balanced()),
            clients=clients,
            module=classifier(dtype=dtype),
            executor=executor,
        )
        assert rows(run, "counts").dtype == dtype
        assert rows(run, "counts").tolist() == clients.class_counts.tolist()


def test_all_executors_calibrate_a_loss_alike(traces: list[Any]) -> None:
    algorithm, clients = hard(Algorithm(Balanced())), classification((5, 5, 10, 10, 5, 15))
    one_by_one = trained(algorithm, clients=clients)
    assert (one_by_one.w - trained(hard(Algorithm()), clients=clients).w).abs().max() > 1e-3
    for executor in (
        STACKED,
        *(partial(StackedExecutor, width=width, compiled=5) for width in (1, 2)),
    ):
        assert (
            max(
                distances(
                    one_by_one, trained(algorithm, clients=clients, executor=executor)
                ).values()
            )
            <= 1e-10
        )
    assert len(traces) == 2  # one for all clients and rounds


def on_ranks(fabric: Fabric) -> list[float]:
    run = trained(hard(Algorithm(Balanced())), fabric=fabric, deterministic=True)
    return [*run.w.tolist(), *run.server.states[0]["mean_counts"].tolist()]


def test_two_ranks_count_the_same_labels() -> None:
    both, alone = (
        Fabric(accelerator="cpu", devices=n, strategy=s) for n, s in [(2, "ddp_fork"), (1, "auto")]
    )
    assert both.launch(on_ranks) == on_ranks(alone)


# what an author asks for in vain


@pytest.mark.parametrize("hook", ["start", "gradient", "report"])
def test_who_asks_for_the_learning_rate_is_told_what_there_is(hook: str) -> None:
    hooks = {
        "start": lambda self, w, v: w * v.lr,
        "gradient": lambda self, oracle, w, v: v.lr * oracle(w),
        "report": lambda self, w, v: v.lr,
    }
    with pytest.raises(
        TermError, match=rf"Mine\.{hook} reads v\.lr.* v\.span / v\.steps is their mean"
    ):
        federation(Algorithm(type("Mine", (Term,), {hook: hooks[hook]})()))


@pytest.mark.parametrize(
    "update",
    [
        lambda self, delta, mean, v: delta * mean,
        lambda self, delta, mean, v: delta + 0.1 * mean,
        lambda self, delta, mean, v: delta + mean[0],
        lambda self, delta, mean, v: delta / mean.norm(),
    ],
)
def test_a_mean_of_nothing_is_told_to_be_one(update: Callable[..., Any]) -> None:
    with pytest.raises(
        TermError, match=r"Mine\.update failed .* clients report nothing: let `report` return"
    ):
        federation(Algorithm(type("Mine", (Term,), {"update": update})()))


def test_other_errors_of_an_update_are_its_own() -> None:
    def update(self: Term, delta: Tensor, mean: Tensor, v: Any) -> Tensor:
        return delta + [][0]

    with pytest.raises(IndexError):
        federation(
            Algorithm(type("Mine", (Term,), {"update": update, "report": lambda self, w, v: w})())
        )
