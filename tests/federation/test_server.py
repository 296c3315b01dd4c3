"""The server alone, and the state of a federation: saved, loaded, and refused."""

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
    EXECUTORS,
    STACKED,
    classification,
    classifier,
    close,
    distances,
    everything,
    federation,
    hard,
    line,
    trained,
    vec,
)
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import Algorithm, Term, algorithms
from fl_lightning.core.vector import Layout
from fl_lightning.federation.server import Server
from fl_lightning.terms import LESAM, SAM, ControlVariate

# ------------------------------------------------------------------- a server without a Fabric


def new_server(*terms: Term, module: nn.Module | None = None, **options: Any) -> Server:
    """Of a linear model with two weights, both 0, if no module is given."""
    module = module or line()
    algorithm = Algorithm(*terms, server=partial(SGD, lr=2.0, momentum=0.5))
    return Server(module, Layout(module), algorithm, **options)


def half_frozen(outer: int = 3) -> nn.Module:
    """The classifier with a new last layer that is not trained."""
    module = classifier()
    module.outer = nn.Linear(8, outer).double().requires_grad_(False)
    return module


def steps(server: Server, count: int) -> list[Tensor]:
    """The moves of so many rounds with the mean update (1, -1) and the mean message (4, 0)."""
    moves = []
    for _ in range(count):
        facts = {"anchor": server.w.detach().clone(), "share": 0.5}
        messages = [vec(4.0, 0.0)] * len(server.algorithm.terms)
        move, flags = server.step(vec(1.0, -1.0), messages, facts)
        assert all(flags)
        moves.append(move)
        server.round += 1
    return moves


def test_a_step_moves_the_model_and_updates_the_states() -> None:
    """M <- 0.5 m + delta, w <- w + 2 m; SCAFFOLD's c <- c + share * mean."""
    server = new_server(ControlVariate())
    first, second = steps(server, 2)
    close(first, 2.0, -2.0)
    close(second, 3.0, -3.0)
    close(server.w.detach(), 5.0, -5.0)
    close(server.initial_w, 0.0, 0.0)
    close(server.states[0]["c"], 4.0, 0.0)


def test_a_step_flags_an_update_and_a_state_that_are_not_finite() -> None:
    for delta, message, expected in [
        (torch.nan, 0.0, [False, True]),
        (1.0, torch.inf, [True, False]),
    ]:
        server = new_server(ControlVariate())
        facts = {"anchor": server.w.detach().clone(), "share": 0.5}
        _, flags = server.step(vec(delta, 0.0), [vec(message, 0.0)], facts)
        assert [bool(flag) for flag in flags] == expected


def test_a_server_continues_from_its_state_dict() -> None:
    whole, first = new_server(ControlVariate()), new_server(ControlVariate())
    moves = steps(whole, 4)
    steps(first, 2)
    second = new_server(ControlVariate(), module=nn.Linear(2, 1, bias=False).double())
    second.load_state_dict(deepcopy(first.state_dict()))
    assert (second.round, second.initial_w.tolist()) == (2, [0.0, 0.0])
    assert all(mine.equal(move) for mine, move in zip(steps(second, 2), moves[2:], strict=True))
    assert second.states[0]["c"].equal(whole.states[0]["c"])


OTHERS = {
    "LESAM": {"terms": [LESAM()]},
    r"and \[\]": {"terms": []},
    "ControlVariate": {"terms": [ControlVariate()]},
    "this run has 3": {"terms": [SAM()], "module": nn.Linear(3, 1, bias=False)},
}


@pytest.mark.parametrize("message", OTHERS)
def test_the_state_of_another_algorithm_or_model_is_refused(message: str) -> None:
    state, other = new_server(SAM()).state_dict(), OTHERS[message]
    with pytest.raises(ValueError, match=rf"2 parameters .*\['SAM\(\)'\].*{message}"):
        new_server(*other["terms"], module=other.get("module")).load_state_dict(state)


