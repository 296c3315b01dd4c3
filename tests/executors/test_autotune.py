"""AutotunedExecutor: times each executor, then continues with the fastest."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from executors import Branching
from problems import classifier, trained
from torch import Tensor, nn

from fl_lightning import (
    AutotunedExecutor,
    Federation,
    ModelError,
    SequentialExecutor,
    StackedExecutor,
    algorithms,
)
from fl_lightning.cli import build
from fl_lightning.core.vector import Layout
from fl_lightning.data.sources import digits
from fl_lightning.executors import Outcome, autotune
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp

THREE_A_ROUND: dict[str, Any] = {"rounds": 8, "sampler": lambda *_: [0, 1, 2]}
"""One call a round, where all of them train in parallel."""


class Trial:
    """Makes executors whose local steps take a given time; records which ones trained."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, list[str]()

    def maker(self, kind: Any, milliseconds: float, **options: Any) -> Any:
        """An executor whose local steps take so long, and whose first call takes a minute more."""
        trial = self

        class Timed(kind):  # type: ignore[misc]
            def __call__(self, received: Any, visits: Any) -> Iterable[Outcome]:
                yield from super().__call__(received, visits)
                minute = 60.0 * (kind.__name__ not in trial.calls)
                trial.seconds += minute + 1e-3 * milliseconds * sum(len(v.lrs) for v in visits)
                trial.calls.append(kind.__name__)

        return partial(Timed, **options)

    def run(self, *candidates: Any, **options: Any) -> Federation:
        fastest = partial(AutotunedExecutor, candidates=candidates)
        return trained(algorithms.fedtoga(), executor=fastest, **THREE_A_ROUND, **options)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    made = Trial()
    monkeypatch.setattr(autotune, "synchronized_time", lambda device: made.seconds)
    return made


@pytest.mark.parametrize(
    ("stacked", "best", "how"),
    [(0.5, "StackedExecutor", "3 in parallel"), (3, "SequentialExecutor", "one after another")],
)
def test_the_fastest_continues_and_the_result_is_that_of_any(
    stacked: float, best: str, how: str, trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trial.run(
        trial.maker(SequentialExecutor, 2), trial.maker(StackedExecutor, stacked, width=3)
    )
    assert trial.calls[:6] == 3 * ["SequentialExecutor"] + 3 * ["StackedExecutor"]
    assert set(trial.calls[6:]) == {best}
    assert run.local_training.executor.width == (3 if best == "StackedExecutor" else 1)
    (line,) = capsys.readouterr().out.splitlines()
    assert f"took 2 ms one after another, {stacked:.3g} ms 3 in parallel" in line
    assert line.endswith(f": continuing {how}")
    expected = trained(algorithms.fedtoga(), **THREE_A_ROUND).w
    torch.testing.assert_close(run.w, expected, rtol=0, atol=1e-10)


class TooLarge(StackedExecutor):
    def __call__(self, *given: Any) -> Iterable[Outcome]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB\nand more lines")


class Normalized(nn.Linear):
    """Writes into a given tensor, which `torch.func.vmap` refuses with an error of its own."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(6, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            norm = torch.div(self.weight, self.weight.norm(), out=torch.empty_like(self.weight))
        return super().forward(x) + norm.sum()


class Refusing(StackedExecutor):
    def __call__(self, *given: Any) -> Iterable[Outcome]:
        raise RuntimeError("output with shape [5, 20] doesn't match the broadcast shape [3, 5, 20]")


@pytest.mark.parametrize(
    ("several", "module", "why"),
    [
        (StackedExecutor, Branching, "this model or its loss cannot run for several clients"),
        (StackedExecutor, Normalized, "this model or its loss cannot run"),
        (Refusing, classifier, "output with shape"),
        (TooLarge, classifier, "CUDA out of memory"),
    ],
)
def test_what_cannot_train_is_dropped_and_its_clients_train_with_the_others(
    several: Any, module: Any, why: str, trial: Trial, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trial.run(trial.maker(SequentialExecutor, 2), partial(several, width=3), module=module())
    assert set(trial.calls) == {"SequentialExecutor"}
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"clients will not train 3 in parallel: {why}")
    alone = trained(algorithms.fedtoga(), module=module(), **THREE_A_ROUND)
    assert torch.equal(run.w, alone.w)
    assert run.local_training.executor.width == 1


def test_what_the_first_cannot_train_is_an_error(trial: Trial) -> None:
    with pytest.raises(ModelError, match="cannot run for several clients"):
        trial.run(
            trial.maker(StackedExecutor, 1, width=3),
            trial.maker(SequentialExecutor, 2),
            module=Branching(),
        )


@pytest.mark.parametrize(
    ("flags", "device", "kind", "width"),
    [
        ("", "cpu", SequentialExecutor, 1),
        ("", "cuda", AutotunedExecutor, 4),
        ("--deterministic", "cuda", SequentialExecutor, 1),
        ("--executor sequential", "cuda", SequentialExecutor, 1),
        ("--executor stacked", "cpu", StackedExecutor, 4),
        ("--compile", "cpu", StackedExecutor, 1),
    ],
)
def test_executor_auto_measures_on_a_gpu_only(
    flags: str, device: str, kind: type, width: int
) -> None:
    experiment = Experiment([digits], [mlp], argv=flags.split(), parallel_clients=4)
    module = classifier()
    executor = build.executor(experiment.options, torch.device(device))(module, Layout(module))
    assert (type(executor), executor.width) == (kind, width)
