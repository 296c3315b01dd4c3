"""Functions that models call in local training in the place of PyTorch's.

They are put where layers, attention and models of other packages look them up, so that no module
changes.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import get_ident
from typing import Any

import torch
from torch import _VF, Tensor
from torch.backends import mha
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core import device
from fl_lightning.core.dropout import DropoutMasks, running_masks
from fl_lightning.core.mixed_precision import cast_of
from fl_lightning.core.stacked_functions import is_stacked, stacked_max_pool2d

Function = Callable[..., Any]
"""A substitute gets the name and PyTorch's function first."""


@contextmanager
def substituted(batched: bool) -> Iterator[None]:
    """A context of local training, with dropout from keys and functions that `vmap` can batch.

    Within `DropoutMasks` these come from its key: dropout of elements and channels, alpha dropout,
    dropout of the weights of `scaled_dot_product_attention` and of the values between layers of
    `nn.LSTM`, `nn.GRU` and `nn.RNN` unless the sequences are packed, torchvision's
    `stochastic_depth` and timm's `drop_path`. All other random numbers stay PyTorch's. Within
    `casts_of` linear layers and convolutions take the casts of their weights. What a model has in
    `torch.compile` runs eagerly, since it would keep the functions of its first trace.

    The functions are replaced for the whole process. In other threads they do what PyTorch's do,
    but only one thread at a time may be in such a context.

    Args:
        batched: Whether to replace the fused forms of attention, encoder layers and LSTM, which
            `vmap` would run client by client, with a warning, or not at all.
    """
    places = _places(*(module in sys.modules for module in _OF_LIBRARIES))
    before = [(place, {name: place[name] for name in new}) for place, new in places]
    fast, outer = mha.get_fastpath_enabled(), _batched_in[0]
    try:
        for place, new in places:
            place.update(new)
        mha.set_fastpath_enabled(fast and not batched)
        _batched_in[0] = get_ident() if batched else None
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _batched_in[0] = outer
        mha.set_fastpath_enabled(fast)
        for place, functions in before:
            place.update(functions)


_batched_in: list[int | None] = [None]
"""The thread that needs functions that can be batched."""


def _dropout(name: str, theirs: Function, x: Tensor, p: float, train: bool) -> Any:
    """For `torch.dropout` or one of its seven relatives."""
    masks = running_masks()
    if not (masks and train):
        return theirs(x, p, train)
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if "feature" in name else x.shape
    out = masks.drop(x, p, shape, alpha="alpha" in name)
    return x.copy_(out) if name.endswith("_") else out


