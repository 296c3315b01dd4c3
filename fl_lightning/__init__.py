"""Federated-learning simulation on PyTorch Lightning Fabric."""

from fl_lightning import algorithms
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.schedule import Decay
from fl_lightning.core.term import Term, initial, received, scalar, zeros
from fl_lightning.core.vector import Layout, unit
from fl_lightning.core.weighting import Cohort, by_size, uniform
from fl_lightning.data import ClientData, CropFlip, DeviceDataset, Partition
from fl_lightning.errors import DivergenceError, ModelError, RankLostError, TermError
from fl_lightning.executors import AutotunedExecutor, Executor, SequentialExecutor, StackedExecutor
from fl_lightning.federation.federation import Federation
from fl_lightning.federation.sampling import (
    BernoulliSampling,
    SizeWeightedSampling,
    UniformSampling,
)

__all__ = [
    "Algorithm",
    "AutotunedExecutor",
    "BernoulliSampling",
    "ClientData",
    "Cohort",
    "CropFlip",
    "Decay",
    "DeviceDataset",
    "DivergenceError",
    "Executor",
    "Federation",
    "Layout",
    "ModelError",
    "Partition",
    "RankLostError",
    "SequentialExecutor",
    "SizeWeightedSampling",
    "StackedExecutor",
    "Term",
    "TermError",
    "UniformSampling",
    "algorithms",
    "by_size",
    "initial",
    "received",
    "scalar",
    "uniform",
    "unit",
    "zeros",
]
