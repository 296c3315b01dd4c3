"""Ways to train the clients of a round, with one result."""

from fl_lightning.executors.fastest import Fastest
from fl_lightning.executors.sequential import Sequential
from fl_lightning.executors.stacked import Stacked
from fl_lightning.executors.visit import Batches, Executor, Outcome, Visit

__all__ = ["Batches", "Executor", "Fastest", "Outcome", "Sequential", "Stacked", "Visit"]
