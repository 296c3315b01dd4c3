"""Ways to split a labeled data set over clients.

Every scheme is a function `scheme(y, clients, seed, *, ...) -> Partition` of the (n,) int64 labels,
the number of clients and a seed. All end in bounded time. All but `label_prior(reuse=True)` give
every sample to exactly one client. They raise a UserError for numbers out of range and for
splits that are impossible with the data.
"""

from pathlib import Path

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fl_lightning.core.constraints import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    checked,
)
from fl_lightning.core.randomness import generator
from fl_lightning.data.partition import Partition
from fl_lightning.data.partition_draws import (
    check_labels,
    draw_classes,
    equal_turns,
    even_shares,
    log_dirichlet,
    log_normal_shares,
    random_classes,
    rank_within,
    resize,
    shares_by_class,
    water_level,
)
from fl_lightning.data.rows import tensors
from fl_lightning.errors import UserError

TRADES = 20
"""Rounds of pairwise trades after which the classes in `pathological` are well mixed."""


@checked
def iid(
    y: Tensor, clients: int, seed: int, *, sigma: NonNegativeFloat = 0.0, stratified: bool = False
) -> Partition:
    """Random parts of the data: FedSSG's IID, and FL-Simulator's on CIFAR-100 if stratified.

    Args:
        sigma: Spread of the log-normal sizes; with 0 they differ by one at most.
        stratified: Give every client its share of every class, within two samples where sizes are
            equal, not only on average.
    """
    y = check_labels(y, clients)
    order = torch.randperm(len(y), generator=generator(seed, "partition"))
    owners = log_normal_shares(len(y), clients, sigma, generator(seed, "partition sizes"))
    if stratified:
        order = order[y[order].argsort(stable=True)]
        # clients take turns, the large ones more often
        turn = (rank_within(owners) + 0.5) / owners.bincount()[owners]
        owners = owners[turn.argsort(stable=True)]
    return Partition.from_owners(owners, clients, order)


@checked
def dirichlet(
    y: Tensor,
    clients: int,
    seed: int,
    *,
    alpha: PositiveFloat = 0.1,
    min_size: NonNegativeInt = 10,
    self_balancing: bool = True,
    balanced: bool = False,
) -> Partition:
    """Label skew: each class is divided among the clients in proportions q ~ Dirichlet(alpha).

    This is LDA, as in FedSOL and FedNTD. Their code redraws the whole split until every client
    holds `min_size` samples, thousands of times at alpha = 0.05. Here samples move from the largest
    clients to those that lack some, in runs from one giver, so that the skew stays. The Dirichlet
    of FedSSG, FedLESAM and FedTOGA is `label_prior`.

    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019, arXiv:1909.06335.

    Args:
        alpha: Concentration; the smaller, the fewer clients share a class.
        min_size: The smallest number of samples of a client.
        self_balancing: A client that holds n / clients of the n samples gets no further classes, as
            in the papers' code; False is the plain LDA of Hsu et al.
        balanced: Make sizes differ by one at most; costs some of the skew.
    """
    y, n, g = check_labels(y, clients), len(y), generator(seed, "partition")
    if clients * min_size > n:
        raise UserError(
            f"min_size is {min_size}, but {n} samples over {clients} clients allow at most "
            f"{n // clients}: lower it or the number of clients"
        )
    owners = torch.empty(n, dtype=torch.int64)
    sizes = torch.zeros(clients, dtype=torch.int64)
    for label in y.bincount().nonzero():
        samples = (y == label).nonzero().flatten()
        samples = samples[torch.randperm(len(samples), generator=g)]
        full = (sizes * clients >= n) & self_balancing
        q = log_dirichlet(alpha, (clients,), g).masked_fill(full, -torch.inf).softmax(0)
        share = q.cumsum(0)
        cuts = (share / share[-1] * len(samples)).long()
        counts = cuts.diff(prepend=cuts.new_zeros(1))
        owners[samples] = torch.arange(clients).repeat_interleave(counts)
        sizes += counts
    target = even_shares(n, clients).bincount() if balanced else water_level(sizes, min_size, n)
    return Partition.from_owners(resize(owners, target, g), clients)


