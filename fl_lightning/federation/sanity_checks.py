"""Checks before the first round: settings, ranks, optimizers, and the model on two samples."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, get_args

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.losses import TaskLoss, cross_entropy, scores_of
from fl_lightning.core.network import arguments, class_name, tied
from fl_lightning.core.term import Term
from fl_lightning.core.vector import Layout, Part
from fl_lightning.data import ClientData
from fl_lightning.data.dataset import is_image
from fl_lightning.errors import ModelError, UserError, first_sentence
from fl_lightning.federation.divergence import OnDivergence
from fl_lightning.optim import check_minimizes

PRECISIONS = "32-true", "bf16-mixed"
"""Fabric's precisions that keep weights, duals and averages in the module's dtype."""

ONE_SAMPLE = "more than 1 value per channel"
"""PyTorch's message for a batch that BatchNorm cannot normalize."""


def freeze_others(module: nn.Module, trained: Part | None) -> list[str]:
    """Freeze the parameters that are not of the part that is trained; None is all of them.

    Returns:
        Their names.

    Raises:
        ModelError: If nothing would be left to train.
    """
    if trained is None:
        return []
    layout = Layout(module)
    others = [name for name in layout.names if not layout.has(trained, name)]
    if len(others) == len(layout.names):
        why = "is all head" if trained == "body" else f"has no parameter of the part {trained!r}"
        raise ModelError(
            f"{class_name(module)} {why}, and the algorithm trains the part {trained!r} alone: "
            "choose another model, or another algorithm"
        )
    for name in others:
        module.get_parameter(name).requires_grad_(False)
    return others


def check_personal_part(term: Term, layout: Layout) -> None:
    """Raise a UserError unless clients keep some parameters for themselves and share others."""
    own = [term.keeps is not None and layout.has(term.keeps, name) for name in layout.names]
    if term.keeps is None or (any(own) and not all(own)):
        return
    held = "all parameters are" if any(own) else "the model has no parameter"
    raise UserError(
        f"{held} of the part {term.keeps!r} that each client keeps for itself: choose another "
        "part, or another model"
    )


def check_settings(fabric: Fabric, clients: ClientData, on_divergence: str) -> None:
    """Raise a ValueError unless a federation can be made of these."""
    if on_divergence not in get_args(OnDivergence):
        choices = ", ".join(get_args(OnDivergence))
        raise UserError(f"on_divergence is one of {choices}, not {on_divergence!r}")
    if clients.dataset.device != fabric.device:
        raise UserError(
            f"the clients' data are on {clients.dataset.device}, the models on {fabric.device}: "
            "give ClientData `dataset.to(fabric.device)`"
        )
    precision = fabric.strategy.precision.precision
    if precision not in PRECISIONS:
        raise UserError(
            f"precision {precision} is not supported: choose {' or '.join(PRECISIONS)}, and "
            "module.double() for 64 bits"
        )


def check_optimizers(algorithm: Algorithm, w: Tensor) -> None:
    """Raise an error unless both optimizers minimize, and step on a vector like `w` in place."""
    for make in (algorithm.local, algorithm.server):
        vector = nn.Parameter(w.clone())
        vector.grad, optimizer, place = torch.ones_like(w), make([vector]), vector.data_ptr()
        optimizer.step()
        check_minimizes(optimizer)
        if vector.data_ptr() != place:
            raise UserError(
                f"{type(optimizer).__name__} replaces the data of its parameter: "
                "change it in place, as p.sub_(...) under torch.no_grad()"
            )


def sync_ranks(fabric: Fabric, module: nn.Module, clients: ClientData) -> None:
    """Broadcast the first rank's model, and raise a ValueError if a rank has other data."""
    differs = torch.zeros(fabric.world_size, device=fabric.device)
    differs[fabric.global_rank] = clients.digest != fabric.broadcast(clients.digest)
    fabric.all_reduce(differs, reduce_op="sum")
    for rank in differs.nonzero().flatten().tolist():
        raise UserError(
            f"rank {rank} has other data, or another partition, than the first rank: seed every "
            "generator that loads or splits data, equally on all ranks"
        )
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            # From the CPU, or every rank would allocate on the first GPU.
            tensor.copy_(fabric.broadcast(tensor.detach().cpu()))


