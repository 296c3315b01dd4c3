"""Callbacks of a federation: plain objects whose hooks Fabric calls by name, on every rank.

- `on_fit_start(federation)`
- `on_round_start(federation, cohort)`: the clients of the round, ascending
- `on_client_end(federation, client, result)`: a client's `ClientResult`, on the rank that trained
  it; its last model is `result.origin + result.progress`
- `on_round_end(federation, metrics)`: measure, and add to `metrics`
- `on_last_round_end(federation, metrics)`: the same after the last round, also of an early end
- `on_round_logged(federation, metrics)`: show, save
- `on_fit_end(federation)`

A class or function that makes callbacks gets the parts of the run that its parameters name: the
data sets `train`, `test` and `validation` (or None) on the device, `partition`, the training
samples of each client, `own_tests`, those in `test` that were taken of each (or None), `task`,
which scores a model, and `folder`, that of the run.

A callback may need something in the training. A recipe's run gives it what its attributes name:

- `terms`: terms that the algorithm gets in addition, such as those that keep further models
- `diagnostics`: if true, terms publish their `diagnostics` too
"""

import re

from fl_lightning.callbacks import (
    client_measures,
    early_stopping,
    global_measures,
    personal_models,
    perturbation,
)
from fl_lightning.callbacks.bases import Measure as Measure
from fl_lightning.callbacks.bases import Stopping as Stopping
from fl_lightning.callbacks.checkpoint import Checkpoint as Checkpoint
from fl_lightning.callbacks.client_measures import Consistency as Consistency
from fl_lightning.callbacks.client_measures import Diagnostics as Diagnostics
from fl_lightning.callbacks.client_measures import Gradients as Gradients
from fl_lightning.callbacks.client_measures import LocalModels as LocalModels
from fl_lightning.callbacks.client_measures import StateNorms as StateNorms
from fl_lightning.callbacks.display import ProgressBar as ProgressBar
from fl_lightning.callbacks.display import TensorBoard as TensorBoard
from fl_lightning.callbacks.display import partition_heat_map as partition_heat_map
from fl_lightning.callbacks.early_stopping import EarlyStopping as EarlyStopping
from fl_lightning.callbacks.early_stopping import GrowthStopping as GrowthStopping
from fl_lightning.callbacks.global_measures import ClassAccuracy as ClassAccuracy
from fl_lightning.callbacks.global_measures import ClientScores as ClientScores
from fl_lightning.callbacks.global_measures import EvaluateModels as EvaluateModels
from fl_lightning.callbacks.global_measures import Sharpness as Sharpness
from fl_lightning.callbacks.global_measures import TrainingScores as TrainingScores
from fl_lightning.callbacks.personal_models import PersonalScores as PersonalScores
from fl_lightning.callbacks.personal_models import PersonalWeights as PersonalWeights
from fl_lightning.callbacks.personalization import Personalization as Personalization
from fl_lightning.callbacks.personalization import PersonalModels as PersonalModels
from fl_lightning.callbacks.perturbation import LayerStrength as LayerStrength
from fl_lightning.callbacks.perturbation import PerturbationDrift as PerturbationDrift
from fl_lightning.callbacks.scoring import Evaluation as Evaluation

OFFERED = client_measures, personal_models, early_stopping, global_measures, perturbation
"""The modules whose classes `--callback` offers by name."""

CALLBACKS = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): callback
    for module in OFFERED
    for name, callback in vars(module).items()
    if name[0] != "_" and getattr(callback, "__module__", "") == module.__name__
}
"""The callbacks that `--callback` offers, by name: `class_accuracy` is `ClassAccuracy`."""
