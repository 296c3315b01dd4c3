"""A process that runs experiments one after another, so that they share one start-up.

Each line of its input is a job in JSON, each line of its output the exit code of one. It ends with
its input: a parent that is killed leaves no worker behind, and the run in progress is saved.
"""

import gc
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import torch

from fl_lightning.cli.recipes import run_recipe


def main() -> None:
    """Run the jobs of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    replies, jobs = os.fdopen(os.dup(1), "w"), SimpleQueue[str]()
    threading.Thread(target=_receive, args=(jobs,), daemon=True).start()
    while line := jobs.get():
        job = json.loads(line)
        code = run(job["recipe"], job["argv"], Path(job["log"]))
        with suppress(BrokenPipeError):  # the parent has ended
            print(code, file=replies, flush=True)


def _receive(jobs: "SimpleQueue[str]") -> None:
    for line in sys.stdin:
        jobs.put(line)
    jobs.put("")
    os.kill(os.getpid(), signal.SIGTERM)  # a run saves its round, an idle worker ends


def run(recipe: str, argv: Sequence[str], log: Path) -> int:
    """Run a recipe whose output is appended to a file; gives its exit code."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    code = 0
    try:
        run_recipe(recipe, argv)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        traceback.print_exc()
        # the parent shows the log's last line, which may be a note of the error
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # it stops compiling after several models
    return code


if __name__ == "__main__":
    main()
