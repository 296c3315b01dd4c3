"""Tables of FedAvg, FedTOGA, FedLESAM, FedSOL, FedSSG and others: --config names a preset.

    python recipes/papers.py --config fedtoga/table1
    python recipes/papers.py --config fedtoga/table1 --algorithm fedlesam_s
    python recipes/papers.py --config fedsol/table2 --config fedsol/svhn

presets/README.md lists the tables of the papers with their commands. A preset has the coefficients
of each method of its table. A second one changes what differs in another column. Flags override
both. Without a preset this is FedAvg with LeNet on CIFAR-10 over 100 clients.
"""

from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import lenet

if __name__ == "__main__":
    Experiment(data=[sources.cifar10], models=[lenet], doc=__doc__).run()
