"""The terms: each one idea of the papers, in the paper's letters."""

from fl_lightning.terms.drift import (
    ClientMomentum,
    Clip,
    CohortDual,
    ControlVariate,
    DynamicRegularizer,
    Proximal,
)
from fl_lightning.terms.perturb import ASAM, LESAM, SAM, TOGA, LastRound
from fl_lightning.terms.server import Adaptive

__all__ = [
    "ASAM",
    "LESAM",
    "SAM",
    "TOGA",
    "Adaptive",
    "ClientMomentum",
    "Clip",
    "CohortDual",
    "ControlVariate",
    "DynamicRegularizer",
    "LastRound",
    "Proximal",
]
