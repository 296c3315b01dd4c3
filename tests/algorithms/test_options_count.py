"""Every option of every algorithm and modifier changes the training or a client's prediction."""

from functools import cache
from inspect import signature
from itertools import combinations
from typing import Any

import pytest
import torch
from every_option import MAKERS, NEEDS_A_PAST, OPTIONS, WITH, values
from problems import classification, classifier, federation, hard, round_after_round
from torch import Tensor

from fl_lightning import Algorithm, algorithms
from fl_lightning.core.prediction import from_logits
from fl_lightning.federation.fine_tuning import FineTuning, personal_model

WITH_NORM = {"local_only", "--perturb sam_on"}
"""What needs a normalization layer: of local_only, its running statistics alone are averaged."""

CLIENTS = classification((12, 5, 7))
COHORTS = [0, 1], [0], [0, 2]
"""Two clients in the first round; client 2 comes late."""
SIX = classification((12, 5, 7, 9, 4, 8))
"""Clients of rules that combine updates or see how they disagree, all in each round."""

DISAGREEING = {"fedexp", "--server_optimizer extrapolation"}
"""Rules that see how clients disagree, which two of them do too little."""


def changes(name: str, **chosen: Any) -> tuple[tuple[str, Any], ...]:
    """What of it is not the default."""
    defaults = signature(MAKERS[name]).parameters
    return tuple((o, value) for o, value in chosen.items() if value != defaults[o].default)


@cache
def trained(name: str, chosen: tuple[tuple[str, Any], ...], rounds: int) -> Tensor:
    """The trained model, its buffers and a client's own; or what a rule of its own predicts."""
    made = MAKERS[name](**dict(chosen))
    base = algorithms.fedsam(rho=0.1) if name.startswith("--ascent") else algorithms.fedavg()
    algorithm = made if isinstance(made, Algorithm) else made.to(base)
    few = algorithm.combining is None and name not in DISAGREEING
    run = federation(
        hard(algorithm),
        clients=CLIENTS if few else SIX,
        module=classifier(norm=name in WITH_NORM),
        sampler=lambda num_clients, seed, round: COHORTS[round] if few else [*range(6)],
    )
    round_after_round(run, rounds)
    if algorithm.predict is from_logits:
        buffers = [b.flatten() for b in run.server.buffers.values()]
        return torch.cat([run.w.detach(), *buffers, personal_model(run, 0)[0]])
    own = FineTuning(run).personal_model(0, run.w.detach(), run.server.buffers)
    return algorithm.predict(own)(CLIENTS.dataset.x).flatten()


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=map(" ".join, OPTIONS))
def test_an_option_counts(name: str, option: str) -> None:
    others = WITH.get(f"{name} {option}", {})
    rounds = 3 if name.startswith("--") or f"{name} {option}" in NEEDS_A_PAST else 1
    results = [
        trained(name, changes(name, **others, **{option: value}), rounds)
        for value in values(name, option)
    ]
    for one, other in combinations(results, 2):
        assert (one - other).abs().max() > 1e-6