def check_cohort(cohort: Sequence[int], clients: ClientData, source: str) -> None:
    """Raise a ValueError, naming the source, unless a cohort has each client once, ascending."""
    last = clients.num_clients - 1
    if not cohort or sorted({*cohort}) != [*cohort] or cohort[0] < 0 or cohort[-1] > last:
        shown = ", ".join(map(str, cohort[:5])) + ", ..." * (len(cohort) > 5)
        raise UserError(
            f"{source} gave the cohort [{shown}]: return at least one client of 0 to {last}, each "
            "once, ascending"
        )


def check_checkpoint(state: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the `state_dict` of a federation has these settings."""
    for name, value in ours.items():
        if state[name] != value:
            raise UserError(
                f"the checkpoint has {name} {state[name]}, this run {value}: "
                f"resume with equal {name}"
            )


def check_checkpoint_rounds(state: Mapping[str, Any], rounds: int, has_horizon: bool) -> None:
    """Raise a ValueError unless a run of this many rounds may continue from a checkpoint.

    The number must be as before if the method has a horizon.
    """
    check_checkpoint(state, {"rounds": rounds} if has_horizon else {})
    if state["round"] > rounds:
        raise UserError(
            f"the checkpoint is of round {state['round']}, this run ends with {rounds}: give more"
        )


def dry_run(
    module: nn.Module,
    clients: ClientData,
    loss: TaskLoss,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Run the model forward and back on two samples, and on one if a client has a batch of one.

    Nothing changes.

    Raises:
        ModelError: If the model does not take the samples, changes them in place, replaces a
            buffer, cannot train on a single one, has no trainable score for each label, or hooks on
            parameters.
    """
    for name, p in module.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            raise ModelError(
                f"parameter {name!r} of {class_name(module)} has a hook, which parallel clients "
                "and --compile ignore: remove it, and change the gradient in a term"
            )

    def forward(samples: int, training: bool = True) -> tuple[Any, Any]:
        data, device = clients.dataset, next(module.parameters()).device
        index = torch.arange(samples, device=data.device) % len(data)
        x, y = data.inputs(index), data.targets(index)
        args, kwargs = arguments(x)
        given = tied(module, {name: b.clone() for name, b in module.named_buffers()})
        buffers, devices = dict(given), [device] if device.type == "cuda" else []
        versions = [t._version for t in tree_leaves(x)]
        with torch.enable_grad(), torch.random.fork_rng(devices), autocast():
            out = functional_call(module.train(training), buffers, args, kwargs, tie_weights=False)
        if [t._version for t in tree_leaves(x)] != versions:
            # the second gradient of a step would be of another batch
            raise ModelError(
                f"{class_name(module)} changes its input in place: write x = x - m instead of "
                "x.sub_(m), and inplace=False"
            )
        if replaced := [name for name in given if buffers[name] is not given[name]]:
            raise ModelError(
                f"{class_name(module)} replaces its buffer {replaced[0]!r} by another tensor: "
                "change it in place, as buffer.copy_(...)"
            )
        return out, y

    for training in (True, False):
        try:
            out, y = forward(2, training)
        except (torch.OutOfMemoryError, ModelError):
            raise
        except Exception as error:
            raise _does_not_take(module, clients, training, error) from error
        if clients.dataset.classes and loss in (cross_entropy, nn.functional.cross_entropy):
            _check_scores(module, clients, scores_of(out), training)
        with torch.enable_grad(), autocast():
            value = _checked_loss(loss, out, y, module)
        if training:
            _check_gradient(value, module, clients)
    if len(alone := with_single_samples(clients)):
        try:
            forward(1)
        except ValueError as error:
            if ONE_SAMPLE not in str(error):
                raise
            raise ModelError(
                f"{class_name(module)} has BatchNorm, which cannot train client "
                f"{int(alone[0])}'s last batch of one sample: use GroupNorm, or change --batch-size"
            ) from error


def _does_not_take(
    module: nn.Module, clients: ClientData, training: bool, error: Exception
) -> ModelError:
    data, dtype = clients.dataset, next(module.parameters()).dtype
    given = torch.float32 if is_image(data.first) else data.first.dtype
    fix = "choose another model, or other data"
    if given.is_floating_point and given != dtype:
        fix = f"they are {given}, its parameters {dtype}: convert one, as x.float() does"
    return ModelError(
        f"{class_name(module)} cannot take samples of shape {'x'.join(map(str, data.shape))}"
        f"{'' if training else ' in evaluation'} ({type(error).__name__}: "
        f"{first_sentence(error)}): {fix}"
    )


def _check_scores(module: nn.Module, clients: ClientData, out: object, training: bool) -> None:
    """Raise a ModelError unless these are scores, (2, classes), for each label."""
    name, data = class_name(module), clients.dataset
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != 2:
        of_shape = isinstance(out, Tensor) and f"a tensor of shape {tuple(out.shape)}"
        given, when = of_shape or type(out).__name__, "training" if training else "evaluation"
        raise ModelError(
            f"{name} returns {given} for two samples in {when}: return scores, (samples, classes)"
        )
    highest = int(data.y.max())
    if highest >= out.shape[1]:
        raise ModelError(
            f"{name} has {out.shape[1]} outputs, but there are labels up to {highest} "
            f"({data.classes[highest]}): give it {len(data.classes)} outputs"
        )


def _checked_loss(loss: TaskLoss, out: Any, y: Any, module: nn.Module) -> Tensor:
    """The loss of two samples.

    Raises:
        ModelError: If it cannot be computed, or is no single number.
    """
    try:
        value = loss(out, y)
    except ModelError:
        raise
    except Exception as error:
        kinds = ", ".join(f"{t.dtype} of shape {tuple(t.shape)}" for t in tree_leaves(y))
        name = getattr(loss, "__name__", type(loss).__name__)
        raise ModelError(
            f"the loss {name} cannot compare the output of {class_name(module)} with two "
            f"targets, {kinds} ({first_sentence(error)}): choose another loss, such as mse, or "
            "other targets"
        ) from error
    if not isinstance(value, Tensor) or value.ndim:
        shown = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ModelError(
            f"the loss of the task returned {shown}, not one number: return a 0-dim tensor such as "
            "the mean over the batch"
        )
    return value


def _check_gradient(value: Tensor, module: nn.Module, clients: ClientData) -> None:
    """Raise a ModelError unless the loss can be differentiated."""
    if not value.requires_grad:
        raise ModelError(
            f"the output of {class_name(module)} has no gradient: remove no_grad or detach from "
            "its forward"
        )
    try:
        trained = [p for p in module.parameters() if p.requires_grad]
        torch.autograd.grad(value, trained, allow_unused=True)
    except RuntimeError as error:
        raise _does_not_take(module, clients, True, error) from error


def with_single_samples(clients: ClientData) -> Tensor:
    """The clients with a batch of one sample, which is left over at the end of an epoch."""
    sizes, size = clients.sizes.long(), clients.batch_size
    batches = (sizes + size - 1) // size
    steps = (clients.epochs * batches).round().clamp(min=1)
    last = batches <= (steps if clients.steps is None else clients.steps)
    return ((sizes - (batches - 1) * size == 1) & last).nonzero().flatten()


def single_sample(error: Exception) -> ModelError | None:
    """A sentence for BatchNorm's error on a single sample; None for any other error.

    A term may split batches in parts, which `dry_run` cannot know.
    """
    if ONE_SAMPLE not in str(error):
        return None
    return ModelError(
        "BatchNorm met a single sample, alone in its batch or in the part of it that the algorithm "
        "uses: choose a model without BatchNorm, or another --batch-size"
    )
