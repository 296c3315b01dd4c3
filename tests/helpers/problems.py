"""A small classification problem that tests share, and what they ask of a federation."""

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from every_algorithm import EVERY_ALGORITHM as EVERY_ALGORITHM
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import (
    Algorithm,
    ClientData,
    DeviceDataset,
    Federation,
    Partition,
    SequentialExecutor,
    StackedExecutor,
    Term,
    zeros,
)
from fl_lightning.core.algorithm import steady
from fl_lightning.core.curves import exponential
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import init_states
from fl_lightning.terms import Clip

STACKED = partial(StackedExecutor, width=3)
EXECUTORS = pytest.mark.parametrize(
    "executor", [SequentialExecutor, STACKED], ids=["sequential", "stacked"]
)
"""Runs a test with each executor."""

SIZES = (13, 7, 12, 9, 4, 10)
"""Samples of six clients; in batches of 5 every last batch but one is short."""

COHORTS = ([0, 1, 2, 4, 5], [2, 3], [0, 1, 3, 4])
"""Cohorts of three rounds, of different sizes; client 3 comes late."""


def cohorts(num_clients: int, seed: int, round: int) -> list[int]:
    return COHORTS[round % len(COHORTS)]


def classifier(
    norm: bool = True, dropout: float = 0.25, dtype: torch.dtype = torch.float64
) -> nn.Module:
    torch.manual_seed(1)
    layers = [
        ("inner", nn.Linear(6, 8)),
        ("norm", nn.BatchNorm1d(8) if norm else nn.Identity()),
        ("tanh", nn.Tanh()),
        ("drop", nn.Dropout(dropout)),
        ("outer", nn.Linear(8, 3)),
    ]
    return nn.Sequential(OrderedDict(layers)).to(dtype)