@checked
def label_prior(
    y: Tensor,
    clients: int,
    seed: int,
    *,
    alpha: PositiveFloat | None = None,
    classes: PositiveInt | None = None,
    reuse: bool = False,
    size: PositiveInt | None = None,
    sigma: NonNegativeFloat = 0.0,
) -> Partition:
    """Each client draws its samples from a random distribution of labels; sizes are equal.

    The Dirichlet (`alpha`) and pathological (`classes`) splits of FedSMOO, FedLESAM and FedTOGA,
    with `reuse=True`, and of FedDyn, FedDC and FedSSG, without. The code of these three also has
    unequal sizes (`sigma=0.3`), and all clients that lack samples draw equally often, so that small
    ones hold fewer classes. The remainder goes to the first clients, one each; FedSSG's code rounds
    CIFAR over 100 clients to one of 599 and 99 of 499.

    Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, arXiv:2111.04263;
    FL-Simulator (github.com/woodenchild95/FL-Simulator) for reuse.

    Args:
        alpha: Draw each client's prior from Dirichlet(alpha, ..., alpha); or give `classes`.
        classes: Make each client's prior uniform over this many random classes; or give `alpha`.
            Without `reuse` classes run out and a client gets others too, unlike in `pathological`.
        reuse: Draw an exhausted class again from its first sample, so that samples may be held more
            than once or never. Without it every sample is held exactly once, and clients whose
            classes are exhausted draw from what is left.
        size: Mean number of samples of a client, with `reuse`; clients may then outnumber samples.
            By default the samples are divided among the clients.
        sigma: Spread of the log-normal sizes; with 0 they differ by one at most.
    """
    if size is not None and not reuse:
        raise UserError(f"size is {size} without reuse: give both, or omit size")
    y = check_labels(y, clients if size is None else min(clients, len(y)))
    g = generator(seed, "partition")
    counts, total = y.bincount(), len(y) if size is None else clients * size
    if (alpha is None) == (classes is None):
        raise UserError(f"alpha is {alpha} and classes is {classes}: give exactly one of them")
    if alpha is not None:
        log_prior = log_dirichlet(alpha, (clients, len(counts)), g)
    else:
        log_prior = random_classes(classes or 0, clients, counts, g).double().log()

    pool = torch.randperm(len(y), generator=g)
    pool = pool[y[pool].argsort(stable=True)]
    start = counts.cumsum(0) - counts
    owners = log_normal_shares(total, clients, sigma, generator(seed, "partition sizes"))
    owners = owners[equal_turns(owners, g) if sigma else torch.randperm(total, generator=g)]
    samples = torch.empty_like(owners)
    left = counts.clone()
    waiting = torch.arange(total)
    while len(waiting):  # each pass exhausts a class or is the last
        label = draw_classes(log_prior, left, owners[waiting], g)
        rank = rank_within(label)
        served = (rank < left[label]) | reuse
        label, rank = label[served], rank[served]
        position = start[label] + (counts[label] - left[label] + rank) % counts[label]
        samples[waiting[served]] = pool[position]
        left -= label.bincount(minlength=len(counts))
        waiting = waiting[~served]
    return Partition.from_owners(owners, clients, samples)


