"""A recipe: data, a model, and the defaults of its options.

python recipe.py
python recipe.py --algorithm fedlesam --rounds 50
fabric run recipe.py --devices 2
"""

from fl_lightning.data import sources
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

if __name__ == "__main__":
    Experiment(
        data=[sources.digits],  # or functions of yours; the first is the default
        models=[mlp],
        algorithm="scaffold",
        partition={"name": "dirichlet", "alpha": 0.3},
        clients=20,
        participation=0.25,
        rounds=100,
        local_epochs=2,
        batch_size=16,
        lr=0.1,
        doc=__doc__,  # which --help shows
    ).run()
