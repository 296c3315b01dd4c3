"""Who is right: methods of four simulators and ours beside the papers' equations.

    python benchmarks/peers.py --envs DIR

An environment for each simulator is made in DIR, once; its runs take a minute. Writes
docs/who-is-right.md and its figure. `peers/problem.py` has the problem, `peers/equations.py` the
equations, `peers/as_coded.py` what a simulator computes in place of one.
"""

import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import environments
import problem
from who_is_right import Comparison, write_figure, write_page

HERE = Path(__file__).parent


def runs(peer: str, folder: Path) -> Comparison:
    """Run the methods of a simulator in its environment."""
    program = environments.python(peer, folder)
    out = folder / f"{peer}.json"
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    print(f"{peer} {environments.version(peer)}", flush=True)
    subprocess.run(
        [program, HERE / "peers" / f"run_{peer}.py", out],
        check=True,
        env=quiet,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if not os.environ.get("VERBOSE") else None,
    )
    return Comparison(peer, problem.read(out), environments.packages(peer, folder))


def main() -> None:
    """Run all simulators, then compare."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--envs", type=Path, required=True, help="Folder of the environments.")
    folder = parser.parse_args().envs.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    compared = [runs(peer, folder) for peer in environments.TITLES]
    docs = HERE.parent / "docs"
    write_figure(compared, docs / "who-is-right.svg")
    write_page(compared, docs / "who-is-right.md")


if __name__ == "__main__":
    main()