def pathological(y: Tensor, clients: int, seed: int, *, classes: int = 2) -> Partition:
    """A fixed number of classes per client; clients that hold a class share it evenly.

    Every class is held by equally many clients, as far as it has samples. Which classes a client
    holds is random: pairs of clients trade classes that only one of them holds, which keeps both
    counts (the curveball algorithm, Strona et al., Nature Communications 2014). The papers'
    pathological split is `label_prior(classes=...)`.

    Args:
        classes: Number of classes per client.
    """
    y = check_labels(y, clients)
    counts = y.bincount()
    num_classes = int((counts > 0).sum())
    most = int(counts.clamp(max=clients).sum()) // clients
    if not 1 <= classes <= most or clients * classes < num_classes:
        raise UserError(
            f"{classes} classes per client are impossible with {clients} clients and "
            f"{num_classes} classes: give {-(-num_classes // clients)} to {most}"
        )
    g = generator(seed, "partition")
    holders = water_level(counts.clamp(max=clients), 0, clients * classes)
    # a class is a run of at most `clients` cards, so that dealing in turn gives none of them twice
    deck = torch.arange(len(counts)).repeat_interleave(holders)
    holds = torch.zeros(clients, len(counts), dtype=torch.bool)
    holds[torch.arange(len(deck)) % clients, deck] = True
    for _ in range(TRADES):
        a, b = torch.randperm(clients, generator=g)[: clients // 2 * 2].view(2, -1)
        both, differ = holds[a] & holds[b], holds[a] ^ holds[b]
        keys = torch.rand(differ.shape, generator=g, dtype=torch.float32).masked_fill(~differ, 2.0)
        to_a = keys.argsort(1).argsort(1) < differ.sum(1, keepdim=True) // 2
        holds[a] = both | to_a
        holds[b] = both | (differ & ~to_a)

    holder = holds.T.nonzero()[:, 1]  # class by class
    start = holders.cumsum(0) - holders
    order = torch.randperm(len(y), generator=g)
    label = y[order]
    owners = holder[start[label] + rank_within(label) % holders[label]]
    return Partition.from_owners(owners, clients, order)


@checked
def shards(
    y: Tensor, clients: int, seed: int, *, per_client: PositiveInt = 2, by_class: bool = False
) -> Partition:
    """Equal shards of the samples sorted by label, given to clients at random.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, arXiv:1602.05629. Their MNIST split is 100 clients with two shards of 300.
    FedSOL's Sharding is `by_class=True`, which is the same on CIFAR-10. Where classes do not divide
    into shards (PathMNIST), its code copies samples; here every sample is held exactly once.

    Args:
        per_client: Number of shards per client.
        by_class: Cut every class into equally many shards: no shard mixes classes, and a client's
            size depends on the sizes of its classes.
    """
    y, num = check_labels(y, clients), clients * per_client
    if num > len(y):
        raise UserError(f"{num} shards cannot be cut from {len(y)} samples: lower per_client")
    shard = shares_by_class(y.bincount(), num) if by_class else even_shares(len(y), num)
    owner_of_shard = torch.randperm(num, generator=generator(seed, "partition")) % clients
    return Partition.from_owners(owner_of_shard[shard], clients, y.argsort(stable=True))


def by_domain(y: Tensor, clients: int, seed: int, *, domains: ArrayLike) -> Partition:
    """One domain per client; the samples of a domain are divided at random into equal parts.

    FedLESAM's split with one domain held out: 3 or 30 clients on OfficeHome, 5 or 50 on DomainNet.
    Data with owners, such as a table with a column of users, have each owner as a domain.

    Args:
        clients: A multiple of the number of domains that occur; the clients of the first domain
            come first.
        domains: (n,) int64, the domain of each sample (`DeviceDataset.domains`).
    """
    check_labels(y, clients)
    domain = tensors(domains, "domains")
    if domain.shape != y.shape:
        raise UserError(
            f"domains has shape {tuple(domain.shape)}: give one for each of {len(y)} samples"
        )
    order = torch.randperm(len(y), generator=generator(seed, "partition"))
    _, domain = domain[order].unique(return_inverse=True)
    sizes = domain.bincount()
    each, rest = divmod(clients, len(sizes))
    if rest or int(sizes.min()) < each:
        raise UserError(
            f"{clients} clients do not fit {len(sizes)} domains: give --clients none for one each, "
            f"or a multiple of {len(sizes)}, at most {int(sizes.min())} clients per domain"
        )
    return Partition.from_owners(domain * each + rank_within(domain) % each, clients, order)


def from_file(y: Tensor, clients: int, seed: int, *, file: Path) -> Partition:
    """The partition of an earlier run, `partition-<digest>.npz` in the run's folder.

    Args:
        file: The file. The other arguments are not used.
    """
    return Partition.load(file)
