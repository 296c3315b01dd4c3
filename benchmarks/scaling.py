"""Two ranks of one thread over one rank of one thread, interleaved in one run.

OMP_NUM_THREADS=1 python benchmarks/scaling.py --model pfl --passes 5 --rounds 6
"""

import argparse
import sys
from pathlib import Path

from contest import SIZES, run, table, where


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="pfl")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--way", default="sequential", help="how clients train, see ways.py")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    print(where(), flush=True)
    script = [sys.executable, str(Path(__file__).with_name("ours.py")), "--model", options.model]
    script += [
        "--rounds",
        str(options.rounds),
        "--precision",
        options.precision,
        "--way",
        options.way,
        "--ranks",
    ]
    seconds: dict[str, list[float]] = {f"{ranks} rank(s)": [] for ranks in options.ranks.split(",")}
    for _ in range(options.passes):
        for name, each in seconds.items():
            each.append(run([*script, name.split()[0]], OMP_NUM_THREADS="1")[0])
    size = SIZES.get(options.model, {"cohort": 10, "samples": 500})
    print(table(seconds, size["cohort"] * size["samples"]))
    print(where().splitlines()[-1])


if __name__ == "__main__":
    main()
