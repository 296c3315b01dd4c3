"""Assignment of the clients of a round to ranks, and to groups that train in parallel."""

from collections.abc import Sequence


def assign_groups(
    work: Sequence[int], width: int, ranks: int, whole: bool
) -> list[list[list[int]]]:
    """For each rank its groups of positions in `work`; those of a group train in parallel.

    Args:
        work: Work of each client of the cohort, e.g. its local steps.
        width: The most clients of a group.
        ranks: Number of ranks.
        whole: Group first, then assign whole groups, so that the groups do not depend on the number
            of ranks: the last bits depend on which clients train in parallel.
    """
    if not whole:
        return [_groups(share, width) for share in assign_to_ranks(work, ranks)]
    groups = _groups(assign_to_ranks(work, 1)[0], width)
    totals = [sum(work[k] for k in group) for group in groups]
    return [[groups[i] for i in share] for share in assign_to_ranks(totals, ranks)]


def _groups(positions: Sequence[int], width: int) -> list[list[int]]:
    return [list(positions[i : i + width]) for i in range(0, len(positions), width)]


def assign_to_ranks(work: Sequence[int], ranks: int) -> list[list[int]]:
    """The positions in `work` that each rank trains: longest first, to the least loaded."""
    load, shares = [0] * ranks, [list[int]() for _ in range(ranks)]
    for i in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        rank = min(range(ranks), key=lambda r: (load[r], r))
        shares[rank].append(i)
        load[rank] += work[i]
    return shares