def test_the_state_of_another_frozen_part_is_refused() -> None:
    state = new_server(module=half_frozen()).state_dict()
    with pytest.raises(ValueError, match=r"outer.bias .*shape"):
        new_server(module=half_frozen(4)).load_state_dict(state)


class Noisy(Term):
    """Draws at the server."""

    def update(self, delta: Tensor, message: Any, v: Any) -> Tensor:
        return delta + torch.randn_like(delta)


def test_what_the_server_draws_depends_on_seed_and_round_alone() -> None:
    """And not on the process, so that all ranks draw the same."""

    def drawn(process: int, seed: int) -> list[Tensor]:
        torch.manual_seed(process)
        return steps(new_server(Noisy(), seed=seed), 2)

    once, again, other = drawn(1, 0), drawn(2, 0), drawn(1, 1)
    assert all(mine.equal(theirs) for mine, theirs in zip(once, again, strict=True))
    assert not any(torch.allclose(once[0], draw, rtol=1e-3) for draw in (once[1], *other))


def test_a_server_loads_weights_and_averaged_buffers_into_a_module() -> None:
    module = classifier()
    server = new_server(module=module, skip_buffers=["norm.num_batches_tracked"])
    assert set(server.buffers) == {"norm.running_mean", "norm.running_var"}
    server.buffers["norm.running_mean"] += 1
    with torch.no_grad():
        server.w += 1
        module.get_parameter("inner.weight").zero_()
    loaded = server.load_into(module)
    assert loaded is module
    assert not module.training
    assert Layout(module).read(module).equal(server.w.detach())
    assert module.get_buffer("norm.running_mean").equal(server.buffers["norm.running_mean"])


# ------------------------------------------------------------------- a federation that continues

STATEFUL = ["scaffold", "fedlesam_d", "fedadam", "fedtoga, fusion carried", "fedlesam, last round"]


def client_3_comes_late(num_clients: int, seed: int, round: int) -> list[int]:
    """After the save, when its states begin at w^0."""
    return [[0, 1, 2, 4, 5], [0, 2], [0, 3, 4], [1, 3]][round]


def other_start() -> nn.Module:
    """Another w^0; the checkpoint's own counts."""
    module = classifier()
    nn.init.zeros_(module.get_parameter("outer.weight"))
    return module


@EXECUTORS
@pytest.mark.parametrize("name", STATEFUL)
def test_a_resumed_run_equals_one_that_never_stopped(
    name: str, executor: Any, tmp_path: Path
) -> None:
    """Bit by bit, though two rounds were run and abandoned between the save and the restart."""
    algorithm = hard(EVERY_ALGORITHM[name])
    algorithm.server = partial(SGD, lr=0.7, momentum=0.3)
    options = {"rounds": 4, "executor": executor, "sampler": client_3_comes_late}
    never = trained(algorithm, **options)
    first = federation(algorithm, state_dir=tmp_path / "states", **options)
    for _ in range(2):
        first.train_round()
    first.store.retain()
    torch.save(first.state_dict(), tmp_path / "last.ckpt")
    for _ in range(2):
        first.train_round()
    again = federation(algorithm, module=other_start(), state_dir=tmp_path / "states", **options)
    again.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True))
    assert again.round == 2
    again.fit()
    assert again.round == 4
    assert not any(distances(again, never).values())


def test_a_run_may_continue_with_the_other_executor(tmp_path: Path) -> None:
    algorithm = hard(algorithms.scaffold())
    first = federation(algorithm, state_dir=tmp_path)
    first.train_round()
    first.store.retain()
    again = federation(algorithm, state_dir=tmp_path, executor=STACKED)
    again.load_state_dict(deepcopy(first.state_dict()))
    for run in (first, again):
        run.fit()
    assert max(distances(again, first).values()) < 1e-10


def test_a_federation_returns_to_any_state_that_it_retained() -> None:
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


