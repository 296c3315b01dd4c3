"""A table of 20 million rows: seconds to the first round, and the most memory of the process.

    python benchmarks/large_table.py --folder /tmp/table          NumPy maps, 1.6 GB on the disk
    python benchmarks/large_table.py --folder /tmp/table --csv    the same rows as a CSV file

A linear model is trained on the squared error of 20 inputs, 10 of 10,000 clients a round. Rows are
made before the clock starts. The memory is the process's own (anonymous); pages of mapped files,
which the system may take back, are counted beside it.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from torch import nn

import fl_lightning as fl

COLUMNS, CLIENTS, BLOCK = 20, 10_000, 500_000


def make(folder: Path, rows: int, csv: bool) -> None:
    """Write inputs, targets and owners, unless they are there."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, COLUMNS))
    slopes = rng.normal(size=COLUMNS).astype(np.float32)
    for start in range(0, rows, BLOCK):
        x[start : start + BLOCK] = rng.normal(size=(min(BLOCK, rows - start), COLUMNS))
    owners = rng.integers(CLIENTS, size=rows)
    y = x @ slopes + rng.normal(size=rows).astype(np.float32)
    np.save(folder / "y.npy", y)
    np.save(folder / "owners.npy", owners)
    if csv:
        _write_csv(folder, x, y, owners)
    (folder / "done").touch()


def _write_csv(folder: Path, x: np.ndarray, y: np.ndarray, owners: np.ndarray) -> None:
    import pandas

    for start in range(0, len(x), BLOCK):
        part = slice(start, start + BLOCK)
        frame = pandas.DataFrame(x[part], columns=[f"x{i}" for i in range(x.shape[1])])
        frame = frame.assign(y=y[part], user=owners[part])
        frame.to_csv(folder / "rows.csv", mode="a", header=not start, index=False)


def from_maps(folder: Path) -> fl.FederatedData:
    """The arrays as they are on the disk."""
    x = torch.from_numpy(np.load(folder / "x.npy", mmap_mode="c"))
    y = torch.from_numpy(np.load(folder / "y.npy"))[:, None]
    return fl.FederatedData((x, y), clients=torch.from_numpy(np.load(folder / "owners.npy")))


def from_csv(folder: Path) -> fl.FederatedData:
    """The file, read in chunks."""
    return fl.FederatedData.from_table(folder / "rows.csv", target="y", clients="user")


def watch(most: dict[str, float]) -> None:
    """Keep the largest sizes of this process in GB, looking ten times a second."""
    while True:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(("RssAnon", "VmRSS")):
                name, value, _ = line.split()
                most[name] = max(most.get(name, 0.0), int(value) / 1e6)
        time.sleep(0.1)


def main() -> None:
    """Make, train two rounds, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--csv", action="store_true")
    options = parser.parse_args()
    make(options.folder, options.rows, options.csv)
    read: Callable[[Path], fl.FederatedData] = from_csv if options.csv else from_maps
    most: dict[str, float] = {}
    Thread(target=watch, args=(most,), daemon=True).start()
    began, busy = time.perf_counter(), time.process_time()
    trainer = fl.FederatedTrainer(
        "fedavg", rounds=1, participation=1e-3, lr=0.01, loss="mse", run_dir=options.folder / "run"
    )
    trainer.fit(nn.Linear(COLUMNS, 1), read(options.folder))
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    print(f"{options.rows:,} rows: the first round ended after {seconds:.1f} s ({cpu:.1f} CPU s)")
    print(f"most memory {most['RssAnon:']:.2f} GB; {most['VmRSS:']:.2f} GB with mapped pages")


if __name__ == "__main__":
    main()
