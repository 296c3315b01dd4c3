"""Trials of model and method on two samples, before the first round."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from fl_lightning.core.losses import TaskLoss, is_cross_entropy, own_loss, scores_of
from fl_lightning.core.network import arguments, class_name, tied
from fl_lightning.core.randomness import seeded_rng
from fl_lightning.data import ClientData
from fl_lightning.errors import ModelError, UserError, first_sentence
from fl_lightning.executors import RoundInputs, SequentialExecutor
from fl_lightning.federation.local_training import LocalTraining
from fl_lightning.federation.loss_trials import check_classes, checked_loss

ONE_SAMPLE = "more than 1 value per channel"
"""PyTorch's message for a batch that BatchNorm cannot normalize."""


def try_visit(training: LocalTraining) -> None:
    """Let the first client of the next cohort take one step on two samples.

    It finds what executor and terms refuse in model and data. Any other error is ignored, since two
    samples may be too few for parts of a batch: a round raises it again, and names the client.
    Afterwards the module's weights are undefined.

    Raises:
        UserError: If the executor, a term or the aggregation weights refuse them.
    """
    executor, samples, server = training.executor, training.clients.dataset, training.server
    two = torch.arange(2, device=samples.device) % len(samples)
    batch = samples.inputs(two), samples.targets(two)
    executor.try_model(*batch)
    if not isinstance(executor, SequentialExecutor):  # which takes two samples as they are
        options: Any = {"loss": executor.loss, "autocast": executor.autocast}
        executor = SequentialExecutor(executor.module, executor.layout, **options)
    facts = training.round_facts(1)
    received = RoundInputs(server.algorithm, facts, server.states, server.buffers)
    try:
        cohort = training.sampler(training.clients.num_clients, server.seed, server.round)
        visit = training.visits(cohort, training.weights(cohort))[0]()
        one: Any = [batch]
        [*executor(received, [replace(visit, batches=one, lrs=visit.lrs[:1])])]
    except UserError:
        raise
    except Exception:
        return


