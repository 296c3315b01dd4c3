"""Every option of every algorithm and addition changes what is trained, or how a client reads it."""

from functools import cache
from itertools import combinations
from typing import Any

import pytest
from every_option import MAKERS, OPTIONS, WITH, values
from problems import classification, classifier, federation, hard, round_after_round
from torch import Tensor

from fl_lightning import Algorithm, algorithms
from fl_lightning.core.prediction import from_logits
from fl_lightning.federation.fine_tuning import FineTuning

CLIENTS = classification((11, 5, 7), epochs=2)
COHORTS = [0], [0, 1], [0, 2]
"""Client 0 always, the others late and not for long."""


@cache
def trained(name: str, chosen: tuple[tuple[str, Any], ...]) -> Tensor:
    """What comes of it: the model after three rounds, and what clients say that read it in a way of their own."""
    made = MAKERS[name](**dict(chosen))
    base = algorithms.fedsam(rho=0.1) if name.startswith("--ascent") else algorithms.fedavg()
    algorithm = made if isinstance(made, Algorithm) else made.to(base)
    run = federation(
        hard(algorithm),
        clients=CLIENTS,
        module=classifier(norm=False),
        participation=lambda num_clients, seed, round: COHORTS[round],
    )
    round_after_round(run, 3)
    if algorithm.predict is from_logits:
        return run.w.detach()
    own = FineTuning(run).personal_model(0, run.w.detach(), run.buffers)
    return algorithm.predict(own)(CLIENTS.dataset.x).flatten()


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=map(" ".join, OPTIONS))
def test_it_counts(name: str, option: str) -> None:
    others = WITH.get(f"{name} {option}", {})
    results = [
        trained(name, tuple({**others, option: value}.items())) for value in values(name, option)
    ]
    for one, other in combinations(results, 2):
        assert (one - other).abs().max() > 1e-6
