"""The papers' algorithms, a function each: `algorithms.fedtoga(rho=0.1)`.

Defaults are the papers'. In the docstrings g is the gradient on the batch, w the client's model,
w^t the received one, u_i the one after the last local step, N the number of clients, M of the
cohort S, K of local steps, and eta the local learning rate. `registry` lists the algorithms for the
command line.

Imports `terms` and below.
"""

from fl_lightning.algorithms.averaging import fedavg, feddisco, fednova, fedprox
from fl_lightning.algorithms.drift import fedcm, feddc, feddyn, fedssg, fedvra, scaffold
from fl_lightning.algorithms.personal import fedbabu, fedsol_ft, knn_per, local_only, perfedavg
from fl_lightning.algorithms.representation import (
    fedntd,
    fedrcl,
    fedsol,
    fedsol_ablation,
    gradient_projection,
    moon,
)
from fl_lightning.algorithms.server import fedacg, fedadagrad, fedadam, fedavgm, fedinit, fedyogi
from fl_lightning.algorithms.sharpness import (
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
