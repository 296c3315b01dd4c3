"""The server alone, and the state of a federation: saved, loaded, and refused."""

from contextlib import nullcontext
from copy import deepcopy
from functools import partial

import pytest
import torch
from problems import (
    EVERY_ALGORITHM,
    EXECUTORS,
    STACKED,
    classification,
    classifier,
    cpu,
    distances,
    everything,
    federation,
    hard,
    round_after_round,
    trained,
    vec,
)
from regressions import line
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import Algorithm, SequentialExecutor, Term, algorithms
from fl_lightning.core.curves import exponential
from fl_lightning.core.vector import Layout
from fl_lightning.federation.server import Server, copy_of
from fl_lightning.terms import LESAM, SAM, ControlVariate

# ------------------------------------------------------------------- a server without a Fabric


def half_frozen(outer: int = 3) -> nn.Module:
    """The classifier with a new last layer that is not trained."""
    module = classifier()
    module.outer = nn.Linear(8, outer).double().requires_grad_(False)
    return module


def steps(server: Server, count: int) -> list[Tensor]:
    """The moves of so many rounds with the mean update (1, -1) and the mean message (4, 0)."""
    moves, messages = [], [vec(4.0, 0.0)] * len(server.algorithm.terms)
    for server.round in range(count):
        facts = {"anchor": server.w.detach().clone(), "participation": 0.5}
        moves.append(server.step(vec(1.0, -1.0), messages, facts)[0])
    return moves


def test_the_servers_learning_rate_may_be_a_curve():
    module = line()
    algorithm = Algorithm(server=partial(SGD, lr=5.0), server_lr=exponential(2.0, 0.5))
    moves = steps(Server(module, Layout(module), algorithm, rounds=3), 3)
    assert torch.stack(moves).tolist() == [[2.0, -2.0], [1.0, -1.0], [0.5, -0.5]]


@pytest.mark.parametrize(
    ("terms", "module", "named"),
    [
        ([LESAM()], None, "LESAM"),
        ([], None, r"and \[\]"),
        ([ControlVariate()], None, "ControlVariate"),
        ([SAM()], classifier(norm=False), "this run has 83"),
    ],
)
def test_the_state_of_another_algorithm_or_model_is_refused(terms, module, named):
    state, other = federation(Algorithm(SAM())).state_dict(), Algorithm(*terms)
    with pytest.raises(ValueError, match=rf"99 parameters .*\['SAM\(\)'\].*{named}"):
        federation(other, module=module).load_state_dict(state)
    federation(Algorithm(SAM(0.2))).load_state_dict(state)  # coefficients may change


class Keeps(nn.Linear):
    kept: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.kept = super().forward(x)
        return self.kept


def test_a_module_that_keeps_an_activation_is_copied_without_its_graph():
    module = nn.Sequential(Keeps(3, 2))
    module(torch.ones(1, 3))
    copy = copy_of(module)
    assert copy[0].kept.equal(module[0].kept)
    assert not copy[0].kept.requires_grad
    assert module[0].kept.requires_grad
    assert copy[0].weight is not module[0].weight


# ------------------------------------------------------------------- a federation that continues

STATEFUL = ["scaffold", "fedlesam_d", "fedadam", "fedtoga, fusion carried", "fedlesam, last round"]
STATEFUL += ["fedwmsam", "fedgmt", "fedgloss", "fedgf", "fednsam", "fedtoga, as released"]
STATEFUL += ["fedadamw", "fedmuon", "fedmuon_lmo", "diloco"]


def client_3_comes_late(num_clients: int, seed: int, round: int) -> list[int]:
    """After the save, when its states begin at w^0."""
    return [[0, 2, 4], [0, 4], [0, 3], [3, 4]][round]


def other_start() -> nn.Module:
    """Another w^0; the checkpoint's own counts."""
    module = classifier()
    nn.init.zeros_(module.get_parameter("outer.weight"))
    return module


@pytest.mark.parametrize(
    ("name", "executor"),
    [*((name, SequentialExecutor) for name in STATEFUL), ("fedtoga, fusion carried", STACKED)],
)
def test_a_resumed_run_equals_one_that_never_stopped(name, executor, tmp_path):
    """Bit by bit, though two rounds were run and abandoned between the save and the restart."""
    algorithm, folder = hard(EVERY_ALGORITHM[name]), tmp_path / "states"
    algorithm.server = partial(SGD, lr=0.7, momentum=0.3)
    options = {"rounds": 4, "executor": executor, "sampler": client_3_comes_late}
    never = trained(algorithm, **options)
    first = round_after_round(federation(algorithm, state_dir=folder, **options), 2)
    first.store.retain()
    torch.save(first.state_dict(), tmp_path / "last.ckpt")
    round_after_round(first, 2)
    again = federation(algorithm, module=other_start(), state_dir=folder, **options)
    again.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True))
    assert again.round == 2
    again.fit()
    assert again.round == 4
    assert not any(distances(again, never).values())


