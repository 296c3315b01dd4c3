"""Executors: ways to train the clients of a round, with identical results."""

from fl_lightning.executors.executor import ClientResult as ClientResult
from fl_lightning.executors.executor import ClientTask as ClientTask
from fl_lightning.executors.executor import Executor as Executor
from fl_lightning.executors.executor import RoundInputs as RoundInputs
from fl_lightning.executors.graphs import GraphExecutor as GraphExecutor
from fl_lightning.executors.sequential import SequentialExecutor as SequentialExecutor
from fl_lightning.executors.stacked import StackedExecutor as StackedExecutor
