"""A progress bar for the whole run."""

import sys
import time
from math import nan

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fl_lightning.federation.federation import Federation, Metrics

LINES = 20
"""Most plain lines of a run; they replace the live line where there is no terminal."""


class ProgressBar:
    """Shows round, score (the scalar `monitor`), loss, rounds a second and the time left."""

    _live: Progress | None = None
    _score = ""

    def __init__(self, monitor: str = "test/accuracy"):
        self.monitor = monitor

    def on_fit_start(self, federation: Federation) -> None:
        self._from, self._started = federation.round, time.monotonic()
        console = Console(file=sys.stdout)
        if federation.fabric.is_global_zero and console.is_terminal:
            text, bar = TextColumn("{task.description}"), BarColumn(bar_width=24)
            self._live = Progress(text, bar, TimeRemainingColumn(compact=True), console=console)
            rounds, done = federation.rounds, federation.round
            self._task = self._live.add_task("round 0", total=rounds, completed=done)
            self._live.start()

    def on_round_logged(self, federation: Federation, metrics: Metrics) -> None:
        # without uplink nobody trains the global model
        if self.monitor in metrics and federation.cost.uplink:
            name = self.monitor.removeprefix("test/")
            name = "test loss" if name == "loss" else name  # next to that of training
            self._score = f"  {name} {score_text(name, metrics[self.monitor])}"
        if not federation.fabric.is_global_zero:
            return
        if federation.round == 1 and metrics.get("term/clipped") == 1:
            show = self._live.console.print if self._live else print
            fix = "raise --clip-norm, or give the algorithm clips=False"
            show(f"note: every local step of round 1 was clipped: {fix}")
        done, rounds = federation.round, federation.rounds
        speed = (done - self._from) / (time.monotonic() - self._started)
        loss = metrics.get("train/loss", nan)
        text = f"round {done}/{rounds}{self._score}  loss {loss:.3f}  {speed:.2f} rounds/s"
        if self._live:
            self._live.update(self._task, description=text, completed=done)
        elif done % -(-rounds // LINES) == 0 or done == rounds:
            print(f"{text}  {_clock((rounds - done) / speed)} left", flush=True)

    def on_fit_end(self, federation: Federation) -> None:
        self.stop()

    def stop(self) -> None:
        """Restore the terminal, also when the run ends early."""
        if self._live:
            self._live.stop()
            self._live = None


def score_text(tag: str, value: float) -> str:
    """A score as text: an accuracy in percent."""
    return f"{value:.2%}" if "accuracy" in tag else f"{value:.4g}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
