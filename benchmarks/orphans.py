"""Kill a rank or the launcher of a run at random moments: nobody must outlive it by a minute.

Run it:

    python benchmarks/orphans.py --launcher python --kills 50
    python benchmarks/orphans.py --launcher fabric --victim launcher --at import --kills 20

Two ranks train on the digits, started by `python recipes/digits.py --devices 2`, where the first
rank launches the second, or by `fabric run` or torchrun. After each SIGKILL every process of the
run must end within a minute, and what the survivors print must name the rank that was killed. Then
the run is resumed and killed again, until it ends: metrics.csv and the model must equal those of a
run that was not killed. `kills.py` chooses the stage of a round, in runs without a launcher.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from lightning.fabric.plugins.environments.lightning import find_free_network_port

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import jobs

RECIPE = str(Path(__file__).resolve().parents[1] / "recipes/digits.py")
RUN = "FL_LIGHTNING_KILLED_RUN"
"""Environment variable by which the processes of a run are found."""


def command(launcher: str, folder: Path, rounds: int) -> list[str]:
    """The command of two ranks that begin or resume the run in a folder."""
    options = f"--rounds {rounds} --clients 6 --local-epochs 1 --checkpoint-every 5 --resume"
    options += f" --run-dir {folder}"
    ranks, port = "--accelerator cpu --devices 2", find_free_network_port()
    start = {
        "python": f"{RECIPE} {ranks}",
        "fabric": f"-m lightning.fabric.cli {RECIPE} {ranks} --main-port {port} --",
        "torchrun": f"-m torch.distributed.run --nproc-per-node 2 --master-port {port} {RECIPE}",
    }[launcher]
    return [sys.executable, *f"{start} {options}".split()]


def start(o: argparse.Namespace, folder: Path, name: str) -> "subprocess.Popen[bytes]":
    """Begin or resume a run, whose processes are found by a name; its output goes to its log."""
    with log_of(folder, name).open("w") as file:
        return subprocess.Popen(
            command(o.launcher, folder, o.rounds),
            env={**os.environ, RUN: name, "OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=file,
        )


def log_of(folder: Path, name: str) -> Path:
    """The file of what the processes of this name print."""
    return folder.with_suffix(f".{name}.log")


def processes(name: str) -> dict[int, str]:
    """The processes of a run that are alive, each with its rank; the launcher's is empty."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            variables = file.read_bytes().decode(errors="replace").split("\0")
            if f"{RUN}={name}" in variables:
                ranks = [v.removeprefix("LOCAL_RANK=") for v in variables if "LOCAL_RANK=" in v]
                found[int(file.parent.name)] = "".join(ranks)
    return found


def kill_once(o: argparse.Namespace, folder: Path, number: int, within: float) -> tuple[str, float]:
    """Start or resume a run and kill one process of it.

    Returns:
        Who was killed, or nothing if the run had ended before, and the seconds until the last
        process had ended.
    """
    name = f"{os.getpid()}-{number}"
    victim = random.choice(["0", "1", "launcher"]) if o.victim == "any" else o.victim
    if victim == "0" and o.launcher == "python":
        victim = "launcher"  # it is the first rank
    launcher = start(o, folder, name)
    if o.at == "import":
        while launcher.poll() is None and not {"0", "1"} & {*processes(name).values()}:
            time.sleep(0.02)
        time.sleep(random.uniform(0, o.import_s))
    else:
        time.sleep(random.uniform(0, within))
        while victim != "launcher" and launcher.poll() is None:
            if victim in processes(name).values():
                break
            time.sleep(0.02)
    pids = [launcher.pid]
    if victim != "launcher":
        pids = [pid for pid, rank in processes(name).items() if rank == victim]
    if launcher.poll() is not None or not pids:
        return "", 0.0
    os.kill(pids[0], signal.SIGKILL)
    killed = time.monotonic()
    while left := processes(name):
        launcher.poll()  # reaps it
        if time.monotonic() > killed + 60:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            launcher.wait()
            return f"{victim} OUTLIVED by {sorted(left.values())}", 60.0
        time.sleep(0.1)
    took = time.monotonic() - killed
    launcher.wait()
    said = log_of(folder, name).read_text()
    if victim == "launcher" or re.search(rf"rank\s*:?\s*{victim}\b", said):
        return victim, took
    print(said)
    return f"{victim} NOT NAMED", took


def main() -> None:
    """Kill and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--launcher", choices=["python", "fabric", "torchrun"], default="python")
    parser.add_argument("--victim", choices=["0", "1", "launcher", "any"], default="any")
    parser.add_argument("--at", choices=["any", "import"], default="any")
    parser.add_argument("--import-s", type=float, default=4.0)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--within-s", type=float, help="default: the time of a whole run")
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    random.seed(o.seed)
    outcomes, tried, number, slowest, runs, different = Counter[str](), 0, 0, 0.0, 0, 0
    with TemporaryDirectory() as parent:
        began = time.monotonic()
        alone = Path(parent, "alone")
        if start(o, alone, "alone").wait():
            raise SystemExit(log_of(alone, "alone").read_text())
        within, expected = o.within_s or time.monotonic() - began, jobs.results(alone)
        print(f"a run takes {within:.1f} s", flush=True)
        while tried < o.kills:
            runs, folder = runs + 1, Path(parent, str(runs))
            while tried < o.kills and not (folder / "model.pt").exists():
                number += 1
                who, took = kill_once(o, folder, number, within)
                if who:
                    tried, slowest = tried + 1, max(slowest, took)
                    outcomes[who] += 1
                    print(f"kill {tried}: {who}, all ended after {took:.1f} s", flush=True)
            ended = start(o, folder, "end").wait() == 0
            same = ended and jobs.results(folder) == expected
            different += not same
            print(f"run {runs}: {'equal' if same else 'DIFFERENT'}", flush=True)
    print(f"{o.launcher}, killed at {o.at} moment: {dict(outcomes)}, of {tried} kills")
    print(f"{runs - different} of {runs} runs equal; all processes had ended after {slowest:.1f} s")


if __name__ == "__main__":
    main()
