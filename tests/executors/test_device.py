"""A round on PyTorch's device `meta`, whose tensors have shapes but no values.

Mixing tensors of device and CPU, or waiting for a number of the device, raises an error there. On a
GPU the first is an error and the second lets its queue run empty; on the CPU neither shows.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from adapters import adapted_federation
from every_algorithm import LORA
from executors import BRANCHES, ROWS, STACKED, on_eager_executors
from problems import EVERY_ALGORITHM, classification, classifier, convolutional, federation, hard
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from fl_lightning import Algorithm, Federation, SequentialExecutor, Term, scalar
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import init_states
from fl_lightning.core.vector import Layout
from fl_lightning.data import CropFlip
from fl_lightning.executors import Executor
from fl_lightning.federation.aggregation import COLUMNS

DEVICE = torch.device("meta")
EVEN = 24, 18, 12, 12, 18, 18
"""Samples of clients whose batches of six, and halves of these, all hold two samples."""


class Unwaiting(TorchFunctionMode):
    """Refuses copies from the CPU to the device that wait for its queue."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_meta:
            made_of_numbers = function in (torch.tensor, torch.as_tensor, Tensor.new_tensor)
            moved = function in (Tensor.to, Tensor.copy_, Tensor.cuda)
            from_cpu = moved and any(isinstance(t, Tensor) and not t.is_meta for t in args)
            if made_of_numbers or (from_cpu and not (kwargs or {}).get("non_blocking")):
                raise AssertionError(f"{function.__name__} waits for the device")
        return result


def moved(tree: Any) -> Any:
    return tree_map(lambda t: t.to(DEVICE) if isinstance(t, Tensor) else t, tree)


def to_device(run: Federation) -> Federation:
    """Move the run to the device, but for clients' rows, whose copies end in numbers."""
    run.prepare()
    data = vars(run.clients.dataset)
    labels = run.clients.dataset.labels  # once from the device, before the rounds
    data.update(moved(data), labels=labels)
    run.module.to(DEVICE)
    run.layout = Layout(run.module)
    local, server = run.local_training, run.server
    local.executor = run.new_executor(run.module, run.layout)
    run.w = server.w = nn.Parameter(moved(run.w.detach()))
    server.optimizer = run.algorithm.server([server.w])
    for name in ("initial_w", "buffers", "states"):
        setattr(server, name, moved(getattr(server, name)))
    local.rehearsal = replace(local.rehearsal, message=moved(local.rehearsal.message))
    w = server.initial_w
    begun = init_states(run.algorithm.terms, "client", w, w, run.layout, 6)
    run.store.read = lambda client, device: [*begun, {}]  # type: ignore[method-assign]
    run.store.write = lambda client, states: None  # type: ignore[method-assign]
    return run


def run_unread(run: Federation, cohort: list[int]) -> Tensor:
    """Local training, sums and the server's step, without reading values between them."""
    with Unwaiting():
        facts = run.local_training.round_facts(len(cohort))
        sums = run.local_training.run(cohort, facts, "round 1")
        (progress, _), message, *_ = sums.means()
        delta, run.server.states = run.algorithm.update(progress, message, facts, run.server.states)
        run.w.grad = -delta
        run.server.optimizer.step()
    return run.w


