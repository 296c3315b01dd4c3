"""The terms: each one idea of the papers, in the paper's letters.

Imports `core` and below.
"""

from fl_lightning.terms.client_models import ClientModels
from fl_lightning.terms.distill import Contrastive, Distill, NotTrueDistillation, RelaxedContrastive
from fl_lightning.terms.drift import (
    CenteredGradientVariate,
    ClientMomentum,
    Clip,
    ControlVariate,
    LastGradientVariate,
    Proximal,
    ReleasedControlVariate,
    UnclippedPull,
)
from fl_lightning.terms.dual import SSG, CohortDual, DynamicRegularizer, FedVRADual, ReleasedSSG
from fl_lightning.terms.lesam import LESAM, LastRound
from fl_lightning.terms.personal import FirstOrderMAML, LocalOnly
from fl_lightning.terms.perturb import ASAM, SAM, SMOO, TOGA, Neighbour
from fl_lightning.terms.server import (
    AcceleratedStart,
    AdaptiveServer,
    NormalizedAveraging,
    RelaxedInitialization,
    ServerMomentum,
)
from fl_lightning.terms.sol import SOL, GradientProjection, HeadSOL

__all__ = [
    "ASAM",
    "LESAM",
    "SAM",
    "SMOO",
    "SOL",
    "SSG",
    "TOGA",
    "AcceleratedStart",
    "AdaptiveServer",
    "CenteredGradientVariate",
    "ClientModels",
    "ClientMomentum",
    "Clip",
    "CohortDual",
    "Contrastive",
    "ControlVariate",
    "Distill",
    "DynamicRegularizer",
    "FedVRADual",
    "FirstOrderMAML",
    "GradientProjection",
    "HeadSOL",
    "LastGradientVariate",
    "LastRound",
    "LocalOnly",
    "Neighbour",
    "NormalizedAveraging",
    "NotTrueDistillation",
    "Proximal",
    "RelaxedContrastive",
    "RelaxedInitialization",
    "ReleasedControlVariate",
    "ReleasedSSG",
    "ServerMomentum",
    "UnclippedPull",
]
