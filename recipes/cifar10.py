r"""CIFAR-10 or SVHN on 100 clients, as in FedLESAM, FedSMOO and FedTOGA.

    python recipes/cifar10.py --algorithm fedlesam
    python recipes/cifar10.py --model resnet18_gn \
        --partition.alpha none --partition.classes 3
    python recipes/cifar10.py \
        --accelerator cuda --devices 4 --precision bf16-mixed

The papers call this partition "Dirichlet 0.1": clients of equal size. `fl-lightning run papers
--config fedtoga/table1` has a paper's exact set-up.
"""

from fl_lightning.data import CropFlip, sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import lenet

if __name__ == "__main__":
    Experiment(
        data=[sources.cifar10],
        models=[lenet],
        augment=CropFlip(padding=4, crop=0.5, flip=0.5),
        algorithm="fedtoga",
        partition={"name": "label_prior", "alpha": 0.1, "reuse": True},
        clients=100,
        participation=0.1,
        rounds=800,
        local_epochs=5,
        batch_size=50,
        lr=0.1,
        lr_decay=0.998,
        weight_decay=1e-3,
        clip_norm=10.0,
        doc=__doc__,
    ).run()
