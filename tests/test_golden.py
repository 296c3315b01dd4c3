"""Every recorded trajectory of the authors' code, replayed to 1e-9 in float64.

The sequential executor replays all, the others a few: `executors/test_agree.py` shows that they
compute what it computes. A traced program runs as it is here, without the compiler.

`pytest tests/test_golden.py --golden DIR` replays a folder in all executors, e.g. tests/golden;
there, a file that cannot be set up fails by name.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
import torch
from golden_families import set_up
from golden_setup import Setup, UnknownAlgorithmError
from lightning.fabric import Fabric
from torch import nn

from fl_lightning import (
    ClientData,
    DeviceDataset,
    Federation,
    Partition,
    SequentialExecutor,
    StackedExecutor,
)

TOLERANCE = 1e-9
LOOSER = {"fedsol-fedsol-fixed-asis": 1e-6}
"""Rounding noise, blown up to full length at every first step: see README.md of the recordings."""

IN_EVERY_EXECUTOR = {
    "disco-feddisco-ragged-asis",
    "fedsol-fednova-ragged-paper",
    "fedssg-fedssg-asis",
    "fedtoga-B-nperturb-zero",
    "flsim-scaffold-ragged-paper",
    "wmsam-fedwmsam-ragged-vec-ki",
}
"""Of ragged clients, or of methods that start elsewhere, weigh updates, or keep much."""

HERE = Path(__file__).parent / "golden"
EXECUTORS: dict[str, dict[str, Any]] = {
    "sequential": {},
    "stacked": {"width": 3},  # which splits each cohort of four
    "traced": {"width": 1, "compiled": True},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_file" in metafunc.fixturenames:
        given = metafunc.config.getoption("--golden")
        folder = Path(given or HERE)
        files = sorted(f for f in folder.glob("*.npz") if f.name != "problem.npz") or [folder]
        replays = [
            pytest.param(file, executor, id=f"{executor}-{file.stem}")
            for file in files
            for executor in (
                EXECUTORS if given or file.stem in IN_EVERY_EXECUTOR else ["sequential"]
            )
        ]
        metafunc.parametrize(("golden_file", "executor"), replays)


def model(problem: np.lib.npyio.NpzFile) -> nn.Module:
    meta = json.loads(str(problem["meta"]))
    d, h, c = (meta[name] for name in ("input_dim", "hidden", "classes"))
    layers = {"fc1": nn.Linear(d, h), "t1": nn.Tanh(), "fc2": nn.Linear(h, h), "t2": nn.Tanh()}
    net = nn.Sequential(OrderedDict(layers, classifier=nn.Linear(h, c))).double()
    nn.utils.vector_to_parameters(torch.from_numpy(problem["theta0"]), net.parameters())
    return net


@dataclass(eq=False)
class ShortVisits(ClientData):
    """Clients that take at most `most` steps in a visit."""

    most: int | None = None

    def num_steps(self, client: int) -> int:
        made = super().num_steps(client)
        return made if self.most is None else min(made, self.most)


def federation(
    fabric: Fabric, setup: Setup, problem: np.lib.npyio.NpzFile, data: str, executor: str
) -> Federation:
    x, y = torch.from_numpy(problem[f"{data}_x"]), torch.from_numpy(problem[f"{data}_y"])
    sizes, classes = problem[f"{data}_sizes"], problem[f"{data}_class_counts"].shape[1]
    owners = torch.arange(len(sizes)).repeat_interleave(torch.from_numpy(sizes))
    clients = ShortVisits(
        DeviceDataset(x, y, classes=tuple(map(str, range(classes)))),
        Partition.from_owners(owners, len(sizes)),
        batch_size=setup.batch_size,
        epochs=setup.epochs,
        steps=setup.steps,
        most=setup.most,
        shuffle=False,
    )
    lr = setup.algorithm.local([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    options = dict(EXECUTORS[executor])
    if "compiled" in options:
        options["compiled"] = setup.batch_size
    return Federation(
        fabric,
        model(problem),
        setup.algorithm.replace(lr=lambda t, rounds: lr * setup.schedule(t, rounds)),
        clients,
        rounds=setup.rounds or len(problem["cohorts"]),
        sampler=lambda num_clients, seed, round: problem["cohorts"][round].tolist(),
        executor=partial(StackedExecutor, **options) if options else SequentialExecutor,
    )


def test_replays_the_authors_trajectory(
    golden_file: Path,
    executor: str,
    fabric: Fabric,
    request: pytest.FixtureRequest,
    traces: list[Any],
) -> None:
    assert golden_file.is_file(), f"{golden_file} holds no trajectory"
    try:
        setup, data = set_up(golden_file)
    except UnknownAlgorithmError as missing:
        if request.config.getoption("--golden"):
            pytest.fail(f"{golden_file.name} cannot be set up: {missing}")
        pytest.skip(f"no such algorithm yet: {golden_file.name}")
    recorded, problem = np.load(golden_file), np.load(golden_file.parent / "problem.npz")
    run = federation(fabric, setup, problem, data, executor)
    errors, paths = [], {name: [] for name in setup.paths}
    for theta in recorded["theta"][1:]:
        run.train_round()
        errors.append(float(np.abs(run.w.detach().numpy() - theta).max()))
        for name, state in setup.paths.items():
            paths[name].append(state(run).numpy())
    assert bool(traces) == (executor == "traced")
    tolerance = LOOSER.get(golden_file.stem, TOLERANCE)
    assert max(errors) <= tolerance, f"largest error of each round: {errors}"
    kept = setup.states.keys() & set(recorded.files)
    states = {name: setup.states[name](run).numpy() for name in kept}
    states |= {name: np.stack(path) for name, path in paths.items()}
    for name, state in states.items():
        assert state.shape == recorded[name].shape
        error = float(np.abs(state - recorded[name]).max())
        assert error <= tolerance, f"state {name} is off by {error}"


def recorded_on_unequal_clients(name: str, folder: Path, **values: Any) -> Path:
    """The options of a recording, and others, as of one on the other clients."""
    recorded = json.loads(str(np.load(HERE / f"{name}.npz")["hparams"]))
    recorded |= {"dataset": "ragged", "values": recorded["values"] | values}
    family, method, *variant = name.split("-")
    path = folder / f"{'-'.join([family, method, 'ragged', *variant])}.npz"
    np.savez(path, hparams=json.dumps(recorded))
    copy(HERE / "problem.npz", folder)
    return path


def test_no_visit_is_longer_than_the_recorded_K(tmp_path: Path, fabric: Fabric) -> None:
    path = recorded_on_unequal_clients("adamw-fedadamw-llm", tmp_path, K=3, batch_size=6)
    setup, data = set_up(path)
    run = federation(fabric, setup, np.load(HERE / "problem.npz"), data, "sequential")
    assert [run.clients.num_steps(i) for i in range(10)] == [2] + 9 * [3]
    assert setup.batch_size == 6
    assert setup.algorithm.terms[0].count == 3  # which is what a round adds in this script


def test_the_first_clients_K_is_everyones_in_a_momentum(tmp_path: Path, fabric: Fabric) -> None:
    setup, data = set_up(recorded_on_unequal_clients("lesam-fedcm", tmp_path, batchsize=4))
    run = federation(fabric, setup, np.load(HERE / "problem.npz"), data, "sequential")
    run.train_round()
    momentum, K = run.server.states[0]["m"], 2 * 5 / 4
    torch.testing.assert_close(momentum, (run.server.initial_w - run.w.detach()) / (K * 0.1))
