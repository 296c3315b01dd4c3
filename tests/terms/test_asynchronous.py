"""Clients of an asynchronous server, whose moves come late."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from least_squares import OPTIONS, lines
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning import Federation
from fl_lightning.terms import Stale

REGRESSION = lines()


class Staleness:
    """Notes the staleness of each client, and the model after each round."""

    def __init__(self) -> None:
        self.drawn, self.models = list[list[float]](), list[Tensor]()

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        self.models.append(federation.w.detach().clone())
        self.drawn.append(federation.server.states[0]["stalenesses"].tolist())

    def on_fit_end(self, federation: Federation) -> None:
        self.models.append(federation.w.detach().clone())


def visit(client: int, start: Tensor, rho: float) -> Tensor:
    own = REGRESSION.owners == client
    x, y, w = REGRESSION.x[own], REGRESSION.y[own], start
    for _ in range(3):
        w = w - 0.1 * (2 * x.T @ (x @ w - y) / len(y) + rho * (w - start))
    return w


@pytest.mark.parametrize("method", ["fedbuff", "fedasync"])
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_rounds_are_those_of_the_equations(method: str, executor: str) -> None:
    seen, module = Staleness(), nn.Linear(2, 1, bias=False).double()
    given: dict[str, Any] = {"name": method, "max_staleness": 3, "decay": 0.7}
    options = {**OPTIONS, "rounds": 6, "callbacks": [seen], "executor": executor}
    if executor == "sequential":
        del options["parallel_clients"]
    data = fl.FederatedData((REGRESSION.x, REGRESSION.y), clients=REGRESSION.owners)
    fl.FederatedTrainer(given, **options).fit(module, data)
    mixes = method == "fedasync"
    for t, drawn in enumerate(seen.drawn):
        now, moves = seen.models[t], []
        for client, staleness in enumerate(map(round, drawn)):
            start = seen.models[max(t - staleness, 0)]
            late = visit(client, start, 0.005 if mixes else 0.0)
            moves.append((1 + staleness) ** -0.7 * (late - (now if mixes else start)))
        expected = now + (0.6 if mixes else 1.0) * torch.stack(moves).mean(0)
        torch.testing.assert_close(seen.models[t + 1], expected, rtol=0, atol=1e-12)
    later = torch.tensor(seen.drawn[1:])
    assert not any(seen.drawn[0])
    assert later.unique().tolist() == [0, 1, 2, 3]


def test_any_method_can_have_late_clients() -> None:
    trainer = fl.FederatedTrainer({"name": "scaffold", "client_start": "stale"})
    assert any(isinstance(term, Stale) for term in trainer.algorithm.terms)
    with pytest.raises(fl.UserError, match="says where clients start"):
        fl.FederatedTrainer({"name": "fedacg", "client_start": "stale"})
