"""Kill runs at random instants, resume them, and compare with the run that was never killed.

Run it:

    python benchmarks/kills.py --kills 50 --ranks 1
    python benchmarks/kills.py --kills 50 --ranks 1 --client-state-memory 500kB
    python benchmarks/kills.py --kills 10 --ranks 2 --algorithm feddyn
    python benchmarks/kills.py --kills 5 --ranks 3 --send topk+quantize --send.bits 4

Further options are of the runs.

A run on the digits is killed with SIGKILL, resumed and killed again until it ends. Then
`metrics.csv` but for times, every bit of the model and TensorBoard's steps must equal those of a
run that was not killed. One kill in five comes at any instant. The others come when the victim is
in a chosen stage after a random time. With two ranks the victim is the first, the second or both.
Ranks are forked processes without a launcher, so that a start takes a second (see `orphans.py`).
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.fabric import Fabric

import fl_lightning.callbacks.checkpoint
from fl_lightning import experiment
from fl_lightning.callbacks import Checkpoint
from fl_lightning.executors import SequentialExecutor
from fl_lightning.federation.row_files import RowFiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import jobs

STAGES: dict[str, tuple[Any, str]] = {
    "training": (SequentialExecutor, "_visit"),
    "the store's writes": (RowFiles, "write"),
    "the checkpoint's writes": (Checkpoint, "_save"),
    "the all-reduce": (Fabric, "all_reduce"),
}
ELSEWHERE = "elsewhere"
NAMES = [ELSEWHERE, *STAGES]


def recording(board: mmap) -> Callable[[int], None]:
    """Let each rank write its stage, and whether it has met the others, into shared memory."""

    def prepare(rank: int) -> None:
        launch = experiment.launch_fabric

        def launch_and_record(*args: Any, **options: Any) -> Any:
            fabric = launch(*args, **options)
            board[len(board) // 2 + rank] = 1
            return fabric

        experiment.launch_fabric = launch_and_record
        for number, (owner, name) in enumerate(STAGES.values(), 1):
            setattr(owner, name, _recorded(getattr(owner, name), board, rank, number))

    return prepare


def _recorded(
    function: Callable[..., Any], board: mmap, rank: int, number: int
) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        before, board[rank] = board[rank], number
        try:
            return function(*args, **kwargs)
        finally:
            board[rank] = before

    return recorded


class Killer:
    """Kills ranks at random instants and counts their stages."""

    def __init__(self, ranks: int, seed: int):
        self.ranks, self.random, self.board = ranks, random.Random(seed), mmap(-1, 2 * ranks)
        self.stages: Counter[str] = Counter()
        self.slowest = 0.0

    def kill(self, processes: list[Any], within: float) -> bool:
        """Kill one rank or all within some seconds.

        Returns:
            Whether the rank was still alive.
        """
        everyone = list(range(self.ranks))
        victims = self.random.choice([[rank] for rank in everyone] + [everyone])
        wanted, first = self.random.choice([None, *range(1, len(NAMES))]), victims[0]
        time.sleep(self.random.uniform(0, within))
        while wanted is not None and self.board[first] != wanted and processes[first].is_alive():
            pass
        if wanted is None or NAMES[wanted] in ("training", "the checkpoint's writes"):
            time.sleep(self.random.uniform(0, 0.002))
        if not all(self.board[self.ranks :]):
            victims = everyone  # a launcher, missing here, ends ranks that wait for one to come
        for rank in victims:
            processes[rank].kill()
        killed = time.monotonic()
        codes = jobs.end(processes)
        self.slowest = max(self.slowest, time.monotonic() - killed)
        if None in codes:
            raise SystemExit(f"a rank outlived the other by a minute: exit codes {codes}")
        if codes[first] == -9:
            self.stages[NAMES[self.board[first]]] += 1
        self.board[:] = bytes(2 * self.ranks)
        return codes[first] == -9


def equal(folder: Path, expected: dict[str, Any]) -> bool:
    """Whether the results and TensorBoard's steps of a finished run are the expected ones."""
    steps = [tuple(int(row["round"]) for row in expected["metrics"])]
    return jobs.results(folder) == expected and jobs.steps_in_tensorboard(folder) == steps


def finish(folder: Path, *argv: str, ranks: int) -> None:
    """Run to the end without a kill."""
    if jobs.end(jobs.begin(folder, *argv, ranks=ranks), 600) != [0] * ranks:
        raise SystemExit(f"a run failed: {jobs.said(folder)}")


def main() -> None:
    """Kill and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--client-state-memory", default="1GiB", help="500kB holds two rows of eight"
    )
    o, further = parser.parse_known_args()
    argv = "--algorithm", o.algorithm, "--rounds", str(o.rounds), "--checkpoint-every", "3"
    argv += "--client-state-memory", o.client_state_memory, *further
    fl_lightning.callbacks.checkpoint.SPACING = 0  # every third round is saved, however short
    killer, tried, survived, number = Killer(o.ranks, o.seed), 0, 0, 0
    with TemporaryDirectory() as parent:
        started = time.monotonic()
        finish(Path(parent, "alone"), *argv, ranks=o.ranks)
        expected = jobs.results(Path(parent, "alone"))
        within = 0.7 * (time.monotonic() - started)
        while tried < o.kills:
            number, kills = number + 1, 0
            folder = Path(parent, str(number))
            while not (folder / "model.pt").exists() and tried + kills < o.kills:
                prepare = recording(killer.board)
                processes = jobs.begin(folder, *argv, ranks=o.ranks, prepare=prepare)
                kills += killer.kill(processes, within)
            finish(folder, *argv, ranks=o.ranks)  # also after a kill behind the last write
            same = equal(folder, expected)
            tried, survived = tried + kills, survived + kills * same
            print(f"run {number}: {kills} kills, {'equal' if same else 'DIFFERENT'}", flush=True)
    print(
        f"{' '.join(argv)}, {o.ranks} rank(s): {survived} of {tried} kills "
        f"survived, in {number} runs of {o.rounds} rounds"
    )
    stages = ", ".join(f"{stage}: {killer.stages[stage]}" for stage in [*STAGES, ELSEWHERE])
    print(f"killed in {stages}")
    print(f"all processes had ended at most {killer.slowest:.1f} s after a kill")


if __name__ == "__main__":
    main()
