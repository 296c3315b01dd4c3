"""Handwritten digits of scikit-learn, no download: 20 clients with few classes each.

python recipes/digits.py
python recipes/digits.py --algorithm scaffold --rounds 50
fabric run recipes/digits.py --algorithm fedlesam -- --help
"""

import torch

from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

if __name__ == "__main__":
    torch.set_num_threads(1)  # a step is too short for several threads
    Experiment(
        data=[sources.digits],
        models=[mlp],
        algorithm="fedtoga",
        partition={"name": "dirichlet", "alpha": 0.3},
        clients=20,
        participation=0.25,
        rounds=100,
        local_epochs=2,
        batch_size=16,
        lr=0.1,
        lr_decay=0.998,
        weight_decay=1e-3,
        clip_norm=10.0,
        doc=__doc__,
    ).run()
