"""Executors: ways to train the clients of a round, with identical results.

Imports `optim`, `data`, `core` and below.
"""

from fl_lightning.executors.executor import Broadcast as Broadcast
from fl_lightning.executors.executor import Executor as Executor
from fl_lightning.executors.executor import Outcome as Outcome
from fl_lightning.executors.executor import Visit as Visit
from fl_lightning.executors.sequential import SequentialExecutor as SequentialExecutor
from fl_lightning.executors.stacked import StackedExecutor as StackedExecutor
