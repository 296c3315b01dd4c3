"""What a federation needs to go on later: saved, loaded, and refused where it does not fit."""

import re
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from problems import (
    EVERY_ALGORITHM,
    classification,
    classifier,
    distances,
    everything,
    federation,
    hard,
    trained,
)
from torch import nn
from torch.optim import SGD

from fl_lightning import Algorithm, Federation, SequentialExecutor, StackedExecutor, algorithms
from fl_lightning.terms import LESAM, SAM

STACKED = partial(StackedExecutor, width=3)
EXECUTORS = pytest.mark.parametrize(
    "executor", [SequentialExecutor, STACKED], ids=["sequential", "stacked"]
)

STATEFUL = ["scaffold", "fedlesam_d", "fedadam", "fedtoga, fusion carried", "fedlesam, last round"]


def saved(run: Federation, path: Path) -> None:
    run.store.retain()
    torch.save(run.state_dict(), path)


@EXECUTORS
@pytest.mark.parametrize("name", STATEFUL)
def test_to_stop_and_go_on_is_never_to_have_stopped(
    name: str, executor: Any, tmp_path: Path
) -> None:
    """Bit by bit; also when rounds were run, and abandoned, between the save and the restart."""
    algorithm = hard(EVERY_ALGORITHM[name])
    algorithm.server = partial(SGD, lr=0.7, momentum=0.3)
    options = {"rounds": 4, "executor": executor, "sampler": client_3_comes_late}
    never = trained(algorithm, **options)
    for abandoned in (0, 1, 2):
        first = federation(algorithm, state_dir=tmp_path / str(abandoned), **options)
        for _ in range(2):
            first.train_round()
        saved(first, tmp_path / "last.ckpt")
        for _ in range(abandoned):
            first.train_round()
        again = federation(
            algorithm, module=other_start(), state_dir=tmp_path / str(abandoned), **options
        )
        again.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True))
        assert again.round == 2
        again.fit()
        assert again.round == 4
        assert distances(again, never) == dict.fromkeys(distances(again, never), 0.0)


def client_3_comes_late(num_clients: int, seed: int, round: int) -> list[int]:
    """After the save, when its states begin at w^0."""
    return [[0, 1, 2, 4, 5], [0, 2], [0, 3, 4], [1, 3]][round]


def other_start() -> nn.Module:
    """w^0 is in the checkpoint, whatever model a run is resumed with."""
    module = classifier()
    nn.init.zeros_(module.get_parameter("outer.weight"))
    return module


def test_a_run_may_go_on_with_the_other_executor(tmp_path: Path) -> None:
    algorithm = hard(algorithms.scaffold())
    never = trained(algorithm)
    first = federation(algorithm, state_dir=tmp_path / "states")
    first.train_round()
    saved(first, tmp_path / "last.ckpt")
    again = federation(algorithm, state_dir=tmp_path / "states", executor=STACKED)
    again.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True))
    again.fit()
    assert max(distances(again, never).values()) < 1e-10


# ---------------------------------------------------------------------------------------- without leaving the program


def test_a_federation_goes_back_to_any_state_that_it_pinned() -> None:
    never = trained(hard(algorithms.scaffold()))
    run = federation(hard(algorithms.scaffold()))
    states = {}
    for name in ("one", "two"):
        run.train_round()
        run.store.retain(name)
        states[name] = deepcopy(run.state_dict())
    for state in (states["one"], states["two"], states["one"]):
        run.load_state_dict(state)
        run.fit()
        assert not any(distances(run, never).values())


def test_what_later_rounds_would_write_over_is_no_state() -> None:
    run = federation(algorithms.scaffold())
    assert run.state_dict()["round"] == 0  # no client has a state yet
    for _ in range(2):
        run.train_round()
        with pytest.raises(ValueError, match=r"federation\.store\.retain\(\)"):
            run.state_dict()
        run.store.retain()
        assert run.state_dict()


def test_what_was_pinned_no_longer_is_not_gone_back_to() -> None:
    run = federation(algorithms.scaffold(), sampler=lambda *_: [0, 1, 2, 3, 4, 5])
    states = []
    for _ in range(3):
        run.train_round()
        run.store.retain()  # in place of the one before
        states.append(deepcopy(run.state_dict()))
    before = everything(run)
    assert states[0]["slot"].equal(states[2]["slot"])  # where by now other rows lie
    for state in states[:2]:
        with pytest.raises(ValueError, match=r"may have written over .*store\.retain\(name\)"):
            run.load_state_dict(state)
    assert run.round == 3
    assert all(everything(run)[name].equal(value) for name, value in before.items())


# ------------------------------------------------------------------------------------------------------- what is frozen


