"""Callbacks that end a run early: a scalar stops improving, or the model stops moving."""

from collections import ChainMap
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from fl_lightning.callbacks.bases import Measure, Stopping
from fl_lightning.callbacks.checkpoint import Checkpoint
from fl_lightning.callbacks.scoring import Evaluation
from fl_lightning.core.constraints import FiniteFloat, NonNegativeFloat, PositiveFloat
from fl_lightning.errors import UserError
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.runs.scalars import higher_is_better


@dataclass(eq=False)
class EarlyStopping(Stopping):
    """Ends a run when a scalar of the rounds has stopped improving, or has reached a target.

    Rounds that do not record it do not count. Raises a UserError after `patience` evaluations if
    no round has recorded it, and all measures have been made once.

    Args:
        patience: Evaluations without improvement before the run stops.
        monitor: The scalar, such as val/loss, val/accuracy or train/loss; none for the score that
            chooses best.pt, the first of the validation part.
        min_delta: The smallest change that is an improvement.
        mode: The direction in which the scalar improves; auto: as its metric says, else by its
            name: max for scores such as accuracy, auroc, dice or f1, else min.
        stopping_threshold: Stop at once when the scalar is as good as this, such as 0.97 of a
            test/accuracy; none for patience alone.
    """

    monitor: str | None = None
    min_delta: NonNegativeFloat = 0.0
    mode: Literal["auto", "min", "max"] = "auto"
    stopping_threshold: FiniteFloat | None = None
    score: float = field(default=-inf, init=False)
    best: float = field(default=-inf, init=False)
    evaluations: int = field(default=0, init=False)
    follows: tuple[str, ...] = field(default=(), init=False)
    saved = "score", "best", "evaluations", "follows"

    def on_fit_start(self, federation: Federation) -> None:
        """Begin anew also where a resumed run monitors another scalar."""
        follows = self.mode, self._monitored(federation)
        if federation.round and follows != self.follows:
            self._begin_anew()
        super().on_fit_start(federation)
        self.follows = follows

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        monitor = self._monitored(federation)
        if monitor in federation.last_only:
            return  # a run of more rounds would not have compared it
        callbacks = federation.fabric._callbacks
        scored = (one.scored for one in callbacks if isinstance(one, Evaluation))
        self.evaluations += federation.round in scored
        if monitor not in metrics:
            rarest = max((one.every for one in callbacks if isinstance(one, Measure)), default=1)
            unknown = self.evaluations >= self.patience and federation.round >= rarest
            if self.best == -inf and unknown:
                known = ", ".join(sorted(metrics))
                raise UserError(f"no round has recorded {monitor!r}: monitor one of {known}")
            return
        self.score = metrics[monitor] * self._sign(federation)
        better = self.score > self.best + self.min_delta
        self.best = self.score if better else self.best
        self._count(federation, better)

    def _ends(self, federation: Federation) -> bool:
        if self.stopping_threshold is None:
            return super()._ends(federation)
        reached = self.score >= self.stopping_threshold * self._sign(federation)
        return reached or super()._ends(federation)

    def _monitored(self, federation: Federation) -> str:
        callbacks = federation.fabric._callbacks
        chooses = (one.monitor for one in callbacks if isinstance(one, Checkpoint))
        return self.monitor or next(chooses, "train/loss")

    def _sign(self, federation: Federation) -> int:
        """1 if larger values are better, else -1."""
        others = [getattr(other, "directions", {}) for other in federation.fabric._callbacks]
        monitor = self._monitored(federation)
        upwards = ChainMap(*others).get(monitor, higher_is_better(monitor))
        return 1 if {"auto": upwards, "max": True, "min": False}[self.mode] else -1


@dataclass(eq=False)
class GrowthStopping(Stopping):
    """Ends a run when the distance of the model from its start, |w^t - w^0|, hardly grows.

    It needs no data. Logs the distance as `server/distance` and its relative growth
    |w^t - w^0| / |w^(t-1) - w^0| - 1 as `server/growth`.

    Lee, Lee, Jung, Luo, Gong, Cao, Kang, "Beyond Fixed Rounds: Data-Free Early Stopping for
    Practical Federated Learning", 2026, arXiv:2601.22669. That the growth is relative to the last
    distance is our reading of its abstract.

    Args:
        patience: Rounds in a row with too little growth before the run stops.
        tau: The growth below which a round counts.
    """

    tau: PositiveFloat = 1e-3
    distance: float = field(default=0.0, init=False)
    saved = ("distance",)

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        distance = (federation.w.detach() - federation.server.initial_w).norm().item()
        growth = distance / self.distance - 1 if self.distance else inf
        metrics["server/distance"], self.distance = distance, distance
        if growth < inf:
            metrics["server/growth"] = growth
        self._count(federation, growth >= self.tau)