def test_a_federation_returns_to_any_state_that_it_retained():
    never = trained(hard(algorithms.scaffold()))
    run = federation(hard(algorithms.scaffold()))
    states = {}
    for name in ("one", "two"):
        run.train_round()
        run.store.retain(name)
        states[name] = deepcopy(run.state_dict())
    for name in ("one", "two", "one"):
        run.load_state_dict(states[name])
        run.fit()
        assert not any(distances(run, never).values())


def test_a_state_dict_needs_retained_rows():
    run = federation(algorithms.scaffold())
    assert run.state_dict()["round"] == 0  # no client has a state yet
    for _ in range(2):
        run.train_round()
        with pytest.raises(ValueError, match=r"federation\.store\.retain\(\)"):
            run.state_dict()
        run.store.retain()
        assert run.state_dict()


def test_a_state_whose_rows_were_released_is_refused_and_changes_nothing():
    run = federation(algorithms.scaffold(), sampler=lambda *_: [0, 1, 2, 3, 4, 5])
    states = []
    for _ in range(3):
        run.train_round()
        run.store.retain()  # in place of the one before
        states.append(deepcopy(run.state_dict()))
    before = everything(run)
    with pytest.raises(ValueError, match=r"written over .*store\.retain\(name\)"):
        run.load_state_dict(states[0])
    assert run.round == 3
    assert all(everything(run)[name].equal(value) for name, value in before.items())


@EXECUTORS
def test_frozen_parameters_are_restored(executor):
    """Whether the algorithm or the user froze them; also into a federation that has trained."""
    fedbabu = hard(algorithms.fedbabu()), classifier(), other_start()
    for algorithm, module, other in (fedbabu, (hard(Algorithm()), half_frozen(), half_frozen())):
        run, again = (federation(algorithm, module=m, executor=executor) for m in (module, other))
        run.train_round()
        again.train_round()
        again.load_state_dict(deepcopy(run.state_dict()))
        expected, found = (round_after_round(r, 2).load_global().state_dict() for r in (run, again))
        assert all(value.equal(expected[name]) for name, value in found.items())


# ------------------------------------------------------------------- a federation's refusals


def test_a_state_of_another_run_or_version_is_refused():
    dtype = torch.float32
    same = {"module": classifier(dtype=dtype), "clients": classification(dtype=dtype)}
    relabeled = classification(dtype=dtype)
    relabeled.dataset.y[:] = (relabeled.dataset.y + 1) % 3
    state = federation(Algorithm(), **same).state_dict()
    for changes, message in [
        ({"module": classifier(norm=False, dtype=dtype)}, "99 parameters.* this run has 83"),
        ({"clients": classification([5, 5, 5], dtype)}, "num_clients 6, this run 3"),
        ({"clients": relabeled}, "data .* resume with equal data"),
        ({"fabric": cpu("bf16-mixed")}, "precision 32-true, this run bf16-mixed"),
    ]:
        with pytest.raises(ValueError, match=message):
            federation(Algorithm(), **{**same, **changes}).load_state_dict(state)
    del state["frozen"]
    with pytest.raises(ValueError, match=r"another version.*\['frozen'\]"):
        federation(Algorithm(), **same).load_state_dict(state)


def test_a_finished_run_continues_with_more_rounds_and_another_executor():
    run = trained(Algorithm())
    state = deepcopy(run.state_dict())
    for rounds in (3, 4):
        again = federation(Algorithm(), rounds=rounds, executor=STACKED)
        again.load_state_dict(state)
        again.fit()
        assert again.round == rounds
        assert again.w.equal(run.w) == (rounds == 3)
    with pytest.raises(ValueError, match="round 3, this run ends with 2"):
        federation(Algorithm(), rounds=2).load_state_dict(state)


def test_a_method_with_a_horizon_keeps_its_number_of_rounds():
    """FedSSG's gate counts visits over those of the whole run, or over those expected so far."""
    fixed, free = algorithms.fedssg(gate="horizon"), algorithms.fedssg(gate="running")
    for algorithm, refused in ((fixed, True), (free, False)):
        state = federation(algorithm, rounds=3).state_dict()
        federation(algorithm, rounds=3).load_state_dict(state)
        longer = federation(algorithm, rounds=4)
        with pytest.raises(ValueError, match="rounds 3, this run 4") if refused else nullcontext():
            longer.load_state_dict(state)


def test_the_state_of_another_frozen_part_is_refused():
    state = federation(Algorithm(), module=half_frozen()).state_dict()
    with pytest.raises(ValueError, match=r"outer.weight is frozen and has other values"):
        federation(Algorithm(), module=half_frozen(4)).load_state_dict(state)


class Noisy(Term):
    def update(self, delta, message, v):
        return delta + torch.randn_like(delta)


def test_what_the_server_draws_depends_on_seed_and_round_alone():
    """And not on the process, so that all ranks draw the same."""

    def drawn(process: int, seed: int) -> list[Tensor]:
        torch.manual_seed(process)
        module = line()
        return steps(Server(module, Layout(module), Algorithm(Noisy()), seed=seed), 2)

    once, again, other = drawn(1, 0), drawn(2, 0), drawn(1, 1)
    assert all(mine.equal(theirs) for mine, theirs in zip(once, again, strict=True))
    assert not any(torch.allclose(once[0], draw, rtol=1e-3) for draw in (once[1], *other))
