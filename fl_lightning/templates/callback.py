"""A callback that measures a scalar and may end the run.

fl-lightning run digits --callback callback.py:MyCallback:target=0.9
"""

from typing import Any

import torch

from fl_lightning import DeviceDataset, Federation


class MyCallback:
    """Ends a run when the worst class is good enough.

    Args:
        test: The test set; train, validation, partition and folder can be asked for likewise.
        target: Accuracy of the worst class; an option.
    """

    def __init__(self, test: DeviceDataset, target: float = 0.9):
        self.test, self.target = test, target

    def on_round_end(self, federation: Federation, metrics: dict[str, Any]) -> None:
        """After each round, on every rank; what is added to `metrics` is logged."""
        network, everything = federation.load_global(), torch.arange(len(self.test))
        with torch.inference_mode():
            right = network(self.test.inputs(everything)).argmax(1) == self.test.y
        classes = self.test.y.unique()
        worst = min(right[self.test.y == k].float().mean().item() for k in classes)
        metrics["test/worst_class"] = worst
        if worst >= self.target:
            federation.request_stop()
