"""The mean loss over a data set as a function of the flat vector `w`, with its derivatives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from math import nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.functional import vhp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from fl_lightning.core.losses import (
    IGNORED,
    TaskLoss,
    counted,
    cross_entropy,
    is_cross_entropy,
    option,
    scores_of,
)
from fl_lightning.core.network import functional_call
from fl_lightning.core.prediction import for_classes, is_right
from fl_lightning.core.vector import Layout
from fl_lightning.data import DeviceDataset
from fl_lightning.errors import UserError


class MeanLoss:
    """The mean loss of a model over a data set, as a function of its flat vector `w`.

    It is deterministic: the samples come in a fixed order and without augmentation, and the model
    is evaluated in evaluation mode (no dropout, running statistics as stored). The model's weights
    do not change. Buffers and frozen parameters are read from the model at every call.

    Args:
        module: The model. Its trainable parameters are the vector.
        data: The samples, on the model's device.
        samples: Number of samples, drawn at random, the same in every call; None is all.
        batch_size: Samples of a forward pass.
        loss: The task's loss, averaged over a batch.

    Attributes:
        layout: The places of the parameters in `w`.
        index: (n,) int64, the samples that count.

    Example::

        loss = MeanLoss(model, test, samples=1000)
        w = loss.weights
        value, gradient, curvature = loss(w), loss.gradient(w), loss.hvp(w, loss.gradient(w))
    """

    def __init__(
        self,
        module: nn.Module,
        data: DeviceDataset,
        samples: int | None = None,
        batch_size: int = 100,
        loss: TaskLoss = cross_entropy,
    ):
        self.module, self.data, self.loss, self.batch_size = module, data, loss, batch_size
        self.layout = Layout(module)
        self.index = some_samples(len(data), samples).to(data.device)

    @property
    def weights(self) -> Tensor:
        """The model's own weights, as a new vector."""
        return self.layout.read(self.module)

    @torch.no_grad()
    def __call__(self, w: Tensor) -> Tensor:
        """The loss at `w`, a 0-dim float64 tensor."""
        return self._mean(lambda x, y: self._batch_loss(w, x, y).double())

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient at `w`, a vector like `w`."""
        return self._mean(lambda x, y: vjp(lambda at: self._batch_loss(at, x, y), w)[1])

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        """The Hessian at `w` times the vector `v`, by differentiating twice."""
        return self._mean(lambda x, y: vhp(lambda at: self._batch_loss(at, x, y), w, v)[1])

    @torch.no_grad()
    def scores(self, points: Tensor) -> Tensor:
        """Loss and accuracy, (m, 2) float64, at many weights, (m, len(w)).

        The accuracy is of `counted_samples`. Without classes it is NaN.
        """
        index = counted_samples(self.loss, self.data, self.index)
        whole = counted(self.loss, self.data.targets(index))
        table = torch.zeros(len(points), 2, dtype=torch.float64, device=points.device)
        with evaluating(self.module):
            for x, y in self.data.batches(index, self.batch_size):
                share = counted(self.loss, y) / whole
                for row, w in zip(table, points, strict=True):
                    out = self._forward(w, x)
                    row[0] += share * self.loss(out, y).double() if share else 0.0
                    shown, _ = for_classes(self.loss, scores_of(out), y)
                    row[1] += is_right(shown, y).sum() if self.data.classes else nan
        return table / torch.tensor([1, len(index)]).to(table)

    def _mean(self, of_batch: Callable[[Any, Any], Tensor]) -> Tensor:
        """The mean over the samples, or the targets that count, of a mean over each batch."""
        whole = counted(self.loss, self.data.targets(self.index))
        parts = (
            of_batch(x, y) * (part / whole)
            for x, y in self.data.batches(self.index, self.batch_size)
            if (part := counted(self.loss, y))  # the mean of no target is NaN
        )
        with evaluating(self.module):
            return reduce(torch.add, parts)

    def _batch_loss(self, w: Tensor, x: Any, y: Any) -> Tensor:
        return self.loss(self._forward(w, x), y)

    def _forward(self, w: Tensor, x: Any) -> Any:
        x = tree_map(lambda t: t.to(w.dtype) if t.is_floating_point() else t, x)
        return functional_call(self.module, self.layout.named(w), x)


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Leave each part of a module in training or evaluation mode, as it was, also after errors."""
    before = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Let the module be in evaluation mode.

    Attention is computed step by step: its fused kernels have no second derivative.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with modes_kept(module), sdpa_kernel(SDPBackend.MATH):
            module.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def some_samples(available: int, samples: int | None) -> Tensor:
    """Positions of all samples, or of some, in a random order; the same every time.

    Many data sets are sorted by class, but statistics of a batch need mixed classes.

    Raises:
        UserError: If no sample is asked for.
    """
    if samples is not None and samples < 1:
        raise UserError(f"samples is at least 1, not {samples}")
    return torch.randperm(available, generator=torch.Generator().manual_seed(0))[:samples]


def counted_samples(loss: TaskLoss, data: DeviceDataset, index: Tensor) -> Tensor:
    """The samples of an index without the class that a cross entropy leaves out."""
    left_out = option(loss, "ignore_index", IGNORED)
    if not is_cross_entropy(loss) or (data.classes and not 0 <= left_out < len(data.classes)):
        return index  # most data sets: to choose among them would wait for a GPU
    y = data.targets(index)
    return index[y != left_out] if isinstance(y, Tensor) and y.ndim == 1 else index