def convolutional(channels: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    layers = [
        ("inner", nn.Conv2d(channels, 5, 3, padding=1)),
        ("norm", nn.BatchNorm2d(5)),
        ("relu", nn.ReLU()),
        ("pool", nn.MaxPool2d(2)),
        ("flat", nn.Flatten()),
        ("drop", nn.Dropout(0.25)),
        ("outer", nn.Linear(5 * 2 * 3, 3)),
    ]
    return nn.Sequential(OrderedDict(layers)).to(dtype)


def classification(
    sizes: Sequence[int] = SIZES,
    dtype: torch.dtype = torch.float64,
    shape: tuple[int, ...] = (6,),
    **options: Any,
) -> ClientData:
    g = torch.Generator().manual_seed(2)
    y = torch.randint(3, (sum(sizes),), generator=g)
    x = torch.randn(len(y), *shape, generator=g, dtype=torch.float64)
    x += y.view(-1, *(1 for _ in shape))
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    dataset = DeviceDataset(x.to(dtype), y, classes=("a", "b", "c"))
    given = {"batch_size": 5, "epochs": 1, **options}
    return ClientData(dataset, Partition.from_owners(owners, len(sizes)), **given)


def hard(algorithm: Algorithm) -> Algorithm:
    """The algorithm with weight decay, momentum, and clipping that acts."""
    local = partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
    return algorithm.with_outer_terms(Clip(0.5), local=local)


def decaying(algorithm: Algorithm) -> Algorithm:
    """The algorithm at 0.9^round of its learning rate, and 0.7 of that in the second half of steps.

    One that has learning rates of its own keeps them.
    """
    if algorithm.lr or algorithm.rate is not steady:
        return algorithm
    lr = algorithm.local([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    return algorithm.replace(lr=exponential(lr, 0.9), rate=lambda k, K: 0.7 ** (2 * k // K))


@cache
def cpu(precision: Any = None) -> Fabric:
    """One Fabric of a precision for all, since it takes a while to make."""
    return Fabric(accelerator="cpu", devices=1, precision=precision)


def federation(algorithm: Algorithm, *, fabric: Fabric | None = None, **options: Any) -> Federation:
    """A federation of the six clients, whose learning rate falls unless `decays` is false."""
    module = options.pop("module", None) or classifier()
    clients = options.pop("clients", None) or classification()
    algorithm = decaying(algorithm) if options.pop("decays", True) else algorithm
    given = {"rounds": 3, "sampler": cohorts, **options}
    return Federation(fabric or cpu(), module, algorithm, clients, **given)


def on_two_ranks(run: Callable[[Fabric], Any]) -> tuple[Any, Any]:
    """What the function returns on each of two ranks."""

    def both(fabric: Fabric) -> Any:
        mine = run(fabric)
        return mine, fabric.broadcast(mine, src=1)

    return Fabric(accelerator="cpu", devices=2, strategy="ddp_fork").launch(both)


def trained(algorithm: Algorithm, **options: Any) -> Federation:
    run = federation(algorithm, **options)
    return round_after_round(run, run.rounds)


def rows(run: Federation, name: str) -> Tensor:
    """The client state `name` of every client; its initial value for those never visited."""
    term = next(i for i, t in enumerate(run.algorithm.terms) if name in t.client)
    w, terms = run.server.initial_w, run.algorithm.terms
    begun = init_states(terms, "client", w, w, run.layout, len(run.store.slot))[term][name]
    store, device = run.store, run.w.device
    return torch.stack(
        [
            store.read(i, device)[term][name] if store.has(i) else begun
            for i in range(run.clients.num_clients)
        ]
    )


def server(run: Federation, name: str) -> Tensor:
    return next(states[name] for states in run.server.states if name in states)


def everything(run: Federation) -> dict[str, Tensor]:
    """The global model, its buffers, all states of the server and of the clients."""
    kept = {"model": run.w.detach(), **run.server.buffers, "visited": run.store.slot >= 0}
    for i, states in enumerate(run.server.states):
        kept |= {f"server {name} {i}": state for name, state in states.items()}
    for term in run.algorithm.terms:
        kept |= {f"clients' {name}": rows(run, name) for name in term.client}
    return kept


def distances(run: Federation, other: Federation) -> dict[str, float]:
    """The largest differences between two runs, by the names of `everything`."""
    mine, theirs = everything(run), everything(other)
    assert mine.keys() == theirs.keys()
    return {name: float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine}


_KNOWN: dict[str, tuple[Algorithm, Tensor]] = {}
"""Models by algorithm; with the algorithm, so that no address in a key is used again."""


def known_model(algorithm: Algorithm) -> Tensor:
    """What `assert_same_unless` compares with: many identities lead to the same few methods."""
    key = str(vars(algorithm))
    if key not in _KNOWN:
        _KNOWN[key] = algorithm, hard_model(algorithm)
    return _KNOWN[key][1]


def hard_model(algorithm: Algorithm, **options: Any) -> Tensor:
    """The model of the algorithm made `hard`, after three rounds of few clients."""
    rounds = [0, 3], [2], [0, 2]
    given = {
        "clients": classification((13, 7, 9, 4)),
        "sampler": lambda num_clients, seed, round: rounds[round],
        **options,
    }
    return trained(hard(algorithm), **given).w.detach()


def assert_same_unless(
    general: Algorithm,
    special: Algorithm,
    different: Algorithm,
    *,
    tolerance: float = 1e-12,
    **options: Any,
) -> None:
    """Assert that two algorithms train the same model, and that a third trains another."""
    known = partial(hard_model, **options) if options else known_model
    w, expected, other = hard_model(general, **options), known(special), known(different)
    torch.testing.assert_close(w, expected, rtol=0, atol=tolerance)
    assert (other - expected).abs().max() > 1e-6


def assert_client_0_counts_as_absent(algorithm: Algorithm, **options: Any) -> None:
    """Assert that the model is the same where it is skipped, as it sends no numbers."""
    broken = term(send=lambda self, delta, v: torch.where(v.client == 0, torch.nan, delta))
    without = [[client for client in cohort if client] for cohort in COHORTS]
    skipping = trained(algorithm.with_outer_terms(broken), on_divergence="skip-client", **options)
    alone = trained(algorithm, sampler=lambda *given: without[given[-1]], **options)
    torch.testing.assert_close(skipping.w, alone.w, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Recorder(Term):
    """Logs every gradient, and the point where it was taken."""

    log: list[tuple[Tensor, Tensor]]

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        g = oracle(w)
        self.log.append((w.clone(), g.clone()))
        return g


@dataclass(frozen=True)
class Left(Term):
    """Keeps the models at the end and the beginning of a client's last visit."""

    client = {"u": zeros, "began": zeros}

    def report(self, w: Tensor, v: Any) -> Any:
        v.u, v.began = w, v.origin
        return ()


def term(name: str = "Mine", **attributes: Any) -> Term:
    """A term of these hooks and declarations of states."""
    made: Term = type(name, (Term,), attributes)()
    return made


def adding(loss: Callable[[Any, Any], Any], *layers: str, **states: Any) -> Term:
    """A term that asks for the gradient of `loss(pass, view)`."""

    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: loss(b, v), *layers)(w)

    return term("Asking", gradient=gradient, **states)


def round_after_round(run: Federation, rounds: int = 4) -> Federation:
    """The federation after so many more rounds."""
    for _ in range(rounds):
        run.train_round()
    return run


def vec(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def close(actual: Tensor, *expected: float, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, vec(*expected), rtol=0, atol=tolerance)


def without_addresses(value: object) -> str:
    """`str(value)` with functions by name: equal in every process, as ids of tests must be."""
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(value))
