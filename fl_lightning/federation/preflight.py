"""What can be found out before round 1: whether setting, optimizers, model and data go together."""

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, get_args

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from fl_lightning.core.algorithm import Algorithm, dummy_facts
from fl_lightning.core.term import States, init_states
from fl_lightning.core.vector import Layout
from fl_lightning.data import ClientData
from fl_lightning.errors import ModelError, first_sentence
from fl_lightning.executors.executor import TaskLoss
from fl_lightning.federation.divergence import OnDivergence

if TYPE_CHECKING:
    from fl_lightning.federation.federation import Federation

PRECISIONS = "32-true", "bf16-mixed"
"""What Fabric's precision may be: it rules the arithmetic of forward passes."""

ONE_SAMPLE = "more than 1 value per channel"
"""What PyTorch's BatchNorm says of a batch that it cannot normalise."""


def check_setting(fabric: Fabric, clients: ClientData, rounds: int, on_divergence: str) -> None:
    """Raise a ValueError unless a federation can be made of these."""
    if rounds < 1:
        raise ValueError(f"a simulation has at least one round, not {rounds}")
    if on_divergence not in get_args(OnDivergence):
        raise ValueError(
            f"on_divergence is one of {', '.join(get_args(OnDivergence))}, not {on_divergence!r}"
        )
    if clients.dataset.x.device != fabric.device:
        raise ValueError(
            f"the clients' data lie on {clients.dataset.x.device}, and the models train on {fabric.device}: give "
            "ClientData the data set as `dataset.to(fabric.device)`"
        )
    precision = fabric.strategy.precision.precision
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision {precision} would not be kept: weights, duals and averages have the module's own "
            f"dtype; choose {' or '.join(PRECISIONS)}, and module.double() for 64 bits"
        )


def dry_run(federation: "Federation", loss: TaskLoss) -> None:
    """Run the model on two samples, and on one if a client has a batch of one; nothing is changed by it.

    Args:
        federation: With its model and data.
        loss: The task's loss.

    Raises:
        ModelError: If the model cannot take them, or cannot train on one sample; or, where it
            classifies, has no score for each label, or none that can be trained.
    """
    module, clients = federation.module, federation.clients
    for training in (True, False):
        out = _taken(federation, training)
        if loss is nn.functional.cross_entropy:
            _check_scores(federation, out, training)
    alone = with_single_samples(clients)
    if len(alone) and not _takes_one(federation):
        raise ModelError(
            f"{type(module).__name__} cannot train {_whom(clients, alone)}; {_mend(clients)}"
        )


def _taken(federation: "Federation", training: bool) -> object:
    """The model's output for two samples."""
    data, name = federation.clients.dataset, type(federation.module).__name__
    kind, theirs = "images" if len(data.shape) == 3 else "samples", federation.w.dtype
    try:
        return _forward(federation, 2, training)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_sentence(error)}"
        what = f"{kind} of shape {'x'.join(map(str, data.shape))}{'' if training else ' in evaluation'} ({reason})"
        mend = f"choose a model that takes them, or {kind} of another size"
        given = data.x.dtype if data.x.is_floating_point() else torch.float32
        if given != theirs:
            mend = f"they are {given} and its parameters {theirs}: give both one number type, as x.float() does"
        raise ModelError(f"{name} cannot take {what}: {mend}") from error


def _check_scores(federation: "Federation", out: object, training: bool) -> None:
    """Raise a ModelError unless these are scores, (2, classes), that can be trained."""
    name, data = type(federation.module).__name__, federation.clients.dataset
    when = "training" if training else "evaluation"
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != 2:
        given = (
            f"a tensor of shape {tuple(out.shape)}"
            if isinstance(out, Tensor)
            else f"a {type(out).__name__}"
        )
        raise ModelError(
            f"{name} returns {given} for two samples in {when}: let it return a tensor of scores, (samples, classes)"
        )
    highest = int(data.y.max())
    if highest >= out.shape[1]:
        raise ModelError(
            f"{name} has {out.shape[1]} outputs, but there are labels up to {highest} ({data.classes[highest]}): "
            f"give it {len(data.classes)} outputs, one for each class"
        )
    if training and not out.requires_grad:
        raise ModelError(
            f"{name} cannot be trained: its output has no gradient, as after no_grad or detach in forward"
        )


def check_optimizers(algorithm: Algorithm, w: Tensor) -> None:
    """Raise a ValueError unless both optimizers take a step on a vector like `w` with its gradient."""
    for kind, make in (("local", algorithm.local), ("server", algorithm.server)):
        vector = nn.Parameter(w.clone())
        vector.grad, optimizer = torch.ones_like(w), make([vector])
        try:
            if not isinstance(optimizer, Optimizer):
                raise TypeError("it is no torch.optim.Optimizer")
            optimizer.step()
        except (TypeError, RuntimeError) as error:
            raise ValueError(
                f"the {kind} optimizer, {type(optimizer).__name__}, cannot take a step on one vector with its gradient "
                f"({first_sentence(error)}): choose another, as torch.optim.SGD"
            ) from error


