"""A table whose processes are killed is made by the same command, to the same numbers."""

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import StringIO
from math import nan
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.process import BaseProcess
from pathlib import Path

import jobs
import pytest
from pandas import read_csv
from pandas.testing import assert_frame_equal

from fl_lightning.__main__ import main
from fl_lightning.lab.sweep import pool
from fl_lightning.runs.folder import saved_rounds

METHODS = "methods: {fedavg: {}, fedsam: {}, scaffold: {}}"
TABLE = f"""\
recipe: digits
rounds: 20
clients: 10
local_steps: 1
checkpoint_every: 2
{METHODS}
columns: {{skewed: {{partition.alpha: 0.1}}}}
published: {{fedavg: [90], fedsam: {{skewed: 95}}}}
"""


SLOW = """\
import time
from pathlib import Path


class Slow:
    def on_round_end(self, federation, metrics):
        time.sleep(0.2 * Path("slow").exists())
"""


@pytest.fixture
def slow() -> Path:
    """A file; as long as it exists, rounds take long enough to kill a run in the middle."""
    Path("slow.py").write_text(SLOW)
    Path("table.yaml").write_text(f"{TABLE}callback: [slow.py:Slow]\n")
    Path("slow").touch()
    return Path("slow")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("table.yaml").write_text(TABLE)
    return tmp_path


def begin(name: str, *argv: str) -> BaseProcess:
    """The command in a process, which has the package already; output to `<name>.log`."""
    return jobs.start(Path(name), {}, command, *argv)


def command(*argv: str) -> None:
    vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))  # none of another test's
    util.spawnv_passfds = fork
    main(["table", "table.yaml", "--jobs", "2", *argv])


def fork(path: bytes, args: Sequence[str], passed: Sequence[int]) -> int:
    """A process for `python -c` that has the package already: it becomes the fork server."""
    if pid := os.fork():
        return pid
    try:
        for descriptor in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *passed}:
            with suppress(OSError):
                os.close(descriptor)
        exec(args[-1], {})
    finally:
        os._exit(1)


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def shown(name: str) -> str:
    said = jobs.said(Path(name))
    return said[said.index("row,") :]


def rounds(run: str) -> int:
    file = Path("runs/table", run, "metrics.csv")
    return len(file.read_text().splitlines()) - 1 if file.exists() else 0


def children(*parents: int) -> list[int]:
    pids = ",".join(map(str, parents))
    found = subprocess.run(["pgrep", "-P", pids], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def workers(parent: int) -> list[int]:
    """The processes of the runs: the parent's server has forked them."""
    return children(*children(parent))


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_killed_workers_and_parents_lose_nothing(slow):
    parent = begin("killed")
    wait_for(lambda: rounds("skewed-fedavg-s0") > 4)
    first, second = workers(parent.pid)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: rounds("skewed-scaffold-s0") > 4)
    third = [pid for pid in workers(parent.pid) if pid != second]
    parent.kill()
    wait_for(lambda: not any(map(alive, [second, *third])))
    assert not Path("runs/table/skewed-scaffold-s0/model.pt").exists()

    slow.unlink()
    assert jobs.end([begin("again", "--format", "csv")], 120) == [0]
    numbers = read_csv(StringIO(shown("again"))).set_index("row")
    for method in ("fedavg", "fedsam", "scaffold"):
        run = f"skewed-{method}-s0"
        config = ["--config", f"runs/table/{run}/config.yaml", "--run-dir", f"whole/{run}"]
        main(["run", "digits", *config])
        ours, whole = (read_csv(Path(f, run, "metrics.csv")) for f in ("runs/table", "whole"))
        untimed = [column for column in whole if not column.startswith("time/")]
        assert_frame_equal(ours[untimed], whole[untimed], check_exact=True)
        assert numbers["mean"][method] == pytest.approx(100 * whole["test/accuracy"][-10:].mean())
    assert numbers["published"].to_dict() == pytest.approx(
        {"fedavg": 90, "fedsam": 95, "scaffold": nan}, nan_ok=True
    )


def test_ctrl_c_saves_the_round_and_a_failed_run_stops_no_other(capsys):
    """The second method fails in the first round; the third is interrupted.

    The fork server is one of a fresh interpreter, as for users.
    """
    Path("mine.py").write_text("def mine():\n    raise RuntimeError('no luck')\n")
    rows = "rows: {fedavg: {}, fedsam: {model: mine.py:mine}, scaffold: {}}"
    Path("table.yaml").write_text(TABLE.replace(METHODS, rows).replace("20", "50"))

    def interrupt() -> None:
        wait_for(lambda: rounds("skewed-scaffold-s0") > 4)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(SystemExit) as stop:
        main(["table", "table.yaml", "--jobs", "1"])
    out, err = capsys.readouterr()
    assert stop.value.code == 130, err
    assert "failed: runs/table/skewed-fedsam-s0: RuntimeError: no luck" in err
    assert "the same command continues" in err
    saved = saved_rounds(Path("runs/table/skewed-scaffold-s0"))
    log = Path("runs/table/logs/skewed-scaffold-s0.log").read_text()
    assert saved[-1] == rounds("skewed-scaffold-s0") < 50, log
    assert "2 of 3 runs are missing" in out
    assert out.startswith("| method"), "progress would be in `> table.md`"


