"""pfl-research's CIFAR-10 benchmark: pfl, Flower and ours, interleaved in one run.

    export OMP_NUM_THREADS=1 python benchmarks/engines.py --peers DIR --peers-python VENV/bin/python
    --passes 5 --rounds 6 python benchmarks/engines.py --peers DIR --peers-python VENV/bin/python
    --passes 3 --only pfl-2,ours-2,flower-2

DIR holds time_pfl.py, time_flower.py, time_plain.py and common_cifar.py; VENV has `pfl[pytorch]`
and `flwr[simulation]`. In every pass each contestant runs so many rounds in processes of its own,
with one thread each; the first round does not count. Quote ratios of the medians only. On a machine
that others use at the same time `--clock cpu` counts the first rank's CPU seconds instead, without
waiting (not for Flower, whose actors do the work). With `--device cuda` all processes share the
first GPU. One that fails or takes longer than `--limit` is left out.
"""

import argparse
import sys
import time
from math import inf
from pathlib import Path
from statistics import median

from contest import run, table, where


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--peers-python", required=True)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--only",
        default="pfl-2,ours-2-compile,ours-2-bf16-compile",
        help="NAME-PROCESSES[-bf16][-WAY], see ways.py",
    )
    parser.add_argument(
        "--limit", type=int, default=600, help="seconds that one contestant may take in a pass"
    )
    parser.add_argument(
        "--seconds", type=float, default=inf, help="after so many, further contestants are left out"
    )
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: CPU seconds of the first rank",
    )
    options = parser.parse_args()
    here = Path(__file__).parent
    clock = [str(here / "cpu_clock.py")] if options.clock == "cpu" else []

    def command(name: str, processes: str, *how: str) -> list[str]:
        if name == "ours":
            script = [sys.executable, *clock, str(here / "ours.py"), "--ranks", processes]
            script += ["--accelerator", options.device, "--rounds", str(options.rounds)]
            script += ["--precision", "bf16-mixed"] if "bf16" in how else []
            return [
                *script,
                "--way",
                "-".join(word for word in how if word != "bf16") or "sequential",
            ]
        launcher = [options.peers_python]
        if name == "pfl" and processes != "1":
            launcher += [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc_per_node={processes}",
            ]
            launcher += [str(here / "one_gpu.py")] if options.device == "cuda" else []
        return [*launcher, *clock, str(options.peers / f"time_{name}.py"), str(options.rounds)]

    print(where(), flush=True)
    names = options.only.split(",")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[str, float] = {}
    began = time.perf_counter()
    for turn in range(options.passes):
        for name in names:
            if time.perf_counter() - began > options.seconds:
                print(f"pass {turn + 1} {name:32} left out, no time")
                continue
            parts = name.split("-")
            environment = {
                "OMP_NUM_THREADS": "1",
                "THREADS": "1",
                "WORKERS": parts[1],
                "DEVICE": options.device,
            }
            try:
                each, peak = run(["timeout", str(options.limit), *command(*parts)], **environment)
            except SystemExit as error:
                print(
                    f"pass {turn + 1} {name:32} FAILED: {str(error).splitlines()[-1]}", flush=True
                )
                continue
            seconds[name].append(each)
            peaks[name] = max(peaks.get(name, 0), peak)
            print(f"pass {turn + 1} {name:32} {each:.3f} s/round", flush=True)
    seconds = {name: each for name, each in seconds.items() if len(each) == options.passes}
    if not seconds:
        raise SystemExit("none of them ran")
    print(table(seconds, 2500, {name: f"peak {peak:.0f} MB" for name, peak in peaks.items()}))
    kinds = dict.fromkeys(name.split("-")[0] for name in seconds)
    for kind in kinds:
        best = min((n for n in seconds if n.startswith(kind)), key=lambda n: median(seconds[n]))
        for name in seconds if kind != "ours" else ():
            if name.startswith("ours"):
                each = [a / b for a, b in zip(seconds[best], seconds[name], strict=True)]
                ratios = ", ".join(f"{r:.2f}" for r in each)
                print(f"=> {best} / {name}: {median(each):.2f} (median of passes; {ratios})")
    print(where().splitlines()[-1])


if __name__ == "__main__":
    main()
