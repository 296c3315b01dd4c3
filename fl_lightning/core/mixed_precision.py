"""All weights of a pass in autocast's number type, cast at once.

Autocast casts each weight before its use, and each gradient after: on a GPU a kernel for each, a
third of all in a small step. Here the flat weights are cast in one. Linear layers and convolutions
take theirs from it; all else finds float32 weights, as under autocast. Results are autocast's, bit
for bit, but for a weight that is used several times in a pass: the sum of its gradients may be
rounded otherwise.

The float32 weights are the master weights of Micikevicius et al., ICLR 2018, arXiv:1710.03740.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.amp import is_autocast_available

from fl_lightning.core.vector import Layout, copy

MASTER = torch.float32
Gradients = Sequence[Tensor | None]
"""One of each parameter; None if it was not used."""


def cast_dtype(
    w: Tensor, autocast: Callable[[], AbstractContextManager[Any]]
) -> torch.dtype | None:
    """The number type in which linear layers see the weights `w`; None if it is their own."""
    device = w.device.type
    if w.dtype != MASTER or not is_autocast_available(device):
        return None
    with autocast():
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


@contextmanager
def casts_of(weights: Sequence[Tensor], casts: Sequence[Tensor]) -> Iterator[None]:
    """Let linear layers and convolutions find the casts of these weights."""
    _running.append({id(w): (w, cast) for w, cast in zip(weights, casts, strict=True)})
    try:
        yield
    finally:
        _running.pop()


def cast_of(weight: Tensor) -> Tensor:
    """The cast of a weight where autocast is on; the weight itself if there is none."""
    own, cast = _running[-1].get(id(weight), (None, weight)) if _running else (None, weight)
    return cast if own is weight and torch.is_autocast_enabled(weight.device.type) else weight


_running: list[dict[int, tuple[Tensor, Tensor]]] = []


def gathered(layout: Layout, own: Gradients, casts: Gradients) -> Tensor:
    """The flat gradient, of the gradients of the weights and of their casts."""
    found = list(map(_sum, own, casts))
    used = [g for g in found if g is not None]
    vector = used[0].new_empty(layout.size, dtype=MASTER)
    parts = list(zip(layout.split(vector), found, strict=True))
    copy([part for part, g in parts if g is not None], used)
    for part, g in parts:
        if g is None:
            part.zero_()
    return vector


def parameters_and_casts(w: Tensor, layout: Layout, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The parameters in flat weights, then their casts, all of which are cast at once.

    The casts of stacked clients are dense, as autocast makes them: kernels for rows that lie apart
    would copy each.
    """
    return _Cast.apply(w, layout, dtype)


class _Cast(torch.autograd.Function):
    """`parameters_and_casts`, with a rule for `vmap`."""

    @staticmethod
    def forward(w: Tensor, layout: Layout, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return (*layout.split(w), *layout.split(w.to(dtype)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.layout = inputs[1]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return _Gathered.apply(ctx.layout, *gradients), None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, w: Tensor, layout: Layout, dtype: torch.dtype
    ) -> tuple[Any, Any]:
        w, sizes = w.movedim(dims[0], 0), layout.sizes
        own, casts = [*w.split(sizes, 1)], _split_dense(w.to(dtype), sizes)
        norms = [i for i, name in enumerate(layout.names) if layout.has("norm", name)]
        if norms:  # whose weights are used in float32
            rows = torch.cat([own[i] for i in norms], 1)
            for i, part in zip(norms, _split_dense(rows, [sizes[i] for i in norms]), strict=True):
                own[i] = part
        parts = zip(own + casts, layout.shapes * 2, strict=True)
        return tuple(part.view(-1, *shape) for part, shape in parts), (0,) * len(sizes) * 2


def _split_dense(rows: Tensor, sizes: list[int]) -> list[Tensor]:
    """Parts of rows as matrices of their own."""
    parts = [rows.new_empty(len(rows), size) for size in sizes]
    torch.split_with_sizes_copy(rows, sizes, 1, out=parts)
    return parts


class _Gathered(torch.autograd.Function):
    """`gathered` with a rule for `vmap`."""

    @staticmethod
    def forward(layout: Layout, *gradients: Tensor | None) -> Tensor:
        n = len(layout.names)
        return gathered(layout, gradients[:n], gradients[n:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing: an oracle's gradient cannot be differentiated again."""

    @staticmethod
    def vmap(info: Any, dims: Any, layout: Layout, *gradients: Tensor | None) -> tuple[Any, int]:
        b, n = info.batch_size, len(layout.names)
        rows = [_rows(g, dim, b) for g, dim in zip(gradients, dims[1:], strict=True)]
        own, casts = rows[:n], rows[n:]
        used = [g for g in casts if g is not None]
        if used:  # one cast for all
            together = torch.cat(used, 1).to(MASTER)
            if len(used) == n and not any(g is not None for g in own):
                return together, 0
            parts = iter(together.split([g.shape[1] for g in used], 1))
            casts = [g if g is None else next(parts) for g in casts]
        like = next(g for g in rows if g is not None)
        sums = zip(map(_sum, own, casts), layout.sizes, strict=True)
        found = [like.new_zeros(b, n, dtype=MASTER) if g is None else g for g, n in sums]
        return torch.cat(found, 1), 0


def _rows(t: Tensor | None, dim: int | None, b: int) -> Tensor | None:
    """A flat row for each client."""
    if t is None:
        return None
    return (t.expand(b, *t.shape) if dim is None else t.movedim(dim, 0)).reshape(b, -1)


def _sum(own: Tensor | None, cast: Tensor | None) -> Tensor | None:
    return cast if own is None else own if cast is None else own + cast
