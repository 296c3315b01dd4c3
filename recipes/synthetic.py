r"""Logistic regression on Synthetic(alpha, beta), as FedProx and FedNova test unequal local work.

    python recipes/synthetic.py --algorithm fedprox \
        --local-epochs "stragglers(5, 0.9)"
    python recipes/synthetic.py --data.alpha 0 --data.beta 0
"""

from torch import nn

from fl_lightning.data.row_sources import synthetic
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp


def logistic(inputs: int, classes: int) -> nn.Sequential:
    """Multinomial logistic regression."""
    return mlp(inputs, classes, hidden=())


if __name__ == "__main__":
    Experiment(
        data=[synthetic],
        models=[logistic],
        algorithm="fedavg",
        partition="by_domain",
        clients=None,
        participation=1 / 3,
        rounds=100,
        local_epochs=5,
        batch_size=10,
        lr=0.01,
        doc=__doc__,
    ).run()
