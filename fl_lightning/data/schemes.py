"""Ways to split a labelled data set over clients.

Every scheme is a function `scheme(y, clients, seed, *, ...) -> Partition`. All end in bounded time
whatever the labels and the concentration, and all but `class_priors(reuse=True)` give every sample
to exactly one client.
"""

from pathlib import Path

import torch
from torch import Tensor

from fl_lightning.core.randomness import generator
from fl_lightning.data.partition import Partition
from fl_lightning.data.partition_draws import (
    check_labels,
    draw_classes,
    even_shares,
    log_dirichlet,
    log_normal_shares,
    random_classes,
    rank_within,
    resize,
    shares_by_class,
    water_level,
)

TRADES = (
    20  # rounds of pairwise trades after which `pathological` has forgotten how classes were dealt
)


def iid(
    y: Tensor, clients: int, seed: int, *, sigma: float = 0.0, stratified: bool = False
) -> Partition:
    """Every client holds a random part of the data.

    FedSSG's IID, with `stratified=True` on CIFAR-100 as in FL-Simulator.

    Args:
        y: (n,) int64 labels.
        clients: number of clients.
        seed: seed of the split.
        sigma: sizes are log-normal with this spread; 0: they differ by one at most.
        stratified: every client holds its share of every class, not only on average.

    Raises:
        ValueError: there are more clients than samples, or sigma is negative.
    """
    check_labels(y, clients)
    order = torch.randperm(len(y), generator=generator(seed, "partition"))
    owners = log_normal_shares(len(y), clients, sigma, generator(seed, "partition sizes"))
    if stratified:
        order = order[y.cpu()[order].argsort(stable=True)]
        turn = (rank_within(owners) + 0.5) / owners.bincount()[
            owners
        ]  # clients take turns, the large ones more often
        owners = owners[turn.argsort(stable=True)]
    return Partition.from_owners(owners, clients, order)


def dirichlet(
    y: Tensor,
    clients: int,
    seed: int,
    *,
    alpha: float = 0.1,
    min_size: int = 10,
    balanced: bool = False,
) -> Partition:
    """Label skew: each class is cut over the clients in proportions q ~ Dirichlet(alpha).

    This is FedSOL's (and FedNTD's) LDA: clients that already hold their share n / clients get
    nothing more. Instead of redrawing until every client holds `min_size` samples (thousands of
    times at alpha = 0.05), samples move from the largest clients to those that lack some, in runs
    from one giver, so that the skew stays. What FedSSG, FedLESAM and FedTOGA call Dirichlet is
    `class_priors`.

    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019,
    arXiv:1909.06335.

    Args:
        y: (n,) int64 labels.
        clients: number of clients.
        seed: seed of the split.
        alpha: concentration; the smaller, the fewer clients share a class.
        min_size: every client holds at least so many samples.
        balanced: sizes differ by one at most; costs some of the skew.

    Raises:
        ValueError: alpha is not positive, or there are too few samples for min_size.
    """
    check_labels(y, clients)
    n = len(y)
    if min_size < 0 or clients * min_size > n:
        raise ValueError(
            f"min_size is {min_size}, but {n} samples over {clients} clients allow 0 to {n // clients}; "
            "give a smaller min_size or fewer clients."
        )
    g = generator(seed, "partition")
    y = y.cpu()
    owners = torch.empty(n, dtype=torch.int64)
    sizes = torch.zeros(clients, dtype=torch.int64)
    for label in y.bincount().nonzero():
        samples = (y == label).nonzero().flatten()
        samples = samples[torch.randperm(len(samples), generator=g)]
        full = sizes * clients >= n
        q = log_dirichlet(alpha, (clients,), g).masked_fill(full, -torch.inf).softmax(0)
        share = q.cumsum(0)
        cuts = (share / share[-1] * len(samples)).long()
        counts = cuts.diff(prepend=cuts.new_zeros(1))
        owners[samples] = torch.arange(clients).repeat_interleave(counts)
        sizes += counts
    target = even_shares(n, clients).bincount() if balanced else water_level(sizes, min_size, n)
    return Partition.from_owners(resize(owners, target, g), clients)


