"""Signals that ask for a stop, ranks that raise, and ranks whose launcher is gone."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import runs
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from problems import federation
from torch.distributed import TCPStore

from fl_lightning import Algorithm, TermError
from fl_lightning.distributed import signals as supervision
from fl_lightning.distributed.signals import (
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    exit_with_launcher,
    stop_on_signals,
)
from fl_lightning.executors import SequentialExecutor, StackedExecutor
from fl_lightning.experiment import Experiment
from fl_lightning.federation import federation as simulation

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """The results with so many ranks."""

    def results(ranks: int) -> dict[str, Any]:
        folder = tmp_path_factory.getbasetemp() / "never stopped" / str(ranks)
        if not folder.exists():
            assert runs.end(runs.begin(folder, ranks=ranks)) == [0] * ranks, runs.said(folder)
        return runs.results(folder)

    return results


def signalled(number: signal.Signals) -> Callable[..., Any]:
    """Let a signal come in the middle of a client's training."""

    def visit(function: Any, *args: Any) -> Any:
        os.kill(os.getpid(), number)
        return function(*args)

    return visit


@pytest.mark.parametrize(
    ("ranks", "hit", "number", "codes"),
    [(1, 0, signal.SIGTERM, [EXIT_PREEMPTED]), (2, 1, signal.SIGUSR1, [EXIT_PREEMPTED, 0])],
    ids=["one rank", "one of two ranks"],
)
def test_a_signal_ends_the_round_writes_a_checkpoint_and_leaves_on_every_rank(
    ranks: int,
    hit: int,
    number: signal.Signals,
    codes: list[int],
    never_stopped: Any,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    visits = 12 // ranks - 1  # in the third round, of four clients
    prepare = runs.at_call(visits, SequentialExecutor, "_visit", signalled(number), rank=hit)
    assert runs.end(runs.begin(folder, ranks=ranks, prepare=prepare)) == codes, runs.said(folder)
    why = f"by {number.name}" if hit == 0 else "as another rank or a callback asked"
    assert (
        f"stopped {why} after round 3 of 7, which is saved: go on with --run-dir {folder} --resume\n"
        in runs.said(folder)
    )
    assert (folder / "checkpoints" / "round-3.ckpt").exists()
    assert not (folder / "model.pt").exists()
    assert runs.end(runs.begin(folder, ranks=ranks)) == [0] * ranks, runs.said(folder)
    assert runs.results(folder) == never_stopped(ranks)
    assert runs.steps_in_tensorboard(folder) == [tuple(range(1, 8))]


def test_one_rank_stops_after_a_signal_in_the_evaluation_too() -> None:
    class Asks:
        def on_round_end(self, federation: Any, metrics: dict[str, float]) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    run = federation(Algorithm(), fabric=Fabric(accelerator="cpu", devices=1, callbacks=[Asks()]))
    with stop_on_signals(run.request_stop) as received:
        run.fit()
    assert (run.round, run.should_stop, received) == (1, True, ["SIGTERM"])


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in supervision.SIGNALS]
    with stop_on_signals(lambda: None):
        assert [signal.getsignal(number) for number in supervision.SIGNALS] != before
    assert [signal.getsignal(number) for number in supervision.SIGNALS] == before


# --------------------------------------------------------------------------------------------------------------- Ctrl-C


