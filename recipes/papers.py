"""The experiments of the papers of FedTOGA, FedLESAM, FedSOL and FedSSG: a preset says which; its methods are one flag.

Run it:

    fabric run recipes/papers.py --config recipes/presets/fedtoga/table1.yaml fabric run
    recipes/papers.py --config recipes/presets/fedtoga/table1.yaml --algorithm fedlesam_s fabric run
    recipes/papers.py --config recipes/presets/fedsol/table2.yaml --config
    recipes/presets/fedsol/svhn.yaml

recipes/presets/README.md lists the tables of the papers with their commands. A preset holds the
coefficients of each of its table's methods; a second one changes what another column of the table
has different, and flags have the last word. Without a preset it is FedAvg, LeNet and CIFAR-10 over
100 clients.
"""

from fl_lightning.data import domain_folder, image_folder, sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import (
    fedavg_cnn,
    lenet,
    mlp,
    resnet18,
    resnet18_bn,
    resnet18_gn,
    sl_vit,
    vgg11,
    vit_b32,
)


def main() -> None:
    """Train."""
    Experiment(
        data=[
            sources.cifar10,
            sources.cifar100,
            sources.mnist,
            sources.emnist_letters_aj,
            sources.svhn,
            sources.cinic10,
            sources.pathmnist,
            sources.tissuemnist,
            sources.office_home,
            sources.domain_net,
            image_folder,
            domain_folder,
        ],
        models=[lenet, resnet18_gn, mlp, fedavg_cnn, vgg11, resnet18_bn, sl_vit, vit_b32, resnet18],
        doc=__doc__,
    ).run()


if __name__ == "__main__":
    main()