def _attention(
    _: str,
    theirs: Function,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """For `torch.nn.functional.scaled_dot_product_attention`."""
    masks, batched = running_masks(), _batched_in[0] == get_ident()
    if (not masks) if dropout_p else (not batched):
        shared = {"scale": scale, "enable_gqa": enable_gqa}
        return theirs(query, key, value, attn_mask, dropout_p, is_causal, **shared)
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(times, -3) for t in (key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.mT
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=key.device).tril()
    if attn_mask is None:
        weights = scores.softmax(-1)
    else:
        added = attn_mask.dtype != torch.bool
        scores = scores + attn_mask if added else scores.masked_fill(~attn_mask, -torch.inf)
        weights = torch._safe_softmax(scores, -1)  # zero where all is masked
    if masks and dropout_p:
        weights = masks.drop(weights, dropout_p, weights.shape)
    return weights @ value


def _layer(
    _: str,
    theirs: Function,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *a: Any,
    **kw: Any,
) -> Any:
    """For `torch.nn.functional.linear` and the convolutions."""
    return theirs(input, cast_of(weight), bias if bias is None else cast_of(bias), *a, **kw)


def _max_pool(
    _: str,
    theirs: Function,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """For `torch.nn.functional.max_pool2d`."""
    stride = kernel_size if stride is None else stride
    options = kernel_size, stride, padding, dilation, ceil_mode
    batched = _batched_in[0] == get_ident() and not return_indices
    if batched and input.ndim == 4 and device.on_gpu(input) and is_stacked():
        return stacked_max_pool2d(input, options)
    return theirs(input, *options, return_indices)


def _recurrent(name: str, theirs: Function, *given: Any) -> Any:
    """For `_VF.lstm`, `_VF.gru` and `_VF.rnn_*`: with dropout, a call for each layer."""
    masks, batched = running_masks(), _batched_in[0] == get_ident()
    packed = not isinstance(given[3], bool)
    if packed or not (masks or batched):
        return theirs(*given)
    x, begin, weights, bias, layers, p, train, both, batch_first = given
    layer = theirs
    if batched:  # `vmap` knows the parts; some add to the state in place: give each client one
        layer = getattr(torch.ops.aten, name).input.decompose
        begin = tree_map(lambda h: h + x.new_zeros(()), begin)
    calls = layers if masks and p and train else 1
    each, last = len(weights) // calls, []
    states = tree_map(lambda h: h.chunk(calls), begin)
    with _onednn(off=batched):
        for i in range(calls):
            x = masks.drop(x, p, x.shape) if masks and i else x
            state = states[i] if isinstance(begin, Tensor) else [h[i] for h in states]
            own = weights[i * each : (i + 1) * each]
            x, *end = layer(x, state, own, bias, layers // calls, 0.0, train, both, batch_first)
            last.append(end)
    ends = zip(*last, strict=True)  # PyTorch 2.9 gives an LSTM's one dimension more
    return x, *(torch.cat(e).view_as(h) for e, h in zip(ends, tree_leaves(begin), strict=True))


@contextmanager
def _onednn(off: bool) -> Iterator[None]:
    backend: Any = torch.backends.mkldnn
    before = backend.enabled
    backend.enabled = before and not off
    try:
        yield
    finally:
        backend.enabled = before


def _stochastic_depth(
    _: str, theirs: Function, input: Tensor, p: float, mode: str, training: bool = True
) -> Any:
    """For torchvision's function."""
    masks = running_masks()
    if not (masks and training) or mode not in ("batch", "row"):
        return theirs(input, p, mode, training)
    samples = len(input) if mode == "row" else 1
    return input * _dropped_ones(masks, input, samples, p)


def _drop_path(
    _: str,
    theirs: Function,
    x: Tensor,
    drop_prob: float = 0.0,
    training: bool = False,
    scale_by_keep: bool = True,
) -> Any:
    """For timm's function."""
    masks = running_masks()
    if not (masks and training):
        return theirs(x, drop_prob, training, scale_by_keep)
    scale = 1 if scale_by_keep else 1 - drop_prob
    return x * (_dropped_ones(masks, x, len(x), drop_prob) * scale)


def _dropped_ones(masks: DropoutMasks, like: Tensor, samples: int, p: float) -> Tensor:
    shape = samples, *(1 for _ in like.shape[1:])
    return masks.drop(like.new_ones(shape), p, shape)


_IN_VF: dict[str, Function] = {
    **{
        name + end: _dropout
        for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
        for end in ("", "_")
    },
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
}
"""Which function of `torch._VF`, where `torch.nn` and its `functional` find them, gets which."""

_IN_F: dict[str, Function] = {
    "scaled_dot_product_attention": _attention,
    "max_pool2d": _max_pool,
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), _layer),
}
"""The same of `torch.nn.functional`."""

_OF_LIBRARIES: dict[str, dict[str, Function]] = {
    "torchvision.ops.stochastic_depth": {"stochastic_depth": _stochastic_depth},
    "timm.layers.drop": {"drop_path": _drop_path},
}
"""The same of modules of other packages, once these are imported."""

vars(_VF).update({name: getattr(_VF, name) for name in _IN_VF})  # it looks them up elsewhere


@cache
def _places(*imported: bool) -> list[tuple[dict[str, Any], dict[str, Function]]]:
    """The namespaces, and the functions to put there."""
    libraries = zip(_OF_LIBRARIES.items(), imported, strict=True)
    found: dict[Any, dict[str, Function]] = {
        sys.modules[module]: new for (module, new), there in libraries if there
    }
    found |= {_VF: _IN_VF, F: _IN_F}
    return [
        (vars(place), {name: partial(ours, name, vars(place)[name]) for name, ours in new.items()})
        for place, new in found.items()
    ]