def half_frozen(outer: int = 3) -> nn.Module:
    """Its last layer as drawn."""
    module = classifier()
    module.outer = nn.Linear(8, outer).double().requires_grad_(False)
    return module


@EXECUTORS
def test_what_is_frozen_comes_back_too(executor: Any) -> None:
    """Whether the algorithm froze it or the model came with it; also into a federation that has trained."""
    cases = (
        (hard(algorithms.fedbabu()), classifier(), other_start()),
        (hard(Algorithm()), half_frozen(), half_frozen()),
    )
    for algorithm, module, other in cases:
        run = federation(algorithm, module=module, executor=executor)
        run.train_round()
        state = deepcopy(run.state_dict())
        again = federation(algorithm, module=other, executor=executor)
        again.train_round()
        again.load_state_dict(state)
        for each in (run, again):
            each.fit()
        expected = run.load_global().state_dict()
        assert all(
            value.equal(expected[name]) for name, value in again.load_global().state_dict().items()
        )


def test_a_model_with_another_frozen_part_is_refused() -> None:
    state = federation(Algorithm(), module=half_frozen()).state_dict()
    with pytest.raises(ValueError, match=r"outer\.bias has another shape"):
        federation(Algorithm(), module=half_frozen(4)).load_state_dict(state)


def test_a_checkpoint_of_an_earlier_version_is_refused() -> None:
    state = federation(Algorithm()).state_dict()
    del state["frozen"]
    with pytest.raises(ValueError, match=r"another version of this package, lacks \['frozen'\]"):
        federation(Algorithm()).load_state_dict(state)


# ------------------------------------------------------------------------------------------------------ what is refused


OTHERS = {
    "another method without server states": Algorithm(LESAM()),
    "fewer terms": Algorithm(),
    "other server states": algorithms.scaffold(),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_another_algorithm_is_refused(other: str) -> None:
    state = federation(Algorithm(SAM())).state_dict()
    with pytest.raises(ValueError, match=re.escape("terms ['SAM()'], this run has")):
        federation(OTHERS[other]).load_state_dict(state)


def test_a_checkpoint_of_another_model_or_other_clients_is_refused() -> None:
    state = federation(Algorithm()).state_dict()
    with pytest.raises(ValueError, match=r"99 parameters.*this run has 83"):
        federation(Algorithm(), module=classifier(norm=False)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"num_clients 6, this run has 3"):
        federation(Algorithm(), clients=classification([5, 5, 5])).load_state_dict(state)


def test_a_checkpoint_of_other_data_or_another_precision_is_refused() -> None:
    float32 = {
        "module": classifier(dtype=torch.float32),
        "clients": classification(dtype=torch.float32),
    }
    state = federation(Algorithm(), **float32).state_dict()
    rounded = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    with pytest.raises(ValueError, match=r"precision 32-true, this run has bf16-mixed"):
        federation(Algorithm(), fabric=rounded, **float32).load_state_dict(state)
    relabelled = classification(dtype=torch.float32)
    relabelled.dataset.y[:] = (relabelled.dataset.y + 1) % 3
    with pytest.raises(ValueError, match=r"the checkpoint has data .* resume with the same data"):
        federation(Algorithm(), **{**float32, "clients": relabelled}).load_state_dict(state)


def test_a_run_that_has_ended_is_gone_on_from_with_as_many_rounds_or_more() -> None:
    run = trained(Algorithm())
    state = deepcopy(run.state_dict())
    for rounds in (3, 4):
        again = federation(Algorithm(), rounds=rounds)
        again.load_state_dict(state)
        again.fit()
        assert again.round == rounds
        assert again.w.equal(run.w) == (rounds == 3)
    with pytest.raises(ValueError, match="of round 3, but this run ends with 2"):
        federation(Algorithm(), rounds=2).load_state_dict(state)


def test_a_method_that_knows_how_long_it_runs_goes_on_as_long() -> None:
    """FedSSG's gate counts visits over those expected in the whole run, its other one over those expected so far."""
    fixed, free = algorithms.fedssg(gate="horizon"), algorithms.fedssg(gate="running")
    for algorithm, refused in ((fixed, True), (free, False)):
        state = federation(algorithm, rounds=3).state_dict()
        federation(algorithm, rounds=3).load_state_dict(state)
        with (
            pytest.raises(ValueError, match="rounds 3, this run has 4")
            if refused
            else nullcontext()
        ):
            federation(algorithm, rounds=4).load_state_dict(state)


def test_other_coefficients_may_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    run = federation(algorithms.fedtoga(rho=0.1), state_dir=folder)
    run.train_round()
    run.store.retain()
    other = federation(algorithms.fedtoga(rho=0.2), state_dir=folder)
    other.load_state_dict(run.state_dict())
    assert other.w.equal(run.w)
