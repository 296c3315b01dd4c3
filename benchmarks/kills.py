"""Kill runs at random instants, resume them, and compare with the run that was never killed.

Run it:

    python benchmarks/kills.py --kills 50 --ranks 1
    python benchmarks/kills.py --kills 10 --ranks 2 --algorithm feddyn

A run on the digits is killed with SIGKILL, resumed and killed again until it comes to its end; then
`metrics.csv` but for times, every bit of the model and TensorBoard's steps must be those of the run
that was left alone. One kill in five comes at any instant, the others as soon as the victim is seen
to be in a certain stage after a random time. With two ranks the victim is the first, the second or
both. Ranks are forked, not started anew: a life takes a second or two.
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

from fl_lightning.callbacks import Checkpoint
from fl_lightning.executors import SequentialExecutor
from fl_lightning.federation.row_files import RowFiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import runs

STAGES: dict[str, tuple[Any, str]] = {
    "training": (SequentialExecutor, "_visit"),
    "the store's writes": (RowFiles, "write"),
    "the checkpoint's writes": (Checkpoint, "_save"),
    "the all-reduce": (Fabric, "all_reduce"),
}
ELSEWHERE = "elsewhere"
NAMES = [ELSEWHERE, *STAGES]


def told(board: mmap) -> Callable[[int], None]:
    """Let each rank write the stage it is in on a board that outlives it, and whether it has met the others."""

    def prepare(rank: int) -> None:
        launch = Fabric.launch

        def launch_and_tell(fabric: Fabric) -> None:
            launch(fabric)
            board[len(board) // 2 + rank] = 1

        Fabric.launch = launch_and_tell
        for number, (owner, name) in enumerate(STAGES.values(), 1):
            setattr(owner, name, _telling(getattr(owner, name), board, rank, number))

    return prepare


def _telling(
    function: Callable[..., Any], board: mmap, rank: int, number: int
) -> Callable[..., Any]:
    def telling(*args: Any, **kwargs: Any) -> Any:
        before, board[rank] = board[rank], number
        try:
            return function(*args, **kwargs)
        finally:
            board[rank] = before

    return telling


class Killer:
    """Kills lives at random instants and counts in which stages they were."""

    def __init__(self, ranks: int, seed: int):
        self.ranks, self.random, self.board = ranks, random.Random(seed), mmap(-1, 2 * ranks)
        self.stages: Counter[str] = Counter()
        self.slowest = 0.0

    def kill(self, processes: list[Any], within: float) -> bool:
        """Kill one rank, or all, at some instant of a life of about `within` seconds; whether it was still alive."""
        victims = self.random.choice(
            [[rank] for rank in range(self.ranks)] + [list(range(self.ranks))]
        )
        wanted, first = self.random.choice([None, *range(1, len(NAMES))]), victims[0]
        time.sleep(self.random.uniform(0, within))
        while wanted is not None and self.board[first] != wanted and processes[first].is_alive():
            pass
        if wanted is None or NAMES[wanted] in ("training", "the checkpoint's writes"):
            time.sleep(self.random.uniform(0, 0.002))
        if not all(
            self.board[self.ranks :]
        ):  # who waits to meet them is ended by a launcher, missing here
            victims = list(range(self.ranks))
        for rank in victims:
            processes[rank].kill()
        killed = time.monotonic()
        codes = runs.end(processes)
        self.slowest = max(self.slowest, time.monotonic() - killed)
        if None in codes:
            raise SystemExit(
                f"a rank did not end within a minute of the other's death: exit codes {codes}"
            )
        if codes[first] == -9:
            self.stages[NAMES[self.board[first]]] += 1
        self.board[:] = bytes(2 * self.ranks)
        return codes[first] == -9


def equal(folder: Path, expected: dict[str, Any]) -> bool:
    """Whether a finished run is the one that was never killed."""
    steps = [tuple(int(row["round"]) for row in expected["metrics"])]
    return runs.results(folder) == expected and runs.steps_in_tensorboard(folder) == steps


def main() -> None:
    """Kill and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--algorithm", default="scaffold")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    argv = "--algorithm", o.algorithm, "--rounds", str(o.rounds), "--checkpoint-every", "3"
    killer, tried, survived, runs = Killer(o.ranks, o.seed), 0, 0, 0
    with TemporaryDirectory() as parent:
        started = time.monotonic()
        alone = Path(parent, "alone")
        assert runs.end(runs.begin(alone, *argv, ranks=o.ranks), 600) == [0] * o.ranks, runs.said(
            alone
        )
        expected, seconds = runs.results(alone), time.monotonic() - started
        while tried < o.kills:
            runs, kills = runs + 1, 0
            folder = Path(parent, str(runs))
            while not (folder / "model.pt").exists():
                processes = runs.begin(folder, *argv, ranks=o.ranks, prepare=told(killer.board))
                if tried + kills < o.kills:
                    kills += killer.kill(processes, 0.7 * seconds)  # of the time of a cold start
                elif runs.end(processes, 600) != [0] * o.ranks:
                    raise SystemExit(f"a resumed run failed: {runs.said(folder)}")
            if (
                runs.end(runs.begin(folder, *argv, ranks=o.ranks), 600) != [0] * o.ranks
            ):  # killed after its last write
                raise SystemExit(f"a finished run could not be resumed: {runs.said(folder)}")
            tried, survived = tried + kills, survived + kills * equal(folder, expected)
            print(
                f"run {runs}: {kills} kills, {'equal' if equal(folder, expected) else 'DIFFERENT'}",
                flush=True,
            )
    print(
        f"{o.algorithm}, {o.ranks} rank(s): {survived} of {tried} kills survived, in {runs} runs of {o.rounds} rounds"
    )
    print(
        "killed in "
        + ", ".join(f"{stage}: {killer.stages[stage]}" for stage in [*STAGES, ELSEWHERE])
    )
    print(f"all processes had ended at most {killer.slowest:.1f} s after a kill")


if __name__ == "__main__":
    main()