def message_template(
    algorithm: Algorithm, layout: Layout, first: Tensor, shared: Sequence[States], classes: int
) -> list[Any]:
    """A message of no client, for its structure: a rank may have no client to learn it from.

    Args:
        algorithm: Whose message it is.
        layout: The model's.
        first: w^0.
        shared: The server's states.
        classes: How many there are in the data.
    """
    facts = dummy_facts(layout, first, classes)
    states = [init_states({**term.client, **term.local}, first, first) for term in algorithm.terms]
    w, states = algorithm.start(first, facts, states, shared)
    return algorithm.report(w.clone(), facts, states, shared)[0]


def with_single_samples(clients: ClientData) -> Tensor:
    """The clients with a batch of one sample: what is left over at the end of an epoch, if their visits come so far."""
    sizes, size = clients.sizes.long(), clients.batch_size
    batches = (sizes + size - 1) // size
    steps = (
        clients.steps
        if clients.steps is not None
        else (clients.epochs * batches).round().clamp(min=1)
    )
    return ((sizes - (batches - 1) * size == 1) & (batches <= steps)).nonzero().flatten()


def single_sample(error: Exception) -> ModelError | None:
    """The error of a batch of one sample that BatchNorm met in training, as a sentence; None if it is another error.

    A term may split batches in parts, which `dry_run` cannot know.
    """
    if ONE_SAMPLE not in str(error):
        return None
    return ModelError(
        "BatchNorm cannot train on a single sample, but met one, alone in its batch or in the part of it that the "
        "algorithm looks at: choose a model without BatchNorm (GroupNorm takes any batch), or a --batch-size that "
        "leaves more over"
    )


def _forward(federation: "Federation", samples: int, training: bool = True) -> object:
    """The model's output; running statistics and random numbers stay as they are."""
    module, data = federation.module, federation.clients.dataset
    x = data.inputs(torch.arange(samples, device=data.x.device) % len(data))
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = [federation.w.device] if federation.w.is_cuda else []
    with torch.enable_grad(), torch.random.fork_rng(devices), federation.fabric.autocast():
        return functional_call(module.train(training), buffers, (x,))


def _takes_one(federation: "Federation") -> bool:
    """Whether the model trains on a single sample: without BatchNorm, or where that sees several pixels."""
    try:
        _forward(federation, 1)
    except ValueError as error:
        if ONE_SAMPLE not in str(error):
            raise
        return False
    return True


def _whom(clients: ClientData, alone: Tensor) -> str:
    first = int(alone[0])
    others = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
    return (
        f"client {first}{others}: its {int(clients.sizes[first])} samples in batches of {clients.batch_size} leave one "
        "alone in the last, and BatchNorm cannot normalise a single sample"
    )


def _mend(clients: ClientData) -> str:
    """A batch size near the chosen one that leaves no sample alone, if there is one, and what else would help."""
    sizes, chosen = clients.sizes.long(), clients.batch_size
    near = sorted(range(2, 2 * chosen + 2), key=lambda size: abs(size - chosen))
    fitting = next((size for size in near if not (sizes % size == 1).any()), None)
    other = f"take --batch-size {fitting}, which leaves none alone, or" if fitting else "choose"
    return f"{other} a model without BatchNorm (GroupNorm takes any batch), or another partition"


def sync_ranks(fabric: Fabric, module: nn.Module, clients: ClientData) -> None:
    """Give every rank the first one's initial model, and compare their data.

    Raises:
        ValueError: On every rank, if one of them has other data than the first.
    """
    if fabric.world_size == 1:
        return
    mine = _digest(clients)
    apart = torch.zeros(fabric.world_size, device=fabric.device)
    apart[fabric.global_rank] = mine != fabric.broadcast(mine)
    fabric.all_reduce(apart, reduce_op="sum")
    for rank in apart.nonzero().flatten().tolist():
        raise ValueError(
            f"rank {rank} has other data, or another partition, than the first: whatever is drawn at random in loading "
            "or splitting them needs a generator with a seed of its own, the same on every rank"
        )
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.copy_(
                fabric.broadcast(tensor.detach().cpu())
            )  # or it would come from the first GPU on each rank


def _digest(clients: ClientData) -> str:
    """Of labels, partition and three samples: those of a memory map are not all read."""
    data = clients.dataset
    few = data.inputs(torch.tensor([0, len(data) // 2, len(data) - 1], device=data.x.device))
    return clients.digest + sha256(few.float().cpu().contiguous().numpy().tobytes()).hexdigest()
