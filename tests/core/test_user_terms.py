"""A user-defined term: what it may keep, read, name and draw."""

# ruff: noqa: NPY002
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from executors import COMPILED, STACKED, assert_agree, on_eager_executors
from problems import (
    classification,
    classifier,
    federation,
    hard,
    round_after_round,
    rows,
    term,
    trained,
    vec,
)
from refusals import experiment
from regressions import layout
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import Algorithm, SequentialExecutor, Term, TermError, scalar, zeros
from fl_lightning.core.rehearsed_round import dummy_facts
from fl_lightning.core.view import FACTS


@on_eager_executors
def test_a_state_may_count_in_whole_numbers(executor):
    def none(first: Tensor, now: Tensor) -> Tensor:
        return torch.zeros((), dtype=torch.long)

    class Counting(Term):
        client, server = {"count": none}, {"rounds_so_far": none}

        def report(self, w, v):
            v.count = v.count + 1
            return ()

        def update(self, delta, mean, v):
            v.rounds_so_far = v.rounds_so_far + 1
            return delta / v.rounds_so_far

    run = trained(Algorithm(Counting()), executor=executor)
    assert rows(run, "count").tolist() == [2, 2, 2, 2, 2, 1]
    assert run.server.states[0]["rounds_so_far"] == run.round


def test_a_scalar_state_may_be_a_number_of_the_view(traces):
    def report(self, w, v):
        v.last = v.round
        return ()

    keeping = Algorithm(term(client={"last": scalar}, report=report))
    for executor in (SequentialExecutor, STACKED, COMPILED["stacked, traced"]):
        assert rows(trained(keeping, executor=executor), "last").tolist() == [2, 2, 1, 2, 2, 0]


@pytest.mark.parametrize("name", [*sorted(FACTS), "log", "_mine", "c"])
def test_a_states_name_may_not_hide_anything_else(name):
    hiding = term("Hiding", server={"c": zeros}, client={name: zeros})
    with pytest.raises(TermError, match=rf"Hiding declares a state '{name}'.*rename it"):
        federation(Algorithm(hiding))


def test_the_facts_are_those_of_a_visit():
    seen: set[str] = set()

    def report(self, w, v):
        seen.update(name for name in v.__dict__ if not name.startswith("_"))
        return ()

    trained(Algorithm(term(report=report)))
    assert seen == FACTS - {"bits", "numbers", "cohort", "frozen"}
    assert seen - {"own"} == set(dummy_facts(layout(), vec(1, 1)))


# how many samples of a class


@dataclass(frozen=True)
class Balanced(Term):
    """Adds a class's log frequency to its score (Ren et al., NeurIPS 2020); keeps the counts."""

    client = {"counts": lambda first, now: now.new_zeros(3)}

    def gradient(self, oracle, w, v):
        return oracle.of(lambda b: F.cross_entropy(b.out + v.labels.clamp(min=1e-3).log(), b.y))(w)

    def report(self, w, v):
        v.counts = v.labels
        return ()


@on_eager_executors
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_view_has_the_number_of_samples_of_each_class(dtype, executor):
    clients, module = classification(dtype=dtype), classifier(dtype=dtype)
    run = trained(Algorithm(Balanced()), clients=clients, module=module, executor=executor)
    assert rows(run, "counts").dtype == dtype
    assert rows(run, "counts").tolist() == clients.class_counts.tolist()


def test_all_executors_agree_on_a_calibrated_loss(traces):
    algorithm, clients = hard(Algorithm(Balanced())), classification((5, 5, 10, 10, 5, 15))
    one_by_one = trained(algorithm, clients=clients)
    assert (one_by_one.w - trained(hard(Algorithm()), clients=clients).w).abs().max() > 1e-3
    for executor in (STACKED, *COMPILED.values()):
        assert_agree(one_by_one, trained(algorithm, clients=clients, executor=executor))
    assert len(traces) == 2  # one for all clients and rounds


DRAWS = {"numpy": np.random.normal, "python": random.random}


class Noisy(Term):
    def __init__(self, draw):
        self.draw = draw

    def start(self, w, v):
        return w + 0.01 * self.draw()

    def gradient(self, oracle, w, v):
        return oracle(w) + 0.01 * self.draw()

    def report(self, w, v):
        return w + self.draw()

    def update(self, delta, mean, v):
        return delta + 0.01 * mean + 0.01 * self.draw()


def state() -> tuple[Any, ...]:
    return random.getstate(), *map(str, np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.parametrize("library", DRAWS)
def test_draws_of_a_term_are_repeated_and_leave_the_generators_alone(library):
    models = []
    for seed in (1, 2):
        run = federation(hard(Algorithm(Noisy(DRAWS[library]))))
        run.prepare()
        random.seed(seed)
        np.random.seed(seed)
        before = state()
        run.train_round()
        assert state() == before
        models.append(run.w)
    assert models[0].equal(models[1])


@pytest.mark.parametrize("lifetime", ["client", "server", "local"])
def test_first_values_of_states_may_be_drawn_whatever_was_drawn_before(lifetime):
    def drawn(first: Tensor, now: Tensor) -> Tensor:
        return torch.randn_like(now)

    def gradient(self, oracle, w, v):
        used.append((v.round, int(v.client), v.P))
        return oracle(w) * v.P

    models, runs = [], []
    for seed in (1, 2):
        used: list[tuple[int, int, Tensor]] = []
        term = type("Sketch", (Term,), {lifetime: {"P": drawn}, "gradient": gradient})
        module = classifier()
        torch.manual_seed(seed)
        run = federation(Algorithm(term()), module=module)
        models.append(round_after_round(run, 3).w)
        runs.append({(round, client): P for round, client, P in used})
    assert models[0].equal(models[1])
    assert all(P.equal(runs[1][visit]) for visit, P in runs[0].items())
    same_client, same_round = ((runs[0][1, 2], runs[0][i, j]) for i, j in ((0, 2), (1, 3)))
    assert same_client[0].equal(same_client[1]) == (lifetime != "local")
    assert same_round[0].equal(same_round[1]) == (lifetime == "server")


def test_draws_of_a_model_are_repeated(tmp_path):
    def scaled(inputs: int, classes: int) -> nn.Module:
        network = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))
        nn.init.constant_(network[1].weight, random.random() + np.random.normal())
        return network

    run = experiment(tmp_path / "run", model=scaled)
    train, _ = run.load()
    first, second = (run.model(train)[1].weight for _ in range(2))
    assert first.equal(second)
