"""The named algorithms of the papers, each a function from its coefficients to an `Algorithm`.

The package is the registry: its functions that return an `Algorithm` are what `--algorithm` finds. Defaults are the
papers' (see each).
"""

from collections.abc import Callable
from inspect import isfunction

from fl_lightning.algorithm import Algorithm
from fl_lightning.catalogue.averaging import fedavg, feddisco, fednova, fedprox
from fl_lightning.catalogue.drift import fedcm, feddc, feddyn, fedssg, fedvra, scaffold
from fl_lightning.catalogue.personal import fedbabu, fedsol_ft, knn_per, local_only, perfedavg
from fl_lightning.catalogue.representation import fedntd, fedrcl, fedsol, fedsol_ablation, gradient_projection, moon
from fl_lightning.catalogue.servers import fedacg, fedadagrad, fedadam, fedavgm, fedinit, fedyogi
from fl_lightning.catalogue.sharpness import (
    fedasam,
    fedgamma,
    fedlesam,
    fedlesam_d,
    fedlesam_s,
    fedsam,
    fedsmoo,
    fedspeed,
    fedtoga,
    mofedsam,
)

__all__ = [
    "algorithms",
    "fedacg",
    "fedadagrad",
    "fedadam",
    "fedasam",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedcm",
    "feddc",
    "feddisco",
    "feddyn",
    "fedgamma",
    "fedinit",
    "fedlesam",
    "fedlesam_d",
    "fedlesam_s",
    "fednova",
    "fedntd",
    "fedprox",
    "fedrcl",
    "fedsam",
    "fedsmoo",
    "fedsol",
    "fedsol_ablation",
    "fedsol_ft",
    "fedspeed",
    "fedssg",
    "fedtoga",
    "fedvra",
    "fedyogi",
    "gradient_projection",
    "knn_per",
    "local_only",
    "mofedsam",
    "moon",
    "perfedavg",
    "scaffold",
]


def algorithms() -> dict[str, Callable[..., Algorithm]]:
    """Every algorithm, by name."""
    here = {name: globals()[name] for name in __all__}
    return {name: f for name, f in here.items() if isfunction(f) and f.__annotations__.get("return") is Algorithm}
