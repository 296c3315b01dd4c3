"""What is about to run, for people."""

import torch
from torch import nn
from torch.optim import SGD

from fl_lightning.algorithm import Algorithm, by_size
from fl_lightning.budget import Budget
from fl_lightning.data import Dataset, Partition
from fl_lightning.federation import Federation
from fl_lightning.options import Options


def summary(
    o: Options, names: dict[str, str], train: Dataset, test: Dataset, partition: Partition, federation: Federation
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
    budget, device = Budget.of(federation, o.keep_checkpoints), federation.w.device.type
    threads = f", {torch.get_num_threads()} thread(s) each" if device == "cpu" else ""
    twice = o.sampling == "weighted" and federation.algorithm.weight is by_size
    own = _own_optimizer(federation.algorithm, o)
    return "\n".join(
        [
            f"{names['algorithm']} on {names['data']}: {len(train):,} training and {len(test):,} test samples, "
            f"{o.clients:,} clients, {100 * o.participation:.3g}% a round, {o.rounds:,} rounds, seed {o.seed}",
            f"{names['model']}: {d:,} parameters; a client sends {cost.uplink / d:.3g} and receives "
            f"{cost.downlink / d:.3g} times that, keeps {cost.client_state / d:.3g} times, and evaluates "
            f"{cost.gradients} gradient(s) a step; {federation.fabric.world_size} rank(s) on {device}{threads}",
            *([f"{names['algorithm']} brings {own}: --lr, --momentum and --weight-decay do not count"] if own else []),
            *([f"{names['algorithm']} weighs clients by size, as their draw does: it counts twice"] if twice else []),
            *([f"{names['algorithm']}, {budget}"] if budget.row else []),
            partition.describe(train.y, train.classes),
        ]
    )


def _own_optimizer(algorithm: Algorithm, o: Options) -> str:
    """The local optimizer in a few words, if it is not that of the options."""
    optimizer = algorithm.local([nn.Parameter(torch.zeros(1))])
    group = optimizer.param_groups[0]
    made = [group.get(name) for name in ("lr", "momentum", "weight_decay")]
    if type(optimizer) is SGD and made == [o.lr, o.momentum, o.weight_decay]:
        return ""
    return f"a local {type(optimizer).__name__} of learning rate {group['lr']:g}"
