"""Callbacks of a federation: plain objects whose hooks Fabric calls by name, on every rank.

- `on_fit_start(federation)`
- `on_round_start(federation, cohort)`: the clients of the round, ascending
- `on_client_end(federation, client, outcome)`: a client's `Outcome`, on the rank that trained it;
  its last model is `outcome.origin + outcome.progress`
- `on_round_end(federation, metrics)`: measure, and add to `metrics`
- `on_last_round_end(federation, metrics)`: the same after the last round, also of an early end
- `on_round_logged(federation, metrics)`: show, save
- `on_fit_end(federation)`
"""

from fl_lightning.callbacks.checkpoint import Checkpoint
from fl_lightning.callbacks.client_measures import Consistency, LocalModels, StateNorms
from fl_lightning.callbacks.early_stopping import EarlyStopping, GrowthStopping
from fl_lightning.callbacks.evaluation import Evaluation
from fl_lightning.callbacks.global_measures import (
    ClassAccuracy,
    ModelScores,
    Sharpness,
    TrainingScores,
)
from fl_lightning.callbacks.measure import Measure
from fl_lightning.callbacks.measure_names import measures
from fl_lightning.callbacks.personalization import Personalization
from fl_lightning.callbacks.perturbation import LayerStrength, PerturbationDrift
from fl_lightning.callbacks.progress import ProgressBar
from fl_lightning.callbacks.tensorboard import (
    TensorBoardScalars,
    TensorBoardSummary,
    partition_heat_map,
)

__all__ = [
    "Checkpoint",
    "ClassAccuracy",
    "Consistency",
    "EarlyStopping",
    "Evaluation",
    "GrowthStopping",
    "LayerStrength",
    "LocalModels",
    "Measure",
    "ModelScores",
    "Personalization",
    "PerturbationDrift",
    "ProgressBar",
    "Sharpness",
    "StateNorms",
    "TensorBoardScalars",
    "TensorBoardSummary",
    "TrainingScores",
    "measures",
    "partition_heat_map",
]
