"""The terms: each one idea of the papers, in the paper's letters."""

from fl_lightning.terms.distill import Contrastive, Distill, NotTrue, RelaxedContrastive
from fl_lightning.terms.drift import (
    ClientMomentum,
    Clip,
    ControlVariate,
    MeanPast,
    OwnPast,
    Proximal,
    WeightPull,
)
from fl_lightning.terms.dual import SSG, CohortDual, DynamicRegularizer, TwoStepDual
from fl_lightning.terms.lesam import LESAM, LastRound
from fl_lightning.terms.personal import Alone, MetaStep
from fl_lightning.terms.perturb import ASAM, SAM, SMOO, TOGA, Neighbour
from fl_lightning.terms.server import Adaptive, Lookahead, Normalize, RelaxedStart, ServerMomentum
from fl_lightning.terms.sol import SOL, HeadSOL, Projected

__all__ = [
    "ASAM",
    "LESAM",
    "SAM",
    "SMOO",
    "SOL",
    "SSG",
    "TOGA",
    "Adaptive",
    "Alone",
    "ClientMomentum",
    "Clip",
    "CohortDual",
    "Contrastive",
    "ControlVariate",
    "Distill",
    "DynamicRegularizer",
    "HeadSOL",
    "LastRound",
    "Lookahead",
    "MeanPast",
    "MetaStep",
    "Neighbour",
    "Normalize",
    "NotTrue",
    "OwnPast",
    "Projected",
    "Proximal",
    "RelaxedContrastive",
    "RelaxedStart",
    "ServerMomentum",
    "TwoStepDual",
    "WeightPull",
]
