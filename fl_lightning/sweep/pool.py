"""Several workers in parallel, and the failures of their jobs."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import torch

from fl_lightning.distributed.launch import available_cores
from fl_lightning.distributed.signals import EXIT_PREEMPTED
from fl_lightning.sweep.plan import Job


class Pool:
    """Runs jobs on workers until none is left or `stop` is called.

    Args:
        jobs: The jobs, in order.
        recipe: The recipe's file.
        logs: The folder of what the runs print, one file each.
        further: Options of the user, which resumed runs get.
        slots: The environment of each worker.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        recipe: Path,
        logs: Path,
        further: Sequence[str],
        slots: Sequence[Mapping[str, str]],
    ):
        self.recipe, self.logs, self.further = recipe, logs, further
        self.running: list[Job] = []
        self.failures: dict[Path, str] = {}
        self._waiting, self._stopping = list(jobs), False
        self._workers: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        threads = ThreadPoolExecutor(len(slots))
        self._serving = [threads.submit(self._serve, slot) for slot in slots[: len(jobs)]]
        threads.shutdown(wait=False)  # they end with their jobs

    def wait(self, seconds: float) -> bool:
        """Wait for the jobs, at most so long; true if none is left."""
        done, left = wait(self._serving, seconds)
        if not left:
            for thread in done:
                thread.result()  # raises its exception
        return not left

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Begin no further job and signal the workers; SIGTERM lets a run save its round."""
        with self._lock:
            self._stopping = True
            for worker in self._workers:
                worker.send_signal(number)

    def _serve(self, environment: Mapping[str, str]) -> None:
        """Give a worker one job after another; another worker where it has ended."""
        worker: subprocess.Popen[str] | None = None
        while True:
            with self._lock:
                if self._stopping or not self._waiting:
                    break
                job = self._waiting.pop(0)
                self.running.append(job)
                if worker is None:
                    worker = _start(environment)
                    self._workers.append(worker)
            code = self._run(worker, job)
            with self._lock:
                self.running.remove(job)
                if code and not self._stopping:
                    self.failures[job.folder] = _reason(code, self._log(job))
            if worker.poll() is not None:
                worker.communicate()
                worker = None
        if worker:
            worker.communicate()

    def _run(self, worker: "subprocess.Popen[str]", job: Job) -> int:
        """The exit code of a job; negative for the signal that ended its worker."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        argv, log = job.command(self.further), str(self._log(job))
        with suppress(BrokenPipeError):
            line = json.dumps({"recipe": str(self.recipe), "argv": argv, "log": log})
            print(line, file=worker.stdin, flush=True)
        reply = worker.stdout.readline()
        return int(reply) if reply else worker.wait()

    def _log(self, job: Job) -> Path:
        return self.logs / f"{job.folder.name}.log"


def _start(environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "fl_lightning.sweep.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C reaches the parent alone, which lets runs save their round
    )


def _reason(code: int, log: Path) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    if code == EXIT_PREEMPTED:
        return "it was asked to stop"
    text = log.read_text(errors="replace").strip() if log.is_file() else ""
    return text.splitlines()[-1].removeprefix("error: ") if text else f"exit code {code}"


def slots(jobs: int | None, per_gpu: int, on_cpu: bool, runs: int) -> list[dict[str, str]]:
    """The environment of each worker: a card, or one thread of the CPU.

    `jobs` is the number of workers; None is one a core, at most one a run, or `per_gpu` a card.
    """
    cards = 0 if on_cpu else torch.cuda.device_count()
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if not cards:
        return [threads] * (jobs or min(runs, available_cores()))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(cards)))).split(",")
    workers = jobs or cards * per_gpu
    return [{"CUDA_VISIBLE_DEVICES": visible[k % cards]} for k in range(workers)]
