"""CIFAR-100 on 100 clients, as in the papers of FedLESAM, FedSMOO and FedTOGA.

Run it:

    python recipes/cifar100.py --algorithm fedlesam_s fabric run recipes/cifar100.py --partition
    class_priors --partition.classes 10 --partition.alpha none
"""

from fl_lightning.data import CropFlip, sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import lenet, resnet18_gn


def main() -> None:
    """Train."""
    Experiment(
        data=[sources.cifar100],
        models=[resnet18_gn, lenet],
        augment=CropFlip(padding=4, crop=0.5, flip=0.5),
        algorithm="fedtoga",
        partition={
            "name": "class_priors",
            "alpha": 0.1,
            "reuse": True,
        },  # the papers' "Dirichlet 0.1": equal sizes
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


if __name__ == "__main__":
    main()
