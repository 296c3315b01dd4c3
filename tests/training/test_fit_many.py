"""Runs that train as one program have folders, curves and ends of their own, as each has alone."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from lightning_modules import ByRound, Lit, distance, owners, rows, state, trainer
from pandas import DataFrame
from problems import classifier
from torch import Tensor, nn
from torch.optim import SGD

import fl_lightning as fl
from fl_lightning.executors import StackedExecutor
from fl_lightning.runs.run import Run


def lightning() -> nn.Module:
    return ByRound(partial(SGD, lr=0.1, momentum=0.9), dropout=0.3, step=2).double()


def data() -> fl.FederatedData:
    """Ragged clients, and rows to score."""
    train, test = rows(dtype=torch.float64), rows(20, torch.float64)
    return fl.FederatedData(train, clients=owners(), test=test)


def toga(**options: float) -> dict[str, Any]:
    return {"algorithm": {"name": "fedtoga", **options}}


SWEEPS: dict[str, tuple[Any, dict[str, Any], list[dict[str, Any]]]] = {
    "seeds of a LightningModule": (lightning, {}, [{"seed": 0}, {"seed": 1, "participation": 0.5}]),
    "numbers of a method": (
        classifier,
        {"momentum": 0.9},
        [{"lr": 0.05, "rounds": 2}, toga(rho=0.3, lam=0.05), toga(beta=fl.linear(0.8, 0.1))],
    ),
    "probabilities of clients": (
        classifier,
        {"algorithm": "fedssg", "sampling": "weighted", "participation": 0.5},
        [{"seed": 0}, {"seed": 1}],
    ),
}


def untimed(run: Any) -> DataFrame:
    """The scalars but for times."""
    return run.metrics.drop(columns=[name for name in run.metrics if "time/" in name])


def assert_same(run: Any, alone: Any, module: nn.Module) -> None:
    """Assert that all scalars and weights are the same to rounding."""
    found, expected = untimed(run), untimed(alone)
    assert ([*found], len(found)) == ([*expected], len(expected))
    assert (found - expected).abs().max().max() < 1e-10
    assert distance(state(run.model(module)), state(alone.model(module))) < 1e-10


@pytest.mark.parametrize("name", SWEEPS)
def test_each_run_is_as_its_fit(name: str) -> None:
    """With ragged clients, dropout, momentum, BatchNorm and scores; one run is shorter."""
    make, common, runs = SWEEPS[name]
    common = {"algorithm": "fedtoga", "rounds": 3, "executor": "stacked", **common}
    given = {"parallel_clients": 3}
    found = trainer(**common, **given).fit_many(make(), data(), runs)
    assert len({run.path for run in found}) == len(runs)
    for run, own in zip(found, runs, strict=True):
        assert run.ended
        assert_same(run, trainer(**{**common, **given, **own}).fit(make(), data()), make())


class After:
    """Does something after a round; keeps the rounds that it has seen."""

    def __init__(self, round: int, act: Any):
        self.round, self.act, self.seen = round, act, list[int]()

    def on_round_end(self, federation: Any, metrics: Any) -> None:
        self.seen.append(federation.round)
        if federation.round == self.round:
            self.act(federation)


def end(federation: Any) -> None:
    federation.should_stop = True


def fail(federation: Any) -> None:
    raise OSError("no luck")


def test_a_run_that_ends_early_or_fails_lets_the_others_go_on() -> None:
    watch = After(0, end)
    own = [
        {"callbacks": [After(1, end), watch]},
        {"callbacks": [After(2, fail)]},
        {"seed": 1, "callbacks": [watch]},
    ]
    runs: list[dict[str, Any]] = [{**of, "run_dir": f"{i}"} for i, of in enumerate(own)]
    with pytest.raises(OSError, match="no luck") as error:
        trainer(rounds=3).fit_many(classifier(), data(), runs)
    assert any("'run_dir': '1'" in note for note in error.value.__notes__)
    ended, failed, other = (Run.read(str(i)) for i in range(3))
    assert (ended.rounds, failed.rounds, other.rounds) == (1, 1, 3)
    assert watch.seen == [1], "it is the first run's own, and the last has a copy"
    assert ended.ended
    assert not failed.ended
    alone = trainer(rounds=3, seed=1, executor="stacked").fit(classifier(), data())
    assert_same(other, alone, classifier())


def scaffold(folder: Path) -> None:
    """Two runs in folders of their own."""
    runs = [{"seed": seed, "run_dir": folder / f"{seed}"} for seed in range(2)]
    fit = trainer("scaffold", rounds=3, checkpoint_every=1, participation=0.5)
    fit.fit_many(classifier(), data(), runs, resume=True)


def attempt(folder: Path, prepare: Any = print, code: int = 0) -> None:
    """Train in a process of its own, which ends with this code."""
    process = jobs.start(folder, {}, lambda: (prepare(0), scaffold(folder)))
    assert jobs.end([process]) == [code], jobs.said(folder)


def test_killed_and_resumed_runs_equal_runs_that_were_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    attempt(whole)
    attempt(killed, jobs.at_call(3, StackedExecutor, "train"), -9)
    assert not (killed / "0" / "model.pt").exists()
    attempt(killed)
    for seed in "01":
        assert jobs.results(killed / seed) == jobs.results(whole / seed)


class Plain(fl.Term):
    """No dataclass."""

    def __init__(self, mu: float):
        self.mu = mu

    def gradient(self, oracle: Any, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + self.mu * w


def pulling(mu: float) -> fl.Algorithm:
    class Pull(fl.Term):
        def gradient(self, oracle: Any, w: Tensor, v: Any) -> Tensor:
            return oracle(w) + mu * w

    return fl.Algorithm(Pull())


@dataclass(frozen=True)
class Weighted(fl.Term):
    weights: Tensor


@dataclass(frozen=True)
class Gated(fl.Term):
    mu: float

    def gradient(self, oracle: Any, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + (self.mu * w if self.mu > 0.2 else 0)


class Scaled(SGD):
    """Keeps an option as an attribute."""

    def __init__(self, params: Any, lr: float, scale: float):
        super().__init__(params, lr=lr)
        self.scale = scale


def scaling(scale: float) -> Any:
    return fl.Algorithm(local=lambda params, lr: Scaled(params, lr, scale))


def stepping() -> Any:
    class Step(SGD):
        pass

    return fl.Algorithm(local=lambda params, lr: Step(params, lr))


@pytest.mark.parametrize(
    ("runs", "words"),
    {
        "variables of a function": (
            [{"algorithm": pulling(mu)} for mu in (0.1, 0.5)],
            ["term 1", "Pull at"],
        ),
        "long tensors": (
            [{"algorithm": fl.Algorithm(Weighted(torch.arange(2000.0) == k))} for k in (500, 600)],
            ["Weighted.weights of term 1", "digest"],
        ),
        "attributes": (
            [{"algorithm": fl.Algorithm(Plain(mu))} for mu in (0.1, 0.5)],
            ["Plain.mu of term 1", "0.1", "0.5"],
        ),
        "branches": (
            [{"algorithm": fl.Algorithm(Gated(mu))} for mu in (0.1, 0.3)],
            ["Gated.gradient cannot run"],
        ),
        "attributes of an optimizer": (
            [{"algorithm": scaling(scale), "lr": 0.1} for scale in (0.1, 0.5)],
            ["scale of the local optimizer", "0.1", "0.5"],
        ),
        "optimizers of one name": (
            [{"algorithm": stepping(), "lr": 0.1} for _ in range(2)],
            ["the local optimizer is", "Step at"],
        ),
        "steps": ([{}, {"batch_size": 4}], ["batch_size 5 and 4"]),
        "methods": ([{}, {"algorithm": "fedprox"}], ["different algorithm, algorithm.mu"]),
        "executor": ([{"executor": "sequential"}, {}], ["executor sequential"]),
        "optimizer": ([{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}], ["momentum 0.0 and 0.9"]),
        "no mapping": ({"seed": 0}, ["runs is {'seed': 0}", "[{'seed': 0}, ...]"]),
        "used up": (iter([{"seed": 0}]), ["runs is <list_iterator", "[{'seed': 0}, ...]"]),
        "folders": ([{"run_dir": "a"}, {"run_dir": "a"}], ["two runs", "run_dir"]),
    }.values(),
)
def test_runs_that_are_no_one_program(runs: Any, words: list[str]) -> None:
    with pytest.raises(fl.UserError) as error:
        trainer().fit_many(Lit(norm=False), data(), runs)
    assert all(word in str(error.value) for word in words), error.value
    assert not [*Path("runs").rglob("config.yaml")]
