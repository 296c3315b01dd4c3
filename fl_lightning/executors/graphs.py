"""Clients side by side, each local step of theirs a CUDA graph.

A graph is launched at once, where the kernels of a small step take longer to launch than to run.
Without a GPU all is the same but for graphs and streams, so that tests on a CPU run every line.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import nn

from fl_lightning.core.randomness import seeded_rng
from fl_lightning.core.substitution import substituted
from fl_lightning.core.vector import Layout
from fl_lightning.errors import ModelError, first_sentence
from fl_lightning.executors.executor import ClientResult, ClientTask, RoundInputs, Visit
from fl_lightning.executors.local_step import LocalStep, SharedArgs, try_in_parallel
from fl_lightning.executors.replay import ReplayedStep, copied, write
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.executors.stacked import (
    Begun,
    Ended,
    StackedExecutor,
    by_run,
    shared_args,
    stack,
    unstack,
)


class GraphExecutor(StackedExecutor):
    """Trains up to `width` clients side by side, each local step a CUDA graph.

    What `vmap` refuses trains in branches. What no graph can repeat trains one client after another
    as in `SequentialExecutor`: a model that draws random numbers other than dropout's, or a term
    that waits for the device. A printed line says so.

    Args:
        module: See `Executor`, as for `layout`.
        stacked: Clients with equal steps are rows of one program, as in `StackedExecutor`, if they
            are as many as in the round's largest group. Others, and all if it is false, are
            branches: each client has graphs and a stream of its own.
        **options: Arguments of `StackedExecutor`.

    Attributes:
        graphs: Whether the clients train so; once it is false, they train one after another.
    """

    parallel = False  # terms that `vmap` refuses need not be refused

    def __init__(self, module: nn.Module, layout: Layout, *, stacked: bool, **options: Any):
        super().__init__(module, layout, **options)
        self.stacked, self.as_tensors = stacked, True
        self.graphs = True
        self._replayed: dict[Any, ReplayedStep] = {}
        self._shared: dict[LocalStep, SharedArgs] = {}

    @property
    def manner(self) -> str:
        """See `Executor`."""
        how = "as one program" if self.stacked else "in branches"
        graphs = " of CUDA graphs" if self.device.type == "cuda" else ""
        return f"{self.width} clients at a time {how}{graphs}" if self.graphs else ""

    def try_model(self, x: Any, y: Any) -> None:
        """Choose another way if the model cannot train on samples like these in this one."""
        while self.graphs:
            try:
                try_in_parallel(self, x, y, batched=self.stacked)
                return
            except ModelError as error:
                self._step_down(error)

    def train(
        self, received: Sequence[RoundInputs], tasks: Sequence[ClientTask]
    ) -> Iterable[ClientResult]:
        """Train clients together: see `StackedExecutor`."""
        while self.graphs:
            try:
                yield from list(self._together(received, tasks))
                return
            except torch.OutOfMemoryError:
                self._free()
                raise
            except Exception as error:  # whatever it is, the eager executor does or explains it
                self._step_down(error)
        for run, mine in by_run(received, tasks):
            yield from self._eager(run, mine)

    @cached_property
    def _eager(self) -> SequentialExecutor:
        """Made late: the module's parameters become views of its vector."""
        return SequentialExecutor(self.module, self.layout, loss=self.loss, autocast=self.autocast)

    def _step_down(self, reason: Exception) -> None:
        """From now on train in branches; or one client after another, if that was not possible."""
        way = "in branches, not as one program" if self.stacked else "one after another, no graphs"
        print(f"clients train {way}: {type(reason).__name__}: {first_sentence(reason)}")
        self.graphs, self.stacked = self.stacked, False
        self._free()

    def _free(self) -> None:
        """Free the memory of the graphs."""
        if any(step.stream for step in self._replayed.values()):
            torch.cuda.synchronize()  # they may still run
        self._replayed.clear()
        self._shared.clear()

    def _together(
        self, received: Sequence[RoundInputs], tasks: Sequence[ClientTask]
    ) -> Iterable[ClientResult]:
        equal = len({tuple(task.batches.sizes) for task in tasks}) == 1
        runs = [*by_run(received, tasks)]
        if self.stacked and equal and all(len(mine) >= run.group for run, mine in runs):
            return super().train(received, tasks)
        return chain.from_iterable(self._in_branches(*run) for run in runs)

    def _steps(
        self,
        local_step: LocalStep,
        tasks: Sequence[ClientTask],
        begun: Begun,
        shared: SharedArgs,
        full: bool,
    ) -> Ended:
        """The steps of clients that are rows of one program."""
        self._share(local_step, shared)
        step = self._step(local_step, 0, begun)
        step.begin(tasks, begun)
        for k in range(step.count):
            step.take(k)
        return step.end()

    def _in_branches(
        self, received: RoundInputs, tasks: Sequence[ClientTask]
    ) -> Iterator[ClientResult]:
        """Train each client in a branch of its own; their numbers of steps may differ."""
        self.begin_training()
        anchor = received.facts["anchor"]
        local_step = self.local_step(received.algorithm, batched=False)
        self._share(local_step, shared_args(received, as_tensors=True))
        with seeded_rng(tasks[0].seed, anchor.device), substituted(batched=False):
            visits = [Visit(self, received, task) for task in tasks]
            steps = []
            for i, (task, visit) in enumerate(zip(tasks, visits, strict=True)):
                facts = {**task.facts, "origin": visit.facts["origin"]}
                begun = stack([(facts, visit.states, visit.buffers)])
                steps.append(self._step(local_step, i, begun))
                steps[-1].begin([task], begun)
            for k in range(max(step.count for step in steps)):
                for step in steps:
                    if k < step.count:
                        step.take(k)
            for step, visit in zip(steps, visits, strict=True):
                (after,) = unstack(step.end())
                yield visit.result(*after)

    def _share(self, local_step: LocalStep, shared: SharedArgs) -> None:
        """Write what all clients of a call share into its static tensors."""
        if local_step in self._shared:
            write(self._shared[local_step], shared)
        else:
            self._shared[local_step] = copied(shared)

    def _step(self, local_step: LocalStep, branch: int, begun: Begun) -> ReplayedStep:
        """The step of a branch, of as many clients as have begun."""
        key = local_step, branch, len(begun[0]["origin"])
        if key not in self._replayed:
            self._replayed[key] = ReplayedStep(local_step, self._shared[local_step], begun)
        return self._replayed[key]
