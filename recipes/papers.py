"""Tables of FedTOGA, FedLESAM, FedSOL and FedSSG: --config names a preset.

    python recipes/papers.py --config fedtoga/table1
    python recipes/papers.py --config fedtoga/table1 --algorithm fedlesam_s
    python recipes/papers.py --config fedsol/table2 --config fedsol/svhn

presets/README.md lists the tables of the papers with their commands. A preset has the coefficients
of each method of its table. A second one changes what differs in another column. Flags override
both. Without a preset this is FedAvg with LeNet on CIFAR-10 over 100 clients.
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

if __name__ == "__main__":
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
