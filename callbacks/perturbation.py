"""Measures of where clients take their gradients: SAM's perturbations and FedSOL's strength."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning.callbacks.bases import CohortMeasure
from fl_lightning.callbacks.scoring import TrainingLoss
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.constraints import PositiveInt
from fl_lightning.core.oracle import BatchOracle, Oracle, Request
from fl_lightning.core.term import States
from fl_lightning.core.vector import Layout, unit
from fl_lightning.core.view import LOGGED
from fl_lightning.executors import ClientResult, RoundInputs, SequentialExecutor
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.server import copy_of
from fl_lightning.terms.sol import relative_move


class _Recording(Algorithm):
    """An algorithm that keeps where its steps take their last gradient, relative to the model."""

    perturbations: list[Tensor]

    def gradient(
        self, oracle: Oracle, w: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, list[States]]:
        """As the algorithm's."""
        assert isinstance(oracle, BatchOracle)
        evaluate, points = oracle.evaluate, [w]

        def recorded(at: Tensor, request: Request) -> Tensor:
            if not request.loss_only:
                points.append(at)
            return evaluate(at, request)

        result = super().gradient(BatchOracle(recorded), w, *args, **kwargs)
        self.perturbations.append(points[-1] - w)
        return result


@dataclass(eq=False)
class PerturbationDrift(CohortMeasure):
    """Adds how far clients' perturbations e_i are from the global one: FedLESAM's Figure 2.

    e_i is where a client takes the last gradient of a step, minus its model; the global one, e, has
    its length and the direction of the global gradient at w^t. `perturbation/drift` is the mean of
    `|e_i - e|^2` over the cohort, `perturbation/cos` that of the cosine, `perturbation/norm` that
    of |e_i|. The first two are missing where no client perturbs. The steps are taken again on a
    copy of the model. A perturbation inside the head (FedSOL of the head) does not show.

    Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890.

    Args:
        steps: Number of first steps of each visit to average over.
        samples: Number of random training samples of the global gradient; None is all.
    """

    steps: PositiveInt = 1
    samples: PositiveInt | None = None

    def on_round_start(self, federation: Federation, cohort: Sequence[int]) -> None:
        """Take the first steps of this rank's part of the cohort."""
        super().on_round_start(federation, cohort)
        if not self.due:
            return
        up = unit(TrainingLoss(federation, self.samples).gradient(federation.w.detach()))
        fabric, module = federation.fabric, copy_of(federation.module)
        executor = SequentialExecutor(
            module, Layout(module), loss=federation.loss, autocast=fabric.autocast
        )
        recording = _Recording(*federation.algorithm.terms, local=federation.algorithm.local)
        training, server = federation.local_training, federation.server
        facts = training.round_facts(len(cohort))
        visits = training.visits(cohort, training.weights(cohort))
        for k in range(fabric.global_rank, len(cohort), fabric.world_size):
            visit = visits[k]()
            unlogged = [  # diagnostics take further gradients
                {name: state for name, state in term.items() if not name.startswith(LOGGED)}
                for term in visit.states
            ]
            visit = replace(visit, lrs=visit.lrs[: self.steps], states=unlogged)
            recording.perturbations = []
            sent = RoundInputs(recording, facts, server.states, server.buffers)
            list(executor(sent, [visit]))
            self.rows[cohort[k]] = _compare(recording.perturbations, up)

    def measure(self, federation: Federation) -> Metrics:
        drift, cos, norm, moved = self.table(federation, 4).mean(0).tolist()
        found = {"perturbation/norm": norm}
        if moved:
            found |= {"perturbation/drift": drift, "perturbation/cos": cos / moved}
        return found


def _compare(perturbations: Sequence[Tensor], up: Tensor) -> list[float]:
    """Means over a client's steps: `|e_i - e|^2`, cosine, |e_i|, and whether it is not 0."""
    rows = []
    for e in perturbations:
        norm = e.norm()
        row = [(e - norm * up).square().sum(), unit(e).dot(up), norm, (norm > 0).to(norm)]
        rows.append(torch.stack(row))
    return torch.stack(rows).mean(0).tolist()


class LayerStrength(CohortMeasure):
    """Adds FedSOL's strength of each parameter at the end of local training: its Figure 5b.

    `strength/<parameter>` is the mean of `|w_i - w^t| / ||w_i - w^t||` (Eq. 7) over the elements of
    the parameter and over the cohort, of any method. It is at most 1 / sqrt(elements).

    Lee et al., CVPR 2024, https://arxiv.org/abs/2308.12532.
    """

    def on_client_end(self, federation: Federation, client: int, result: ClientResult) -> None:
        if self.due:
            moved = result.origin + result.progress - federation.w.detach()
            parts = federation.layout.split(moved)
            self.rows[client] = [float(relative_move(part, "tensor").mean()) for part in parts]

    def measure(self, federation: Federation) -> Metrics:
        names = federation.layout.names
        means = self.table(federation, len(names)).mean(0).tolist()
        return {f"strength/{name}": mean for name, mean in zip(names, means, strict=True)}
