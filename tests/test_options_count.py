"""Every option of every algorithm and addition changes what is trained, or how a client reads it."""

from collections.abc import Callable
from functools import cache
from inspect import getmembers, isfunction, signature
from itertools import combinations
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from problems import classification, classifier, federation, hard, round_after_round
from torch import Tensor

from fl_lightning import Algorithm, algorithms
from fl_lightning.algorithms.modifiers import PARTS
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.core.prediction import from_logits
from fl_lightning.federation.fine_tuning import FineTuning

CLIENTS = classification((11, 5, 7), epochs=2)
COHORTS = [0], [0, 1], [0, 2]
"""Client 0 always, the others late and not for long."""

MAKERS: dict[str, Callable[..., Any]] = {
    **ALGORITHMS,
    **{
        f"--{part} {name}": make
        for part, module in PARTS.items()
        for name, make in getmembers(module, isfunction)
        if make.__module__ == module.__name__
    },
}
WITH: dict[str, dict[str, Any]] = {
    "feddisco size_weighting": {"alpha": 0.1},
    "feddisco prox_clip": {"alpha": 0.1},
    "fedsol first_step": {"strength": "fixed"},
    "fedsol proximal": {"scope": "all"},  # moon does not see the head
    "fedsol_ablation beta": {
        "row": "a5"
    },  # elsewhere it only scales what is then divided by its norm
    "fedtoga carry": {"perturbation": "neighbour"},
}
"""What else has to be chosen for an option to count."""

NOT_NONE: dict[str, Any] = {"alpha": 0.1, "v0": 0.01, "d": 1.5, "layers": ("outer",), "capacity": 3}
"""Values of options that are none by default."""

OPTIONS = [(name, option) for name, make in MAKERS.items() for option in signature(make).parameters]


def values(name: str, option: str) -> list[Any]:
    """All that an option may be, or its default and another one."""
    make = MAKERS[name]
    hint, default = get_type_hints(make)[option], signature(make).parameters[option].default
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if default is None:
        return [None, NOT_NONE[option]]
    if isinstance(default, bool):
        return [False, True]
    return [default, default // 2 if isinstance(default, int) else default / 2 or 0.5]


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
    own = FineTuning(run).own(0, run.w.detach(), run.buffers)
    return algorithm.predict(own)(CLIENTS.dataset.x).flatten()


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=map(" ".join, OPTIONS))
def test_it_counts(name: str, option: str) -> None:
    others = WITH.get(f"{name} {option}", {})
    results = [
        trained(name, tuple({**others, option: value}.items())) for value in values(name, option)
    ]
    for one, other in combinations(results, 2):
        assert (one - other).abs().max() > 1e-6
