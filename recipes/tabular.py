r"""Any CSV file: one column is the target, one names the client of each row.

    python recipes/tabular.py --data file.csv \
        --data.target score --data.clients user --loss mse
    python recipes/tabular.py --data file.csv \
        --data.target kind --data.clients site
"""

from fl_lightning.data.row_sources import table
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

if __name__ == "__main__":
    Experiment(
        data=[table],
        models=[mlp],
        algorithm="scaffold",
        partition="by_domain",
        clients=None,
        participation=0.2,
        rounds=100,
        local_epochs=1,
        batch_size=20,
        lr=0.02,
        clip_norm=10.0,
        doc=__doc__,
    ).run()
