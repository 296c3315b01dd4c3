"""The measures by their names on the command line."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fl_lightning.callbacks.client_measures import Consistency, LocalModels, StateNorms
from fl_lightning.callbacks.global_measures import ClassAccuracy, Sharpness, TrainingScores
from fl_lightning.callbacks.measure import Measure
from fl_lightning.callbacks.perturbation import LayerStrength, PerturbationDrift
from fl_lightning.data import DeviceDataset


def measures(
    names: Sequence[str],
    test: DeviceDataset,
    folder: Path,
    every: int = 10,
    client: int = 0,
    rho: float = 0.05,
    samples: int | None = None,
) -> list[Measure]:
    """The measures of these names. "proximal" is no callback, but `Federation(diagnostics=True)`.

    Args:
        names: Their names.
        test: The test set, on the device.
        folder: The folder of consistency.csv.
        every: Measure after every `every`-th round.
        client: The client of consistency.
        rho: The radius of sharpness.
        samples: Number of training samples, drawn at random; None is all.
    """
    made: dict[str, Callable[[], Measure]] = {
        "train": lambda: TrainingScores(every, samples),
        "classes": lambda: ClassAccuracy(test, every),
        "local": lambda: LocalModels(test, every),
        "sharpness": lambda: Sharpness(every, rho, samples),
        "perturbation": lambda: PerturbationDrift(every, samples=samples),
        "consistency": lambda: Consistency(folder / "consistency.csv", client, samples),
        "duals": lambda: StateNorms(every),
        "strength": lambda: LayerStrength(every),
    }
    return [made[name]() for name in dict.fromkeys(names) if name != "proximal"]
