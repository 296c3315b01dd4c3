"""What is about to run, for people."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import SGD

from fl_lightning.cli.options import Options
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.prediction import from_logits
from fl_lightning.core.term import Term
from fl_lightning.core.weighting import by_size
from fl_lightning.data import DeviceDataset, Partition
from fl_lightning.federation.federation import Federation
from fl_lightning.federation.sampling import largest_cohort
from fl_lightning.terms.wrapper import WrappedTerm


def summary(
    o: Options,
    names: dict[str, str],
    train: DeviceDataset,
    test: DeviceDataset,
    partition: Partition,
    federation: Federation,
) -> str:
    """Data, clients, model, what it costs, and who holds what.

    Args:
        o: The options of the run.
        names: What was chosen as "algorithm", "data" and "model".
        train: The training set.
        test: The test set.
        partition: Who holds which sample.
        federation: Before its rounds.
    """
    cost, d = federation.cost, sum(p.numel() for p in federation.module.parameters())
    budget, device = federation.disk_budget(o.keep_checkpoints), federation.w.device.type
    threads = f", {torch.get_num_threads()} thread(s) each" if device == "cpu" else ""
    return "\n".join(
        [
            f"{names['algorithm']} on {names['data']}: {len(train):,} training and {len(test):,} test samples, "
            f"{o.clients:,} clients, {100 * o.participation:.3g}% a round, {o.rounds:,} rounds, seed {o.seed}",
            f"{names['model']}: {d:,} parameters; a client sends {cost.uplink / d:.3g} and receives "
            f"{cost.downlink / d:.3g} times that, keeps {cost.client_state / d:.3g} times, and evaluates "
            f"{cost.gradients} gradient(s) a step; {federation.fabric.world_size} rank(s) on {device}{threads}",
            *_surprises(names["algorithm"], o, federation),
            *([f"{names['algorithm']}, {budget}"] if budget.row else []),
            partition.describe(train.y, train.classes),
        ]
    )


def _surprises(name: str, o: Options, federation: Federation) -> Iterator[str]:
    """What the options come to beside each other and with these data, where it is not what they say."""
    algorithm, clients = federation.algorithm, federation.clients
    if own := _own_optimizer(algorithm, o):
        yield f"{name} brings {own}: --lr, --momentum and --weight-decay do not count"
    cohort = largest_cohort(federation.sampler, o.clients)
    if o.sampling == "weighted" and algorithm.weight is by_size and cohort < o.clients:
        yield f"{name} weighs clients by size, as their draw does: it counts twice"
    if not o.finetune_epochs and (
        algorithm.predict is not from_logits or not algorithm.trains_head or _own(algorithm)
    ):
        yield f"{name} is for clients' own models, which --finetune-epochs 1,5 scores; test accuracy is the global model's"
    if o.sampling != "bernoulli" and _apart(cohort / o.clients, o.participation):
        yield f"--participation {o.participation:g} of {o.clients:,} clients comes to {cohort:,} in a round"
    passes = (clients.sizes / o.batch_size).ceil()
    epochs = ((o.local_epochs * passes).round().clamp(min=1) / passes).mean().item()
    if o.local_steps is None and _apart(epochs, o.local_epochs):
        yield f"--local-epochs {o.local_epochs:g} comes to {epochs:.2g} on average, as each client takes whole steps"
    if o.compile and clients.sizes.max() < o.batch_size:
        yield f"--compile compiles nothing, as no client has a full batch of {o.batch_size:,} samples"


def _apart(actual: float, asked: float) -> bool:
    """Whether rounding to whole clients or steps has made another number of it."""
    return abs(actual - asked) > 0.1 * asked


def _own(algorithm: Algorithm) -> bool:
    """Whether a term gives clients models that are not the global one."""
    terms = [term.inner if isinstance(term, WrappedTerm) else term for term in algorithm.terms]
    return any(type(term).personal is not Term.personal for term in terms)


def _own_optimizer(algorithm: Algorithm, o: Options) -> str:
    """The local optimizer in a few words, if it is not that of the options."""
    optimizer = algorithm.local([nn.Parameter(torch.zeros(1))])
    group = optimizer.param_groups[0]
    made = [group.get(name) for name in ("lr", "momentum", "weight_decay")]
    if type(optimizer) is SGD and made == [o.lr, o.momentum, o.weight_decay]:
        return ""
    return f"a local {type(optimizer).__name__} of learning rate {group['lr']:g}"
