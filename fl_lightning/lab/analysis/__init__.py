"""Analysis of trained models: curvature, loss surfaces, features, scores by class and by client.

Imports `federation` and below.
"""

from fl_lightning.federation.mean_loss import MeanLoss
from fl_lightning.lab.analysis.curvature import Hessian, hessian
from fl_lightning.lab.analysis.landscape import (
    Interpolation,
    Surface,
    filter_normalized_axes,
    hessian_axes,
    interpolate,
    surface,
)
from fl_lightning.lab.analysis.predictions import Predictions, embedding, predict, silhouette

__all__ = [
    "Hessian",
    "Interpolation",
    "MeanLoss",
    "Predictions",
    "Surface",
    "embedding",
    "filter_normalized_axes",
    "hessian",
    "hessian_axes",
    "interpolate",
    "predict",
    "silhouette",
    "surface",
]