def test_a_csv_of_several_scores_has_one_line_of_headings(capsys):
    scores = "score: [best, final]\npublished: {best: {fedavg: [90]}, final: {fedsam: [95]}}\n"
    Path("table.yaml").write_text(TABLE[: TABLE.index("published")] + scores)
    with pytest.raises(SystemExit, match="0"):
        main(["table", "table.yaml", "--no-runs", "--format", "csv"])
    numbers = read_csv(StringIO(capsys.readouterr().out))
    shown = numbers.set_index(["row", "score"])["published"].dropna().to_dict()
    assert shown == {("fedavg", "best, %"): 90, ("fedsam", "final, %"): 95}


def test_two_commands_at_once_make_each_run_once():
    Path("table.yaml").write_text(TABLE.replace("rounds: 20", "rounds: 3"))
    assert jobs.end([begin(name, "--format", "csv") for name in ("one", "other")], 120) == [0, 0]
    assert shown("one") == shown("other")
    assert len(list(Path("runs/table").glob("*/metrics.csv"))) == 3
    assert not list(Path("runs/table/logs").glob("*-2.log"))


def test_stacked_runs_are_stopped_resumed_and_equal_to_single_ones():
    """The rows differ in more than numbers; each stack has a row's seeds."""
    Path("table.yaml").write_text(TABLE.replace("rounds: 20", "rounds: 12"))
    further = ["--methods", "fedsam,scaffold", "--seeds", "0,1", "--stack", "2"]
    parent = begin("stopped", *further)
    wait_for(lambda: rounds("skewed-fedsam-s0") > 2)
    os.kill(parent.pid, signal.SIGINT)
    assert jobs.end([parent], 120) == [130], jobs.said(Path("stopped"))
    assert "4 runs train in 2 stacks, 0 train alone" in jobs.said(Path("stopped"))
    for run in ("skewed-fedsam-s0", "skewed-fedsam-s1"):
        assert 2 < saved_rounds(Path("runs/table", run))[-1] == rounds(run) < 12
    assert jobs.end([begin("again", *further, "--format", "csv")], 120) == [0]
    for run in ("skewed-fedsam-s1", "skewed-scaffold-s1"):
        config = ["--config", f"runs/table/{run}/config.yaml", "--run-dir", f"single/{run}"]
        main(["run", "digits", *config, "--executor", "stacked"])
        ours, single = (read_csv(Path(f, run, "metrics.csv")) for f in ("runs/table", "single"))
        untimed = [column for column in single if not column.startswith("time/")]
        assert_frame_equal(ours[untimed], single[untimed], rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux tells of the server's end")
def test_runs_end_when_the_process_that_forked_them_is_killed(slow):
    parent = begin("parent")
    wait_for(lambda: len(workers(parent.pid)) == 2)
    both = workers(parent.pid)
    for run, worker in zip(("skewed-fedavg-s0", "skewed-fedsam-s0"), both, strict=True):
        wait_for(lambda run=run: rounds(run) > 4)
        os.kill(worker, signal.SIGSTOP)  # or it may finish before the other has begun
    [server] = [pid for pid in children(parent.pid) if both[0] in children(pid)]
    os.kill(server, signal.SIGKILL)
    slow.unlink()
    for worker in both:
        os.kill(worker, signal.SIGCONT)
    wait_for(lambda: not any(map(alive, both)))
    assert jobs.end([parent], 120) == [1]
    said = jobs.said(Path("parent"))
    assert said.count("the fork server was killed") == 2
    for method in ("fedavg", "fedsam"):
        run = Path(f"runs/table/skewed-{method}-s0")
        assert saved_rounds(run)[-1] == rounds(run.name) < 20, said
    assert rounds("skewed-scaffold-s0") == 20, "a new server has made the third run"


def test_a_mac_starts_runs_without_forks_and_with_their_threads(monkeypatch):
    with monkeypatch.context() as mac:
        mac.setattr(sys, "platform", "darwin")
        context = runpy.run_path(pool.__file__)["CONTEXT"]
    assert context.get_start_method() == "spawn"
    monkeypatch.setattr(pool, "CONTEXT", context)
    monkeypatch.setattr(os, "fork", None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with pytest.raises(SystemExit, match="0"):
        main(["table", "table.yaml", "--methods", "fedavg", "--rounds", "1", "--jobs", "1"])
    environment = Path("runs/table/skewed-fedavg-s0/environment.yaml").read_text()
    assert "threads: 1" in environment


def test_signals_are_blocked_in_what_starts_also_if_it_is_the_first(monkeypatch):
    """Python's resource tracker starts before, and its start unblocks two."""
    tracker = resource_tracker.ResourceTracker()
    monkeypatch.setattr(resource_tracker, "ensure_running", tracker.ensure_running)
    with pool._inherited({}):
        resource_tracker.ensure_running()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    tracker._stop()
    assert blocked >= {*pool.SIGNALS}