class Leaving:
    """Python drops what is raised where this goes."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)


def interrupted_where_nobody_hears(_: Any, *args: Any) -> None:
    Leaving()
    time.sleep(600)


@pytest.mark.parametrize(("ranks", "codes"), [(1, [EXIT_INTERRUPTED]), (2, [EXIT_INTERRUPTED, 0])])
def test_ctrl_c_ends_the_run_also_where_the_exception_gets_lost(
    ranks: int, codes: list[int], tmp_path: Path
) -> None:
    def prepare(rank: int) -> None:
        supervision.GRACE_S = 0.1
        runs.at_call(
            6 // ranks, SequentialExecutor, "_visit", interrupted_where_nobody_hears, rank
        )(rank)

    folder = tmp_path / "run"
    assert runs.end(runs.begin(folder, ranks=ranks, prepare=prepare)) == codes, runs.said(folder)
    told = f"interrupted: round 0 is saved, go on with --run-dir {folder} --resume\n"
    assert runs.said(folder).count(told) == 1


def waits_for_another_machine(*_: Any) -> None:
    """In a call that does not come back to Python when a signal comes."""
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    TCPStore("127.0.0.1", find_free_network_port(), 2, is_master=True, timeout=timedelta(minutes=5))


def test_ctrl_c_ends_a_run_that_waits_for_other_ranks(tmp_path: Path) -> None:
    def prepare(rank: int) -> None:
        supervision.GRACE_S = 0.1
        runs.at_call(1, Experiment, "load", waits_for_another_machine, rank)(rank)

    assert runs.end(runs.begin(tmp_path / "run", prepare=prepare), 20) == [EXIT_INTERRUPTED]
    assert runs.said(tmp_path / "run") == "interrupted before anything was saved\n"


def interrupted(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)


@pytest.mark.parametrize(("ranks", "codes"), [(1, [EXIT_INTERRUPTED]), (2, [EXIT_INTERRUPTED, 0])])
def test_ctrl_c_before_the_first_round_leaves_nothing(
    ranks: int, codes: list[int], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    lives_ = runs.begin(
        folder,
        ranks=ranks,
        prepare=lambda r: runs.at_call(1, Experiment, "federation", interrupted, r)(r),
    )
    assert runs.end(lives_) == codes, runs.said(folder)
    assert runs.said(folder).endswith("interrupted before anything was saved\n")
    assert "Traceback" not in runs.said(folder)
    assert not folder.exists()


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("where", [(0, 1), (1,)], ids=["on both ranks", "on one rank"])
def test_data_that_cannot_be_loaded_are_told_once(where: tuple[int, ...], tmp_path: Path) -> None:
    def no_data(_: Any, *args: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory", "data/cifar10")

    def prepare(rank: int) -> None:
        if rank in where:
            runs.at_call(1, Experiment, "load", no_data, rank)(rank)

    folder = tmp_path / "run"
    assert runs.end(runs.begin(folder, ranks=2, prepare=prepare)) == [2, 2], runs.said(folder)
    assert runs.said(folder).count("data/cifar10: No such file or directory") == 1
    assert "Traceback" not in runs.said(folder)


def fails(_: Any, *args: Any) -> Any:
    raise RuntimeError("a bug of my own")


def test_a_rank_that_raises_names_client_and_round_and_ends_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started = time.monotonic()
    codes = runs.end(
        runs.begin(
            folder, ranks=2, prepare=runs.at_call(5, SequentialExecutor, "_visit", fails, rank=1)
        )
    )
    assert codes == [2, 2], runs.said(folder)
    assert time.monotonic() - started < 60
    told = r"error: RuntimeError: a bug of my own \(test_signals.py, line \d+; .*\) \(in round 3 of 7, client \d\)"
    assert re.search(told, runs.said(folder))
    assert "error: round 3 of 7: another rank ended" in runs.said(folder)


STACKED = "--executor", "stacked", "--parallel-clients", "2"
FEW = "--participation", "0.125"
"""One client a round, on rank 0: the other rank idles."""


def test_clients_that_train_at_once_are_all_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    prepare = runs.at_call(3, StackedExecutor, "__call__", fails, rank=1)
    codes = runs.end(runs.begin(folder, *STACKED, ranks=2, prepare=prepare))
    assert codes == [2, 2], runs.said(folder)
    assert re.search(r"in round 3 of 7, clients \d, \d\)\n", runs.said(folder))


def for_long(_: Any, *args: Any) -> Any:
    time.sleep(600)


def both(*prepares: runs.Prepare) -> runs.Prepare:
    return lambda rank: [prepare(rank) for prepare in prepares] and None


KILLED = {
    "training": ((), 6, (SequentialExecutor, "_visit"), r"rank 1, training client \d\n"),
    "training two at once": (
        STACKED,
        3,
        (StackedExecutor, "__call__"),
        r"rank 1, training clients \d, \d\n",
    ),
    "idle": (FEW, 3, (simulation, "train"), r"rank 1\n"),
}
"""Options, and where in round 3 one rank is killed and the other is busy."""


@pytest.mark.parametrize("case", KILLED)
def test_a_killed_rank_ends_one_that_is_busy_for_long_and_whom_it_was_training_is_said(
    case: str, tmp_path: Path
) -> None:
    """Long before the sums, where the loss of a rank would show."""
    options, call, place, who = KILLED[case]
    folder = tmp_path / "run"
    prepare = both(runs.at_call(call, *place, rank=1), runs.at_call(call, *place, for_long, rank=0))
    codes = runs.end(runs.begin(folder, *options, ranks=2, prepare=prepare))
    assert codes == [2, -9], runs.said(folder)
    assert re.search(f"error: round 3 of 7: another rank ended: {who}", runs.said(folder)), (
        runs.said(folder)
    )


def test_an_idle_rank_ends_when_the_one_that_trains_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    codes = runs.end(
        runs.begin(
            folder, *FEW, ranks=2, prepare=runs.at_call(3, SequentialExecutor, "_visit", rank=0)
        )
    )
    assert codes == [-9, 2], runs.said(folder)
    assert re.search(
        r"error: round 3 of 7: another rank ended.*rank 0, training client \d", runs.said(folder)
    )


def wrong(_: Any, *args: Any) -> Any:
    raise TermError("this term is wrong")


def test_a_sentence_that_one_rank_alone_knows_is_said_by_it(tmp_path: Path) -> None:
    """The first rank could only say that another rank ended."""
    folder = tmp_path / "run"
    codes = runs.end(
        runs.begin(
            folder, ranks=2, prepare=runs.at_call(1, SequentialExecutor, "_visit", wrong, rank=1)
        )
    )
    assert codes == [2, 2], runs.said(folder)
    assert "error: this term is wrong (in round 1 of 7, client " in runs.said(folder)


def watched(launched_as: dict[str, str], say: Callable[[str], None]) -> None:
    """A rank that does nothing for ten seconds but heed signals, and its launcher's end."""
    asked = list[bool]()
    os.environ |= launched_as
    supervision.POLL_S = 0.02
    with stop_on_signals(lambda: asked.append(True)), exit_with_launcher():
        say("watching")
        for _ in range(1000):
            time.sleep(0.01)
            if asked:
                say("asked to stop")
                os._exit(0)
    say("outlived its launcher")
    os._exit(0)


BY_LIGHTNING, BY_TORCHRUN = {"LOCAL_RANK": "1"}, {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("launched_as", "last_words"),
    [(BY_LIGHTNING, ["watching"]), (BY_TORCHRUN, ["watching", "asked to stop"])],
    ids=["by Lightning", "by torchrun"],
)
def test_a_rank_whose_launcher_is_gone_ends(
    launched_as: dict[str, str], last_words: list[str]
) -> None:
    fork, (read, write) = get_context("fork"), os.pipe()

    def say(word: str) -> None:
        os.write(write, f"{word}\n".encode())

    def launcher() -> None:
        fork.Process(target=watched, args=(launched_as, say)).start()
        os._exit(0)

    process = fork.Process(target=launcher)
    process.start()
    process.join()
    os.close(write)
    with os.fdopen(read) as words:  # ends when nobody is left who could speak
        assert words.read().splitlines() == last_words