def dry_run(
    module: nn.Module,
    clients: ClientData,
    loss: TaskLoss,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Run model and loss forward and back on two samples, and on one if an epoch may end with one.

    Nothing changes but `clients.single_batches`, which is False if the model has BatchNorm.

    Raises:
        ModelError: If the model does not take the samples, changes them or a parameter in place,
            replaces a buffer, keeps something else from step to step, has no trainable score for
            each label, or hooks on parameters; or if it has BatchNorm and a client has batches of
            one sample alone.
    """
    for name, p in module.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            raise ModelError(
                f"parameter {name!r} of {class_name(module)} has a hook, which parallel clients "
                "and --compile ignore: remove it, and change the gradient in a term"
            )

    forward = partial(_forward, module, clients, autocast)
    # the first evaluation may come hours later; of a training step there is none
    for training in (True,) if loss is own_loss else (False, True):
        try:
            out, y = forward(2, training)
            if training:
                kept = _kept(module)
                forward(2, first=2)  # what it leaves would act on the next
                _check_repeats(out, forward(2)[0], module)
                if changed := [k for k, v in _kept(module).items() if kept.get(k, v) != v]:
                    raise ModelError(
                        f"{class_name(module)} counts or collects by its attribute {changed[0]!r} "
                        "in each step, which clients would pass on to one another: make it a buffer"
                    )
        except (torch.OutOfMemoryError, ModelError):
            raise
        except Exception as error:
            raise _does_not_take(module, clients, error, training) from error
        if is_cross_entropy(loss):
            check_classes(loss, scores_of(out), clients.dataset, module)
        with torch.enable_grad(), autocast():
            value = checked_loss(loss, out, y, clients.dataset, module)
    if not value.requires_grad:
        raise ModelError(
            f"the output of {class_name(module)} has no gradient: remove no_grad or detach from "
            "its forward"
        )
    trained = {k: p for k, p in module.named_parameters() if p.requires_grad}
    try:
        gradients = torch.autograd.grad(value, [*trained.values()], allow_unused=True)
    except RuntimeError as error:
        raise _does_not_take(module, clients, error) from error
    for name, g in zip(trained, gradients, strict=True):
        if g is not None and g.is_sparse:
            raise ModelError(
                f"the gradient of {name} in {class_name(module)} is sparse, but clients step one "
                "dense vector: leave out sparse=True"
            )
    if len(with_single_batch(clients)):
        try:
            out, y = forward(1)
            with torch.enable_grad(), autocast():
                value = loss(out, y)
            if value.requires_grad:  # not where a loss of pairs has none
                torch.autograd.grad(value, [*trained.values()], allow_unused=True)
        except (torch.OutOfMemoryError, ModelError):
            raise
        except Exception as error:
            if ONE_SAMPLE not in str(error):
                raise ModelError(
                    f"{class_name(module)} cannot take a batch of one sample, as an epoch may end "
                    f"with ({type(error).__name__}: {first_sentence(error)}): keep the batch's "
                    "dimension, as squeeze(-1) does, or choose another --batch-size"
                ) from error
            clients.single_batches = False
            if clients.batch_size == 1 or clients.sizes.min() == 1:
                raise ModelError(
                    f"{class_name(module)} has BatchNorm, which cannot train on one sample: raise "
                    "--batch-size, leave out clients with one sample, or use GroupNorm"
                ) from error


def _forward(
    module: nn.Module,
    clients: ClientData,
    autocast: Callable[[], AbstractContextManager[Any]],
    samples: int,
    training: bool = True,
    first: int = 0,
) -> tuple[Any, Any]:
    """The model's output for some samples, from the first on, and their targets.

    Raises:
        ModelError: If the model changes its input or a parameter in place, or replaces a buffer.
    """
    data, device = clients.dataset, next(module.parameters()).device
    index = (first + torch.arange(samples, device=data.device)) % len(data)
    x, y = data.inputs(index), data.targets(index)
    args, kwargs = arguments(x)
    given = tied(module, {name: b.clone() for name, b in module.named_buffers()})
    buffers = dict(given)
    versions = [t._version for t in tree_leaves(x)]
    weights = _places(module)
    with torch.enable_grad(), seeded_rng(0, device), autocast():
        out = functional_call(module.train(training), buffers, args, kwargs, tie_weights=False)
    if [t._version for t in tree_leaves(x)] != versions:
        # the second gradient of a step would be of another batch
        raise ModelError(
            f"{class_name(module)} changes its input in place: write x = x - m instead of "
            "x.sub_(m), and inplace=False"
        )
    if moved := [name for name, place in _places(module).items() if weights[name] != place]:
        raise ModelError(
            f"{class_name(module)} changes its parameter {moved[0]!r} in a step, which clients "
            "would pass on to one another: make it a buffer, of which each has its own"
        )
    if replaced := [name for name in given if buffers[name] is not given[name]]:
        raise ModelError(
            f"{class_name(module)} replaces its buffer {replaced[0]!r} by another tensor: "
            "change it in place, as buffer.copy_(...)"
        )
    return out, y


def _places(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Version and place of each parameter on the CPU; on a GPU cuDNN moves an LSTM's."""
    named = {name: p for name, p in module.named_parameters() if p.device.type == "cpu"}
    return {name: (p._version, p.data_ptr()) for name, p in named.items()}


def _does_not_take(
    module: nn.Module, clients: ClientData, error: Exception, training: bool = True
) -> ModelError:
    shape = "x".join(map(str, clients.dataset.shape))
    return ModelError(
        f"{class_name(module)} cannot take samples of shape {shape}"
        f"{'' if training else ' in evaluation'} ({type(error).__name__}: "
        f"{first_sentence(error)}): choose another model, or other data"
    )


def _check_repeats(out: Any, again: Any, module: nn.Module) -> None:
    """Raise a ModelError unless the same step from the same buffers has the same result."""
    first, second = ([*tree_leaves(o), None][0] for o in (out, again))
    if not (isinstance(first, Tensor) and first.is_floating_point() and first.numel()):
        return
    if first.device.type != "cpu":
        return  # a GPU may add in another order
    rounding = 8 * torch.finfo(first.dtype).eps * first.nan_to_num().abs().max().item()
    if not first.allclose(second, rtol=0, atol=rounding, equal_nan=True):
        raise ModelError(
            f"{class_name(module)} has another result when a step is repeated, so clients would "
            "pass something on: keep counts and states in buffers, and draw from torch's global "
            "generator"
        )


def _kept(module: nn.Module) -> dict[str, float]:
    """Numbers, and lengths of lists and the like, that parts of a module have as attributes."""
    parts, sized = getattr(module, "lightning_module", module).named_modules(), (list, dict, deque)
    own = [(f"{path}.{k}".lstrip("."), v) for path, part in parts for k, v in vars(part).items()]
    numbers = {name: value for name, value in own if isinstance(value, int | float)}
    return numbers | {name: len(value) for name, value in own if isinstance(value, sized)}


def with_single_batch(clients: ClientData) -> Tensor:
    """The clients whose samples leave one over at the end of an epoch."""
    return ((clients.sizes.long() - 1) % clients.batch_size == 0).nonzero().flatten()
