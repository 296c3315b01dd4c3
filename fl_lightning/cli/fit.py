"""The rounds of a run under signals, and the message at its end."""

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from fl_lightning.callbacks import ProgressBar
from fl_lightning.distributed.signals import EXIT_PREEMPTED, leave, stop_on_signals
from fl_lightning.federation.federation import Federation
from fl_lightning.runs.folder import RunFolder


def fit(federation: Federation, folder: RunFolder, progress: ProgressBar, fine_tunes: bool) -> None:
    """Run the remaining rounds, and print the results.

    Args:
        federation: The simulation.
        folder: Its folder.
        progress: Its progress bar, which is stopped.
        fine_tunes: Whether clients fine-tune after the last round.

    Raises:
        SystemExit: With code 75 if a signal stopped the run.
    """
    fabric, status = federation.fabric, "failed"
    with stop_on_signals(partial(federation.request_stop, preempted=True)) as signals:
        try:
            federation.fit()
            status = "success"
        finally:
            progress.stop()
            for logger in fabric.loggers:
                logger.finalize(status)
    if not federation.finished or (fine_tunes and federation.preempted):
        _leave(federation, folder, signals)
    if federation.round < federation.rounds:
        fabric.print(f"ended early, after round {federation.round} of {federation.rounds}")
    if fabric.is_global_zero:
        print(folder.results_text(sent=federation.cost.uplink > 0))


def _leave(federation: Federation, folder: RunFolder, signals: Sequence[str]) -> NoReturn:
    """End a run that was asked to stop, on all ranks together."""
    reason = f"by {signals[0]}" if signals else "as another rank asked"
    federation.fabric.print(
        f"stopped {reason} after round {federation.round} of {federation.rounds}, which is "
        f"saved: continue with --run-dir {folder.path} --resume"
    )
    federation.fabric.barrier()  # the first rank has written everything
    leave(EXIT_PREEMPTED)
