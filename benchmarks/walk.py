"""The functions and files of the package that a command executes.

    python benchmarks/walk.py recipes/digits.py --rounds 1 --devices 1 --clients 6 --local-epochs 1

Counts are of this process and its threads, without lambdas; commit 1b5b789 has 446 functions in 87
files. `--list` before the script prints the functions of each file, too.
"""

import runpy
import sys
import threading
from collections import defaultdict
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = f"{Path(__file__).resolve().parents[1]}/"
FOLDERS = "fl_lightning/", "callbacks/", "recipes/"
FIRST_CLIENT = "fl_lightning/federation/local_training.py", "LocalTraining.run"
"""With this function the first client begins to train."""

Functions = dict[str, set[str]]
"""Names of the functions that were called, by file."""


def main(argv: list[str]) -> None:
    """Run a script and print the counts."""
    listing = argv[0] == "--list"
    script, *arguments = argv[listing:]
    parts: dict[bool, Functions] = {late: defaultdict(set) for late in (False, True)}
    seen, late = set[CodeType](), False

    def record(frame: FrameType, event: str, _: Any) -> None:
        nonlocal late
        code = frame.f_code
        if event != "call" or code in seen or not code.co_flags & CO_OPTIMIZED:  # class bodies
            return
        file = code.co_filename.removeprefix(ROOT)
        name = code.co_qualname.replace("<locals>.", "")
        if not file.startswith(FOLDERS) or "<" in name:  # not a lambda
            return
        late = late or (file, name) == FIRST_CLIENT
        seen.add(code)
        parts[late][file].add(name)

    sys.argv = [script, *arguments]
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.setprofile(None)
        _print(parts, listing)


def _print(parts: dict[bool, Functions], listing: bool) -> None:
    files = {file for part in parts.values() for file in part}
    functions = {late: sum(map(len, part.values())) for late, part in parts.items()}
    print(f"{sum(functions.values())} functions in {len(files)} files")
    for late, when in ((False, "before the first client trains"), (True, "first called after it")):
        print(f"  {functions[late]} in {len(parts[late])} {when}")
        for file, names in sorted(parts[late].items()) if listing else ():
            print(f"    {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main(sys.argv[1:])
