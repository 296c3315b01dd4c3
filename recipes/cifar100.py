"""CIFAR-100 on 100 clients, as in FedLESAM, FedSMOO and FedTOGA.

    python recipes/cifar100.py --algorithm fedlesam_s
    python recipes/cifar100.py --partition.classes 10 --partition.alpha none

The papers call this partition "Dirichlet 0.1": clients of equal size.
"""

from fl_lightning.data import CropFlip, sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import resnet18_gn

if __name__ == "__main__":
    Experiment(
        data=[sources.cifar100],
        models=[resnet18_gn],
        augment=CropFlip(padding=4, crop=0.5, flip=0.5),
        algorithm="fedtoga",
        partition={"name": "label_prior", "alpha": 0.1, "reuse": True},
        clients=100,
        participation=0.1,
        rounds=800,
        local_epochs=2,
        batch_size=20,
        lr=0.1,
        lr_decay=0.998,
        weight_decay=1e-3,
        clip_norm=10.0,
        doc=__doc__,
    ).run()
