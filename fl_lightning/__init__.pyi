"""The public names: the only list of them, read by editors, mypy and `lazy_loader`."""

from . import algorithms as algorithms
from . import callbacks as callbacks
from . import data as data
from . import experiment as experiment
from . import models as models
from . import optim as optim
from . import plot as plot
from . import terms as terms
from .core.algorithm import Algorithm as Algorithm
from .core.curves import cosine as cosine
from .core.curves import exponential as exponential
from .core.curves import linear as linear
from .core.term import OfClients as OfClients
from .core.term import OfLayout as OfLayout
from .core.term import Term as Term
from .core.term import initial as initial
from .core.term import received as received
from .core.term import scalar as scalar
from .core.term import zeros as zeros
from .core.vector import Layout as Layout
from .core.vector import unit as unit
from .core.weighting import Cohort as Cohort
from .core.weighting import by_size as by_size
from .core.weighting import uniform as uniform
from .data import ClientData as ClientData
from .data import CropFlip as CropFlip
from .data import DeviceDataset as DeviceDataset
from .data import FederatedData as FederatedData
from .data import Partition as Partition
from .data import partitions as partitions
from .errors import DivergenceError as DivergenceError
from .errors import ModelError as ModelError
from .errors import RankLostError as RankLostError
from .errors import TermError as TermError
from .errors import UserError as UserError
from .executors import Executor as Executor
from .executors import SequentialExecutor as SequentialExecutor
from .executors import StackedExecutor as StackedExecutor
from .federation.client_selection import PowerOfChoice as PowerOfChoice
from .federation.federation import Federation as Federation
from .federation.sampling import BernoulliSampling as BernoulliSampling
from .federation.sampling import SizeWeightedSampling as SizeWeightedSampling
from .federation.sampling import UniformSampling as UniformSampling
from .training.trainer import FederatedTrainer as FederatedTrainer

__version__: str
