"""A term of a user's own: what it may keep, read and call what it likes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from problems import distances, hard, layout, rows, trained, vec
from torch import Tensor

from fl_lightning import Algorithm, Sequential, Stacked, Term, TermError, initial, scalar, zeros
from fl_lightning.cost import trial_facts
from fl_lightning.oracle import Oracle
from fl_lightning.term import FACTS

STACKED = partial(Stacked, width=3)


@dataclass(frozen=True)
class Anchored(Term):
    """Pulls towards the mean of the models this client received; the server leans on the mean of the pulls."""

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
    one_by_one, together = trained(hard(Algorithm(Anchored()))), trained(hard(Algorithm(Anchored())), executor=STACKED)
    assert max(distances(one_by_one, together).values()) <= 1e-10
    assert rows(one_by_one, "visits").tolist() == [2, 2, 2, 2, 2, 1]


def test_methods_and_coefficients_of_ones_own_are_not_hooks() -> None:
    @dataclass(frozen=True)
    class Mine(Term):
        updates: Callable[[Tensor], Tensor] = torch.neg  # a coefficient, though its name is close to a hook's

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

    for executor in (Sequential, STACKED):
        run = trained(Algorithm(Counting()), executor=executor)
        assert rows(run, "count").tolist() == [2, 2, 2, 2, 2, 1]
        assert run.shared[0]["rounds_so_far"] == run.round


@pytest.mark.parametrize("name", [*sorted(FACTS), "_mine", "c"])
def test_a_states_name_may_not_hide_anything_else(name: str) -> None:
    hiding = type("Hiding", (Term,), {"server": {"c": zeros}, "client": {name: zeros}})
    with pytest.raises(TermError, match=rf"Hiding declares a state '{name}'.*Rename it"):
        Algorithm(hiding())


def test_the_facts_are_those_that_a_visit_tells() -> None:
    told: set[str] = set()

    @dataclass(frozen=True)
    class Witness(Term):
        def report(self, w: Tensor, v: Any) -> Any:
            told.update(name for name in v.__dict__ if not name.startswith("_"))
            return ()

    trained(Algorithm(Witness()))
    assert told == FACTS == set(trial_facts(layout(), vec(1, 1)))
