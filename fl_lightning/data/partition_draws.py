"""Building blocks of the partition schemes: shares, sizes, and draws from label priors."""

from bisect import bisect_right

import numpy as np
import torch
from torch import Tensor

from fl_lightning.errors import UserError


def check_labels(y: Tensor, clients: int) -> Tensor:
    """The labels on the CPU; a UserError unless they can be split over that many clients."""
    if y.ndim != 1 or y.is_floating_point() or (len(y) and y.min() < 0):
        raise UserError(
            f"y is {y.dtype} of shape {tuple(y.shape)}: give one label, 0 or more, per sample"
        )
    if not (isinstance(clients, int | np.integer) and 1 <= clients <= len(y)):
        raise UserError(
            f"{len(y)} samples cannot be split over {clients} clients: give 1 to {len(y)} clients"
        )
    return y.cpu()


def even_shares(n: int, shares: int) -> Tensor:
    """(n,) the share of each of n samples; sizes differ by one at most, larger ones first."""
    sizes = torch.full((shares,), n // shares)
    sizes[: n % shares] += 1
    return torch.arange(shares).repeat_interleave(sizes)


def log_normal_shares(n: int, shares: int, sigma: float, g: torch.Generator) -> Tensor:
    """(n,) as `even_shares`, with sizes of at least 1 proportional to exp(sigma * z), z ~ N(0, 1).

    With sigma = 0 sizes are even and nothing is drawn.
    """
    if sigma == 0:
        return even_shares(n, shares)
    weights = (sigma * torch.randn(shares, generator=g, dtype=torch.float64)).softmax(0).cumsum(0)
    cuts = (weights / weights[-1] * n).round().long()
    sizes = water_level(cuts.diff(prepend=cuts.new_zeros(1)), 1, n)
    return torch.arange(shares).repeat_interleave(sizes)


def equal_turns(owners: Tensor, g: torch.Generator) -> Tensor:
    """(n,) a random order of sorted owners: each that is left is equally likely to come next.

    Owners of few entries end before the others, unlike in a random permutation.
    """
    waits = -torch.log1p(-torch.rand(len(owners), generator=g, dtype=torch.float64))
    times = waits.cumsum(0)
    sizes = owners.bincount()
    begin = (times - waits)[(sizes.cumsum(0) - sizes)[owners]]
    return (times - begin).argsort()


def shares_by_class(counts: Tensor, shares: int) -> Tensor:
    """(n,) the share of each of n samples sorted by class; no share mixes classes.

    Every class that occurs is cut into equally many equal runs. The remainder goes to the largest
    classes, one each.
    """
    counts = counts[counts > 0]
    largest_first = counts.argsort(descending=True, stable=True)
    runs = torch.empty_like(counts)
    runs[largest_first] = even_shares(shares, len(counts)).bincount(minlength=len(counts))
    if int(runs.min()) < 1 or bool((runs > counts).any()):
        raise UserError(
            f"{shares} shards cannot be cut from {len(counts)} classes of {int(counts.min())} to "
            f"{int(counts.max())} samples: give 1 to as many shards per class as it has samples"
        )
    first = runs.cumsum(0) - runs
    cut = zip(counts.tolist(), runs.tolist(), first.tolist(), strict=True)
    return torch.cat([even_shares(n, num) + start for n, num, start in cut])


def rank_within(group: Tensor) -> Tensor:
    """(n,) the number of earlier entries of the same group: `[5, 2, 5, 5]` gives `[0, 0, 1, 2]`."""
    order = group.argsort(stable=True)
    sizes = group.bincount()
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group)) - (sizes.cumsum(0) - sizes)[group[order]]
    return rank


def water_level(sizes: Tensor, lower: int, total: int) -> Tensor:
    """Clamp the sizes to [lower, level], with the level at which they sum to `total`.

    The remainder goes to the first of the sizes above the level, one each. The total is at least
    `lower * len(sizes)` and at most `sizes.clamp(min=lower).sum()`.
    """
    levels = range(lower, int(sizes.max()) + 1)
    fitting = bisect_right(levels, total, key=lambda level: int(sizes.clamp(lower, level).sum()))
    level = lower + max(0, fitting - 1)  # the highest that does not exceed the total
    leveled = sizes.clamp(lower, level)
    cut = (sizes > level).nonzero().flatten()
    leveled[cut[: total - int(leveled.sum())]] += 1
    return leveled


def resize(owners: Tensor, target: Tensor, g: torch.Generator) -> Tensor:
    """Move as few samples as possible so that client i holds `target[i]` of them.

    A client gives random samples; clients that lack some take those of one giver after another.
    """
    order = torch.randperm(len(owners), generator=g)
    given = order[rank_within(owners[order]) >= target[owners[order]]]
    given = given[owners[given].argsort(stable=True)]
    missing = (target - owners.bincount(minlength=len(target))).clamp(min=0)
    resized = owners.clone()
    resized[given] = torch.arange(len(target)).repeat_interleave(missing)
    return resized


def log_dirichlet(alpha: float, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    """Logarithms, up to a constant, of Dirichlet(alpha) draws along the last dimension, float64.

    In logarithms because at alpha = 0.001 the draws themselves underflow to all zeros.
    """
    # Gamma(alpha) = Gamma(alpha + 1) * U ** (1 / alpha)
    gamma = torch._standard_gamma(torch.full(shape, alpha + 1, dtype=torch.float64), generator=g)
    uniform = torch.rand(shape, generator=g, dtype=torch.float64)
    return gamma.log() + torch.log1p(-uniform) / alpha


def random_classes(num: int, clients: int, counts: Tensor, g: torch.Generator) -> Tensor:
    """(clients, classes) bool, `num` random classes per client among those that have samples."""
    present = counts > 0
    if num > int(present.sum()):
        raise UserError(f"classes is {num}: give 1 to {int(present.sum())} classes per client")
    keys = torch.rand(clients, len(counts), generator=g, dtype=torch.float32)
    return keys.masked_fill(~present, 2.0).argsort(1).argsort(1) < num


def draw_classes(log_prior: Tensor, left: Tensor, clients: Tensor, g: torch.Generator) -> Tensor:
    """Draw a class for each entry of `clients`, from that client's prior over the classes left.

    A client whose prior is zero on all of them draws in proportion to what is left. `log_prior` is
    (num_clients, classes), up to a constant per client; `left` counts the samples of each class.
    """
    logits = log_prior.masked_fill(left == 0, -torch.inf)
    lost = logits.isinf().all(1, keepdim=True)
    cumulative = logits.where(~lost, left.double().log()).softmax(1).cumsum(1)
    # the last is then exactly 1, as are the sums at empty classes at the end
    cumulative /= cumulative[:, -1:].clone()
    # All priors in one sorted line, client i between i and i + 1. A float32 draw below 1 stays
    # below i + 1 in float64. A class without weight has no length: it is never drawn.
    line = (cumulative + torch.arange(len(log_prior))[:, None]).flatten()
    uniform = torch.rand(len(clients), generator=g, dtype=torch.float32).double()
    return torch.searchsorted(line, clients + uniform, right=True) - clients * len(left)
