"""Kill the processes of a table at random moments; the same command must make the same table.

    python benchmarks/table_kills.py --kills 20

`fl-lightning table` makes three runs on the digits, two at a time. Each kill (SIGKILL) takes in
turn one of the runs, the fork server, or the command itself, up to three seconds after the first
run began; then the command is given again, until it ends by itself. The table and, but for times,
every metrics.csv must equal those that nobody killed.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

from pandas import DataFrame, read_csv

TABLE = """\
recipe: digits
rounds: 30
clients: 10
local_steps: 1
checkpoint_every: 2
methods: {fedavg: {}, fedsam: {}, scaffold: {}}
"""
COMMAND = f"{sys.executable} -m fl_lightning table table.yaml --jobs 2 --format csv".split()


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """Give the command in a folder; its output goes to `said.csv`."""
    folder.mkdir(exist_ok=True)
    (folder / "table.yaml").write_text(TABLE)
    with (folder / "said.csv").open("w") as file:
        return subprocess.Popen(COMMAND, cwd=folder, stdout=file, stderr=subprocess.DEVNULL)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def victims(table: int) -> dict[str, int]:
    """The processes of a table by name; a run is one of those that are running."""
    found = {"command": table}
    for server in children(table):
        if runs := children(server):
            found |= {"fork server": server, "run": random.choice(runs)}
    return found


def kill(table: "subprocess.Popen[bytes]", name: str, within: float) -> bool:
    """Kill a process of a table while runs go; False if they ended before."""
    while table.poll() is None and "run" not in victims(table.pid):
        time.sleep(0.1)
    time.sleep(random.uniform(0, within))
    found = victims(table.pid)
    if "run" in found:
        os.kill(found[name], signal.SIGKILL)
    return "run" in found


def results(folder: Path) -> tuple[str, dict[str, DataFrame]]:
    """The table, and the scalars of each run but for times."""
    said = (folder / "said.csv").read_text()
    runs = {file.parent.name: read_csv(file) for file in folder.glob("runs/table/*/metrics.csv")}
    untimed = {name: run.filter(regex="^(?!time/)") for name, run in runs.items()}
    return said[said.index("row,") :], untimed


def main() -> None:
    """Kill and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within-s", type=float, default=3.0)
    o = parser.parse_args()
    random.seed(o.seed)
    killed, tables, equal = Counter[str](), 0, 0
    with TemporaryDirectory() as parent:
        alone = Path(parent, "alone")
        if start(alone).wait():
            raise SystemExit((alone / "said.csv").read_text())
        said, scalars = results(alone)
        names = cycle(("run", "fork server", "command"))
        while killed.total() < o.kills:
            folder, code, kills = Path(parent, str(tables)), -1, 0
            while code:
                command = start(folder)
                name = next(names)
                if killed.total() < o.kills and kill(command, name, o.within_s):
                    killed[name] += 1
                    kills += 1
                code = command.wait()
            again, of_runs = results(folder)
            same = again == said and of_runs.keys() == scalars.keys()
            same = same and all(of_runs[name].equals(scalars[name]) for name in scalars)
            tables, equal = tables + 1, equal + same
            print(f"table {tables}: {kills} kills, {'equal' if same else 'DIFFERENT'}", flush=True)
    print(f"{equal} of {tables} tables equal after {killed.total()} kills: {dict(killed)}")


if __name__ == "__main__":
    main()