def test_a_state_dict_needs_retained_rows() -> None:
    run = federation(algorithms.scaffold())
    assert run.state_dict()["round"] == 0  # no client has a state yet
    for _ in range(2):
        run.train_round()
        with pytest.raises(ValueError, match=r"federation\.store\.retain\(\)"):
            run.state_dict()
        run.store.retain()
        assert run.state_dict()


def test_a_state_whose_rows_were_released_is_refused() -> None:
    run = federation(algorithms.scaffold(), sampler=lambda *_: [0, 1, 2, 3, 4, 5])
    states = []
    for _ in range(3):
        run.train_round()
        run.store.retain()  # in place of the one before
        states.append(deepcopy(run.state_dict()))
    before = everything(run)
    assert states[0]["slot"].equal(states[2]["slot"])  # which now hold other rows
    for state in states[:2]:
        with pytest.raises(ValueError, match=r"written over .*store\.retain\(name\)"):
            run.load_state_dict(state)
    assert run.round == 3
    assert all(everything(run)[name].equal(value) for name, value in before.items())


@EXECUTORS
def test_frozen_parameters_are_restored(executor: Any) -> None:
    """Whether the algorithm or the user froze them; also into a federation that has trained."""
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
        expected, found = (each.load_global().state_dict() for each in (run, again))
        assert all(value.equal(expected[name]) for name, value in found.items())


# ------------------------------------------------------------------- a federation's refusals


def test_a_state_of_another_run_or_version_is_refused() -> None:
    float32 = {
        "module": classifier(dtype=torch.float32),
        "clients": classification(dtype=torch.float32),
    }
    rounded = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    relabeled = classification(dtype=torch.float32)
    relabeled.dataset.y[:] = (relabeled.dataset.y + 1) % 3
    state = federation(Algorithm(), **float32).state_dict()
    for changes, message in [
        (
            {"module": classifier(norm=False, dtype=torch.float32)},
            "99 parameters.* this run has 83",
        ),
        ({"clients": classification([5, 5, 5], torch.float32)}, "num_clients 6, this run 3"),
        ({"clients": relabeled}, "data .* resume with equal data"),
        ({"fabric": rounded}, "precision 32-true, this run bf16-mixed"),
    ]:
        with pytest.raises(ValueError, match=message):
            federation(Algorithm(), **{**float32, **changes}).load_state_dict(state)
    del state["frozen"]
    with pytest.raises(ValueError, match=r"another version.*\['frozen'\]"):
        federation(Algorithm(), **float32).load_state_dict(state)


def test_a_finished_run_continues_with_more_rounds() -> None:
    run = trained(Algorithm())
    state = deepcopy(run.state_dict())
    for rounds in (3, 4):
        again = federation(Algorithm(), rounds=rounds)
        again.load_state_dict(state)
        again.fit()
        assert again.round == rounds
        assert again.w.equal(run.w) == (rounds == 3)
    with pytest.raises(ValueError, match="round 3, this run ends with 2"):
        federation(Algorithm(), rounds=2).load_state_dict(state)


def test_a_method_with_a_horizon_keeps_its_number_of_rounds() -> None:
    """FedSSG's gate counts visits over those of the whole run, or over those expected so far."""
    fixed, free = algorithms.fedssg(gate="horizon"), algorithms.fedssg(gate="running")
    for algorithm, refused in ((fixed, True), (free, False)):
        state = federation(algorithm, rounds=3).state_dict()
        federation(algorithm, rounds=3).load_state_dict(state)
        message = re.escape("rounds 3, this run 4")
        with pytest.raises(ValueError, match=message) if refused else nullcontext():
            federation(algorithm, rounds=4).load_state_dict(state)


def test_other_coefficients_may_continue_from_a_checkpoint(tmp_path: Path) -> None:
    run = federation(algorithms.fedtoga(rho=0.1), state_dir=tmp_path / "rows")
    run.train_round()
    run.store.retain()
    other = federation(algorithms.fedtoga(rho=0.2), state_dir=tmp_path / "rows")
    other.load_state_dict(run.state_dict())
    assert other.w.equal(run.w)
