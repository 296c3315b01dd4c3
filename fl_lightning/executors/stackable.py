"""Whether a model can train several clients in parallel, and the sentence if it cannot."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from fl_lightning.core.guarded_term import IN_PARALLEL
from fl_lightning.core.network import FunctionalModel, class_name
from fl_lightning.core.randomness import generator_states, seeded_rng
from fl_lightning.core.substitution import substituted
from fl_lightning.errors import ModelError, TermError, first_sentence
from fl_lightning.executors.executor import Executor

INSTEAD = "train it with the sequential executor, without --compile"


def _draws(name: str) -> ModelError:
    return ModelError(
        f"{name} draws random numbers that parallel clients and --compile cannot repeat: use "
        f"torch.nn.functional.dropout for them, or {INSTEAD}"
    )


@contextmanager
def blame_model(name: str = "this model or its loss") -> Iterator[None]:
    """Turn PyTorch's errors about code that cannot run in parallel into a ModelError."""
    try:
        yield
    except (TermError, ModelError):
        raise
    except GuardOnDataDependentSymNode as error:
        raise ModelError(
            f"{name} branches on the value of a tensor, which cannot be compiled: "
            "train without --compile"
        ) from error
    except RuntimeError as error:
        if "randomness" in str(error):
            raise _draws(name) from error
        if not any(said in str(error) for said in IN_PARALLEL):
            raise
        raise ModelError(
            f"{name} cannot run for several clients in parallel ({first_sentence(error)}): "
            f"{INSTEAD}"
        ) from error


def try_in_parallel(executor: Executor, x: Any, batched: bool) -> None:
    """Run the model's training pass on samples `x`, under `vmap` if `batched`.

    Nothing changes.

    Raises:
        ModelError: If the model draws random numbers other than dropout's, or cannot run for
            several clients.
    """
    module, layout = executor.module, executor.layout
    buffers = {**dict(module.named_buffers()), **executor.dropout_key(0)}

    def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Any) -> Tensor:
        moved = {name: b.clone() for name, b in buffers.items()}
        FunctionalModel(module, layout, buffers, weights, moved).forward(x)
        return torch.zeros(())

    given = tree_map(Tensor.detach, (dict(module.named_parameters()), buffers, x))
    training, name = module.training, class_name(module)
    module.train()
    try:
        with (
            seeded_rng(0, executor.device),
            refused_draws(executor.device, name),
            blame_model(name),
            substituted(batched=True),
            executor.autocast(),
            full_batchnorm(module),
        ):
            if not batched:
                one(*given)
            else:
                rows = tree_map(lambda t: t.expand(2, *t.shape), given)
                vmap(one, randomness="error")(*rows)
    finally:
        module.train(training)


@contextmanager
def refused_draws(
    device: torch.device, name: str = "this model, its loss or a term"
) -> Iterator[None]:
    """Raise a ModelError that names who draws, after a step that moved a global generator."""
    before = generator_states(device)
    yield
    if generator_states(device) != before:
        raise _draws(name)


@contextmanager
def full_batchnorm(module: nn.Module) -> Iterator[None]:
    """Give BatchNorm inputs of its own dtype: vmap requires it, and autocast leaves them bf16."""

    def convert(norm: nn.Module, args: Any, kwargs: Any) -> tuple[tuple[Tensor], dict[str, Any]]:
        x = next(iter((*args, *kwargs.values())))
        own = next(chain(norm.parameters(), norm.buffers()), x)
        return (x.to(own.dtype),), {}

    norms = [child for child in module.modules() if isinstance(child, _BatchNorm)]
    hooks = [norm.register_forward_pre_hook(convert, with_kwargs=True) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
