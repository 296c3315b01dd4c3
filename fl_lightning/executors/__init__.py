"""Executors: ways to train the clients of a round, with identical results.

Imports `optim`, `core` and below.
"""

from fl_lightning.executors.autotune import AutotunedExecutor
from fl_lightning.executors.executor import Batches, Executor, Outcome, Visit
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.executors.stacked import StackedExecutor

__all__ = [
    "AutotunedExecutor",
    "Batches",
    "Executor",
    "Outcome",
    "SequentialExecutor",
    "StackedExecutor",
    "Visit",
]
