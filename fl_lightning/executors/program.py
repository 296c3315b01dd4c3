"""A function of tensors as one compiled program."""

from collections.abc import Callable, Iterator, Sequence
from signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fl_lightning.distributed.signals import STOP_SIGNALS
from fl_lightning.errors import ModelError, TermError, first_sentence
from fl_lightning.executors.graph_passes import (
    with_late_concatenation,
    with_onednn,
    with_vector_pooling,
)

Structure = Any
"""The structure of a tree: None is a leaf, else the keys or the type, and each part's."""


class Program:
    """A function, traced to tensor operations and compiled, once for each shape of its arguments.

    The trace goes through all Python in between (terms, hooks, autocast, `torch.func`, the backward
    pass), so the compiler gets a flat list of operations on tensors.

    Args:
        function: Takes and returns trees of tensors: dictionaries, lists and tuples; must not
            change its arguments. Leaves that are not tensors, such as a layout, are constants.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self._compiled: dict[Any, tuple[Callable[..., Any], Structure]] = {}

    def __call__(self, *trees: Any) -> Any:
        """The function's value.

        Raises:
            ModelError: If the function cannot be traced, e.g. as it branches on values of tensors.
        """
        leaves: list[Any] = []
        structure = _flatten(trees, leaves)
        tensors = _distinct([leaf for leaf in leaves if isinstance(leaf, Tensor)])
        key = structure, tuple((t.shape, t.stride(), t.dtype) for t in tensors)
        if key in self._compiled:
            run, out = self._compiled[key]
            return _unflatten(out, iter(run(*tensors)))
        # compilers inherit it: schedulers send their signals to all processes of a run
        before = pthread_sigmask(SIG_BLOCK, STOP_SIGNALS)
        try:
            run, out = self._compile(leaves, structure, tensors)
            values = run(*tensors)
        except (TermError, ModelError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {first_sentence(error)}"
            raise ModelError(
                f"this local step cannot be compiled ({reason}): train without --compile"
            ) from error
        finally:
            pthread_sigmask(SIG_SETMASK, before)
        self._compiled[key] = run, out
        return _unflatten(out, iter(values))

    def _compile(
        self, leaves: Sequence[Any], structure: Structure, tensors: Sequence[Tensor]
    ) -> tuple[Callable[..., Any], Structure]:
        out: list[Structure] = []

        def flat(*tensors: Tensor) -> list[Tensor]:
            rest = iter(tensors)
            complete = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            values: list[Tensor] = []
            out[:] = [_flatten(self.function(*_unflatten(structure, iter(complete))), values)]
            return values

        fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
        with fake:  # stand-ins, which take no memory on a GPU
            examples = [
                torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
                for t in tensors
            ]
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
        if tensors[0].device.type == "cpu":
            graph = with_vector_pooling(with_onednn(with_late_concatenation(graph)), examples)
        # a trace flattens `group_norm` by a view, but of channels-last images it is not contiguous
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
        graph.recompile()
        # kernels hold their number of threads; older compilers' caches ignore it unless it is named
        options = {"cpp.threads": torch.get_num_threads()}
        # `torch.compile` would check at each call what a program's key says already, for 0.1 to
        # 0.3 ms. Inductor uses its disk cache only in a tracing context.
        from torch import _inductor  # imports for seconds

        fake = FakeTensorMode(shape_env=ShapeEnv())
        with tracing(TracingContext(fake)):
            inputs: list[Any] = [fake.from_tensor(t, static_shapes=True) for t in tensors]
            return _inductor.compile(graph, inputs, options), out[0]


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    """Append a tree's leaves to a list. PyTorch's pytree takes a tenth of a small step's time."""
    kind = type(tree)
    if kind is dict:
        return tuple(tree), tuple([_flatten(part, leaves) for part in tree.values()])
    if kind is list or kind is tuple:
        return kind, tuple([_flatten(part, leaves) for part in tree])
    leaves.append(tree)
    return None


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind, parts = structure
    values = [_unflatten(part, leaves) for part in parts]
    return dict(zip(kind, values, strict=True)) if type(kind) is tuple else kind(values)


def _distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, repeated ones copied: a trace would merge them for all later calls."""
    seen: set[int] = set()
    return [t.clone() if id(t) in seen or seen.add(id(t)) else t for t in tensors]  # type: ignore[func-returns-value]
