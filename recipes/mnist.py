r"""MNIST, Fashion-MNIST or EMNIST letters on 100 clients with Dirichlet labels.

    python recipes/mnist.py
    python recipes/mnist.py --data emnist_letters_aj \
        --model.hidden 100,100 --algorithm feddyn
    python recipes/mnist.py --data-dir path/to/data --partition iid
"""

from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

if __name__ == "__main__":
    Experiment(
        data=[sources.mnist],
        models=[mlp],
        algorithm="fedtoga",
        partition={"name": "dirichlet", "alpha": 0.3},
        clients=100,
        participation=0.1,
        rounds=100,
        local_epochs=2,
        batch_size=50,
        lr=0.1,
        lr_decay=0.998,
        weight_decay=1e-3,
        clip_norm=10.0,
        doc=__doc__,
    ).run()
