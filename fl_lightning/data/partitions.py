"""The partition schemes without their labels, for `FederatedData(..., clients=...)`.

Each function takes the number of `clients` and the options of the scheme of the same name in
`fl_lightning.data.schemes`; the labels are the data's target, and the seed is the data's if none is
given. To take the clients of an earlier run, give `Partition.load(file)`.

Example::

    data = fl.FederatedData((x, y), clients=fl.partitions.dirichlet(alpha=0.1, clients=100))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any

from torch import Tensor

from fl_lightning.data import schemes
from fl_lightning.data.partition import Partition


@dataclass(frozen=True)
class Scheme:
    """A partition scheme that waits for labels.

    Attributes:
        scheme: A function of `fl_lightning.data.schemes`.
        options: Its arguments but labels and seed.
        by_class: Whether it needs the classes of rows.
    """

    scheme: Callable[..., Partition]
    options: Mapping[str, Any]
    by_class: bool

    def __call__(self, y: Tensor, seed: int) -> Partition:
        """The partition of rows with these labels, (n,) int64."""
        return self.scheme(y, **{"seed": seed, **self.options})


def _unlabeled(scheme: Callable[..., Partition], by_class: bool) -> Callable[..., Scheme]:
    @wraps(scheme)
    def make(clients: int, **options: Any) -> Scheme:
        options["clients"] = clients
        signature(scheme).bind(None, **{"seed": 0, **options})  # an unknown option: TypeError
        return Scheme(scheme, options, by_class)

    return make


iid = _unlabeled(schemes.iid, by_class=False)
dirichlet = _unlabeled(schemes.dirichlet, by_class=True)
label_prior = _unlabeled(schemes.label_prior, by_class=True)
pathological = _unlabeled(schemes.pathological, by_class=True)
shards = _unlabeled(schemes.shards, by_class=True)
by_domain = _unlabeled(schemes.by_domain, by_class=False)
