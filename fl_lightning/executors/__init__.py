"""Ways to train the clients of a round, with one result."""

from fl_lightning.executors.autotune import Fastest
from fl_lightning.executors.executor import Batches, Executor, Outcome, Visit
from fl_lightning.executors.sequential import Sequential
from fl_lightning.executors.stacked import Stacked

__all__ = ["Batches", "Executor", "Fastest", "Outcome", "Sequential", "Stacked", "Visit"]
