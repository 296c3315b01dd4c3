"""Analysis of trained models: curvature, loss surfaces, features, scores by class and by client."""

from fl_lightning.federation.mean_loss import MeanLoss as MeanLoss
from fl_lightning.lab.analysis.curvature import Hessian as Hessian
from fl_lightning.lab.analysis.curvature import Interpolation as Interpolation
from fl_lightning.lab.analysis.curvature import Surface as Surface
from fl_lightning.lab.analysis.curvature import filter_normalized_axes as filter_normalized_axes
from fl_lightning.lab.analysis.curvature import hessian as hessian
from fl_lightning.lab.analysis.curvature import hessian_axes as hessian_axes
from fl_lightning.lab.analysis.curvature import interpolate as interpolate
from fl_lightning.lab.analysis.curvature import surface as surface
from fl_lightning.lab.analysis.predictions import Predictions as Predictions
from fl_lightning.lab.analysis.predictions import embedding as embedding
from fl_lightning.lab.analysis.predictions import predict as predict
from fl_lightning.lab.analysis.predictions import silhouette as silhouette