def class_priors(
    y: Tensor,
    clients: int,
    seed: int,
    *,
    alpha: float | None = None,
    classes: int | None = None,
    reuse: bool = False,
    size: int | None = None,
    sigma: float = 0.0,
) -> Partition:
    """Only the mix of classes varies, sizes are equal: each client has a class prior and draws its samples from it.

    The Dirichlet (`alpha`) and pathological (`classes`) splits of FedSMOO, FedLESAM and FedTOGA,
    with `reuse=True`, and of FedDyn, FedDC and FedSSG, without, whose code also has unequal sizes
    (`sigma=0.3`). What does not divide evenly goes one each to the first clients; FedSSG's code
    rounds CIFAR over 100 clients to one of 599 and 99 of 499.

    Acar et al., "Federated Learning Based on Dynamic Regularization", 2021, arXiv:2111.04263;
    FL-Simulator (github.com/woodenchild95/FL-Simulator) for reuse.

    Args:
        y: (n,) int64 labels.
        clients: number of clients.
        seed: seed of the split.
        alpha: the priors are Dirichlet(alpha, ..., alpha); or give `classes`.
        classes: the priors are uniform over so many classes, drawn at random; or give `alpha`.
            Without `reuse` they may run out, and a client gets others too; `pathological` gives
            none more.
        reuse: an exhausted class starts over in whole passes, so samples may be held more than once
            or never. Otherwise it is left out, clients whose classes are all exhausted draw from
            what is left, and every sample is held exactly once.
        size: samples of a client on average, with `reuse`: then there may be more clients than
            samples, a million of them on MNIST; none shares out the data.
        sigma: sizes are log-normal with this spread; 0: they differ by one at most.

    Raises:
        ValueError: not exactly one of alpha and classes is given, or it is out of range, or `size`
            without `reuse`.
    """
    if size is not None and (size < 1 or clients < 1 or not reuse):
        raise ValueError(
            f"size is {size} for {clients} clients; give at least one for at least one client, and reuse."
        )
    check_labels(y, clients if size is None else 1)
    g = generator(seed, "partition")
    y = y.cpu()
    counts, total = y.bincount(), len(y) if size is None else clients * size
    if (alpha is None) == (classes is None):
        raise ValueError(f"alpha is {alpha} and classes is {classes}; give exactly one of them.")
    if alpha is not None:
        log_prior = log_dirichlet(alpha, (clients, len(counts)), g)
    else:
        log_prior = random_classes(classes or 0, clients, counts, g).double().log()

    pool = torch.randperm(len(y), generator=g)
    pool = pool[y[pool].argsort(stable=True)]
    start = counts.cumsum(0) - counts
    owners = log_normal_shares(total, clients, sigma, generator(seed, "partition sizes"))
    owners = owners[torch.randperm(total, generator=g)]
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
    """Every client holds exactly so many classes; a class is shared evenly among the clients that hold it.

    Classes are held by equally many clients as far as their counts permit, and every class is held
    by someone. Which classes meet at a client is random: pairs of clients trade what distinguishes
    them (the curveball algorithm, Strona et al. 2014), which keeps both counts. The papers'
    pathological split is `class_priors(classes=...)`.

    Args:
        y: (n,) int64 labels.
        clients: number of clients.
        seed: seed of the split.
        classes: number of classes per client.

    Raises:
        ValueError: so many classes per client cannot be had from this data.
    """
    check_labels(y, clients)
    y = y.cpu()
    counts = y.bincount()
    num_classes = int((counts > 0).sum())
    most = int(counts.clamp(max=clients).sum()) // clients
    if not 1 <= classes <= most or clients * classes < num_classes:
        raise ValueError(
            f"{classes} classes for each of {clients} clients cannot be had from {len(y)} samples of {num_classes} "
            f"classes; give {-(-num_classes // clients)} to {most} classes per client."
        )
    g = generator(seed, "partition")
    holders = water_level(counts.clamp(max=clients), 0, clients * classes)
    # a class is a run of at most `clients` cards, so dealing in turn gives nobody a class twice
    deck = torch.arange(len(counts)).repeat_interleave(holders)
    holds = torch.zeros(clients, len(counts), dtype=torch.bool)
    holds[torch.arange(len(deck)) % clients, deck] = True
    for _ in range(TRADES):
        a, b = torch.randperm(clients, generator=g)[: clients // 2 * 2].view(2, -1)
        both, differ = holds[a] & holds[b], holds[a] ^ holds[b]
        lot = torch.rand(differ.shape, generator=g, dtype=torch.float32).masked_fill(~differ, 2.0)
        to_a = lot.argsort(1).argsort(1) < differ.sum(1, keepdim=True) // 2
        holds[a] = both | to_a
        holds[b] = both | (differ & ~to_a)

    holder = holds.T.nonzero()[:, 1]  # class by class
    start = holders.cumsum(0) - holders
    order = torch.randperm(len(y), generator=g)
    label = y[order]
    return Partition.from_owners(
        holder[start[label] + rank_within(label) % holders[label]], clients, order
    )


def shards(
    y: Tensor, clients: int, seed: int, *, per_client: int = 2, by_class: bool = False
) -> Partition:
    """Sort by label, cut into equal shards, deal them at random.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    2017, arXiv:1602.05629. Their MNIST split is 100 clients with two shards of 300. FedSOL's
    Sharding is `by_class=True`, the same on CIFAR-10. Where classes do not divide the shards
    (PathMNIST), its code hands out copies; here every sample is held exactly once.

    Args:
        y: (n,) int64 labels.
        clients: number of clients.
        seed: seed of the split.
        per_client: number of shards per client.
        by_class: every class is cut into equally many shards, so that none mixes classes and the
            sizes of the clients follow those of the classes.

    Raises:
        ValueError: there are more shards than samples, or they cannot be cut by class.
    """
    check_labels(y, clients)
    num = clients * per_client
    if not clients <= num <= len(y):
        raise ValueError(
            f"{per_client} shards per client: {num} shards cannot be cut from {len(y)} samples."
        )
    y = y.cpu()
    shard = shares_by_class(y.bincount(), num) if by_class else even_shares(len(y), num)
    owner_of_shard = torch.randperm(num, generator=generator(seed, "partition")) % clients
    return Partition.from_owners(owner_of_shard[shard], clients, y.argsort(stable=True))


def by_domain(y: Tensor, clients: int, seed: int, *, domains: Tensor) -> Partition:
    """Every client holds samples of one domain; a domain is cut at random into equal parts.

    FedLESAM's split with one domain held out: 3 or 30 clients on OfficeHome, 5 or 50 on DomainNet.

    Args:
        y: (n,) int64 labels.
        clients: number of clients, a multiple of the number of domains that occur; the clients of
            the first domain come first.
        seed: seed of the split.
        domains: (n,) int64, the domain of each sample (`DeviceDataset.domains`).

    Raises:
        ValueError: the clients cannot be shared out evenly over the domains, or a domain has too
            few samples.
    """
    check_labels(y, clients)
    if domains.shape != y.shape:
        raise ValueError(
            f"domains has shape {tuple(domains.shape)}; give one domain for each of {len(y)} samples."
        )
    order = torch.randperm(len(y), generator=generator(seed, "partition"))
    domain = domains.cpu()[order]
    present = domain.bincount() > 0
    domain = (present.cumsum(0) - 1)[domain]
    num_domains, smallest = int(present.sum()), int(domain.bincount().min())
    each, rest = divmod(clients, num_domains)
    if rest or smallest < each:
        raise ValueError(
            f"{clients} clients cannot be shared out over {num_domains} domains, the smallest of {smallest} samples; "
            "give a multiple of the number of domains, and no more clients per domain than it has samples."
        )
    return Partition.from_owners(domain * each + rank_within(domain) % each, clients, order)


def saved(y: Tensor, clients: int, seed: int, *, file: Path) -> Partition:
    """A partition that an earlier run saved: every run keeps its own as `partition-<digest>.npz` in its folder.

    Args:
        y: (n,) int64 labels of the data set that it was made of.
        clients: its number of clients.
        seed: not used.
        file: the file.

    Raises:
        ValueError: it is damaged, or has another number of clients or samples.
    """
    partition = Partition.load(file)
    highest = int(partition.indices.max()) if len(partition.indices) else -1
    if len(partition) != clients or highest >= len(y):
        raise ValueError(
            f"{file} splits at least {highest + 1} samples over {len(partition)} clients; this run has {len(y)} "
            f"samples and {clients} clients."
        )
    return partition
