"""Analysis of trained models: curvature, loss surfaces, features, scores by class and by client.

Imports `federation`, `data`, `core` and below.
"""

from fl_lightning.analysis.mean_loss import MeanLoss

__all__ = ["MeanLoss"]