@pytest.fixture
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """This device has no autocast, not even to be turned off."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


class Calibrated(Term):
    """Reads the labels that a client holds, and losses."""

    local = {"F": scalar}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        v.F = v.F + oracle.loss(w)
        return oracle.of(
            lambda b: cross_entropy(b.out + v.labels.log1p(), b.y) * b.at(v.anchor).loss
        )(w)

    def report(self, w: Tensor, v: Any) -> Any:
        return v.F, v.labels


ALGORITHMS = EVERY_ALGORITHM | {"labels and losses": Algorithm(Calibrated())}
ONE_BY_ONE = "fedavg", "fedtoga", "fedsol", "moon", "fedrcl", "perfedavg", "labels and losses"
"""With all kinds of passes; the hooks of others see here what they see in the other executor."""


@pytest.mark.usefixtures("no_autocast")
@pytest.mark.parametrize(
    ("name", "executor"),
    [*product(ALGORITHMS, [STACKED]), *product(ONE_BY_ONE, [SequentialExecutor])],
)
def test_nothing_waits_for_the_device_in_a_round_of(
    name: str, executor: Callable[..., Executor]
) -> None:
    clients = classification(EVEN, batch_size=6, steps=1)  # all steps call the same
    run = to_device(federation(hard(ALGORITHMS[name]), executor=executor, clients=clients))
    assert run_unread(run, [0, 1]).is_meta


@pytest.mark.parametrize(
    "options", [{}, {"deterministic": True}, {"on_divergence": "skip-client"}], ids=str
)
@on_eager_executors
def test_nor_where_images_are_augmented_and_clients_are_ragged(
    executor: Any, options: dict[str, Any]
) -> None:
    augment = CropFlip(padding=1, cutout=2)
    clients = classification(dtype=torch.float32, shape=(2, 4, 6), augment=augment)
    given = {"module": convolutional(2, torch.float32), "clients": clients, **options}
    run = to_device(federation(EVERY_ALGORITHM["scaffold"], executor=executor, **given))
    assert run_unread(run, [0, 1, 2, 4, 5]).is_meta


@pytest.mark.usefixtures("no_autocast")
@pytest.mark.parametrize("name", ["fedit", "rolora", "fedsa_lora", "hetlora"])
@on_eager_executors
def test_nor_for_adapters(executor: Any, name: str) -> None:
    clients = classification(EVEN, batch_size=6, steps=2)
    run = to_device(adapted_federation(hard(LORA[name]), executor=executor, clients=clients))
    assert run_unread(run, [0, 1]).is_meta


@pytest.mark.usefixtures("no_autocast")
@pytest.mark.parametrize("name", ["fedtoga", "labels and losses"])
@pytest.mark.parametrize("executor", [BRANCHES, ROWS], ids=["branches", "rows"])
def test_nor_around_graphs(name: str, executor: Any) -> None:
    """What waits in their steps, `tests/executors/test_graphs.py` finds."""
    clients = classification(EVEN, batch_size=6, steps=2)
    run = to_device(federation(hard(ALGORITHMS[name]), executor=executor, clients=clients))
    assert run_unread(run, [0, 1, 2, 4]).is_meta
    assert run.local_training.executor.manner  # not one after another


@on_eager_executors
@pytest.mark.parametrize(
    ("options", "reads"),
    [({}, 1), ({"deterministic": True}, 1), ({"on_divergence": "skip-client"}, 2)],
)
@pytest.mark.usefixtures("no_autocast")
def test_a_round_waits_for_the_device_once(
    executor: Any, options: dict[str, Any], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice where clients are skipped: the server's step takes how many are left."""
    clients = classification(EVEN, batch_size=6, steps=2)
    algorithm = hard(EVERY_ALGORITHM["fedtoga"])
    run = to_device(federation(algorithm, executor=executor, clients=clients, **options))
    run.sampler = lambda *_: [0, 1, 2, 4]
    monkeypatch.setattr(run, "all_reduce_sum", lambda sums: None)  # Fabric's device is the CPU
    tables = list[Tensor]()

    def of_finite_clients(table: Tensor) -> list[float]:
        tables.append(table)
        row = [float(name != "diverged") for name in COLUMNS]
        return [*row * 4, 0.0, 0.0, *[1.0] * (len(table) - 4 * len(row) - 2)]

    plain = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda t: of_finite_clients(t) if t.is_meta else plain(t))
    with Unwaiting():
        assert run.train_round()["train/loss"] == 1
    assert len(tables) == reads


@on_eager_executors
def test_the_keys_of_dropout_lie_where_the_model_lies(executor: Callable[..., Executor]) -> None:
    module = classifier().to(DEVICE)
    executor(module, Layout(module))
    assert {name for name, b in module.named_buffers() if not b.is_meta} == set()
    assert module(torch.zeros(5, 6, dtype=torch.float64, device=DEVICE)).is_meta


def test_waiting_is_noticed() -> None:
    there = torch.zeros(3, device=DEVICE)
    for waits in (
        lambda: torch.tensor([1.0], device=DEVICE),
        lambda: torch.zeros(3).to(DEVICE),
        lambda: there.copy_(torch.zeros(3)),
        lambda: there.new_tensor(1.0),
    ):
        with pytest.raises(AssertionError, match="waits"), Unwaiting():
            waits()
    for reads in (there.sum().item, there.tolist, lambda: bool(there[0] > 0), lambda: there.cpu()):
        with pytest.raises((RuntimeError, NotImplementedError)):
            reads()
