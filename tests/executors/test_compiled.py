"""A compiled local step computes what the eager one computes."""

import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from executors import TRACED, Around, Counting, assert_agree, descending, needs_onednn
from problems import (
    EVERY_ALGORITHM,
    classification,
    classifier,
    convolutional,
    distances,
    federation,
    hard,
    round_after_round,
    trained,
)
from torch import nn

from fl_lightning import Algorithm, Federation, ModelError, StackedExecutor, algorithms
from fl_lightning.executors import graph_passes
from fl_lightning.executors.program import Program

CAT = torch.ops.aten.cat.default


def eager_and(
    executor: Any, algorithm: Algorithm, rounds: int = 3, **make: Callable[[], Any]
) -> tuple[Federation, Federation]:
    """The run and its eager counterpart; `make` makes options anew for each."""

    def run(**options: Any) -> Federation:
        made = {name: f() for name, f in make.items()}
        return round_after_round(federation(algorithm, **made, **options), rounds)

    return run(), run(executor=executor)


@pytest.mark.parametrize(("width", "numbers"), [(10, (1, 2, 3)), (3, (1, 2, 2))])
def test_the_largest_groups_of_each_round_are_compiled(
    width: int, numbers: Sequence[int], traces: list[Any]
) -> None:
    """The cohorts are of 5, 2 and 4 clients. What came before decides nothing, as in a resume."""
    even, algorithm = classification((10,) * 6), descending(algorithms.fedavg())
    run = federation(algorithm, clients=even, executor=partial(TRACED, width=width))
    for made in numbers:
        run.train_round()
        assert len(traces) == made
    assert_agree(run, trained(algorithm, clients=even))


@pytest.mark.parametrize(("name", "written"), [("fedprox", 1), ("fedsam", 2)])
def test_the_flat_gradient_is_written_only_where_it_is_needed_whole(
    name: str, written: int, traces: list[Any]
) -> None:
    """New weights are concatenated once; SAM's norm needs the gradient too."""
    round_after_round(federation(descending(EVERY_ALGORITHM[name]), executor=TRACED), 1)
    assert sum(node.target is CAT for node in traces[0].graph.nodes) == written


@needs_onednn
def test_large_float32_products_are_onednns_where_mkl_is_slow(
    traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_passes, "_mkl_is_slow", lambda: True)
    monkeypatch.setattr(graph_passes, "LEAST", 100)
    plain, traced = eager_and(
        TRACED,
        hard(algorithms.fedavg()),
        module=partial(classifier, dtype=torch.float32),
        clients=partial(classification, dtype=torch.float32),
    )
    assert max(distances(plain, traced).values()) < 1e-5
    targets = [node.target for node in traces[0].graph.nodes]
    assert targets.count(torch.ops.fl_lightning.product.default) == 5  # two forward, three backward
    assert torch.ops.aten.mm.default not in targets


def images(channels: int) -> dict[str, Any]:
    return {
        "module": partial(convolutional, channels),
        "clients": partial(classification, shape=(channels, 4, 6)),
    }


@pytest.mark.parametrize(("channels", "width"), [(1, 1), (3, 2)])
def test_max_pooling_of_one_client_is_vectorized(
    channels: int, width: int, traces: list[Any]
) -> None:
    """Of several clients vmap reshapes the indices, so PyTorch's own pooling stays."""
    executor = partial(TRACED, width=width)
    assert_agree(*eager_and(executor, hard(algorithms.fedavg()), **images(channels)))
    (trace,) = traces
    kept = any("max_pool2d" in str(node.target) for node in trace.graph.nodes)
    assert kept == (width > 1)


def test_images_after_a_group_norm_may_be_flattened(traces: list[Any]) -> None:
    """A trace takes it to be contiguous, which it is not of channels-last images."""

    def module() -> Any:
        made: Any = convolutional(3)
        made.norm = nn.GroupNorm(1, 5).double()
        return made

    executor = partial(TRACED, width=1)
    made = images(3) | {"module": module}
    assert_agree(*eager_and(executor, descending(algorithms.fedavg()), 1, **made))
    assert len(traces) == 1


def test_the_compiler_computes_the_same() -> None:
    """The only test that really compiles, which takes half a minute without inductor's cache."""
    assert_agree(*eager_and(TRACED, descending(algorithms.scaffold()), 1, **images(3)))


def test_signals_of_schedulers_do_not_reach_the_compiler(traces: list[Any]) -> None:
    ended = list[int]()

    def step(x: torch.Tensor) -> torch.Tensor:  # called while it is traced
        ended.append(subprocess.run(["sh", "-c", "kill -TERM $$; kill -USR1 $$"]).returncode)
        return x + 1

    Program(step)(torch.zeros(1))
    assert ended == [0]


def test_only_full_batches_of_full_width_are_compiled(traces: list[Any]) -> None:
    clients = classification((4, 3, 2, 4, 3, 2))
    executor = partial(StackedExecutor, compiled=5)
    round_after_round(federation(algorithms.fedavg(), clients=clients, executor=executor))
    assert not traces


# ------------------------------------------------------------------------ what cannot be compiled


def test_a_term_that_cannot_be_compiled_is_named() -> None:
    with pytest.raises(AttributeError) as caught:
        federation(Algorithm(Counting()), executor=TRACED)
    where, why = caught.value.__notes__
    assert where == "raised in Counting.gradient"
    assert "--compile" in why


def test_a_model_that_cannot_be_compiled_is_not_the_terms_fault() -> None:
    branching = Around(lambda inner, x: inner(x if x.sum() > -1e9 else -x))
    with pytest.raises(ModelError, match=r"this model or its loss .*--compile"):
        round_after_round(federation(algorithms.fedsam(), module=branching, executor=TRACED))


def test_without_a_compiler_the_first_line_of_its_error_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(*_: Any) -> Any:
        raise RuntimeError("no working C++ compiler found\nin any of these places")

    monkeypatch.setattr(torch._inductor, "compile", lacking)
    with pytest.raises(ModelError, match=r"\(RuntimeError: no working C\+\+ compiler found\).*--c"):
        round_after_round(federation(algorithms.fedavg(), executor=TRACED))


@pytest.mark.parametrize(
    ("name", "local", "width"),
    [("fedtoga", hard, 2), ("fedrcl", descending, 2), ("fedsmoo", descending, 1)],
)
def test_steps_of_one_and_of_several_clients_are_one_trace(
    name: str, local: Any, width: int, traces: list[Any]
) -> None:
    """Plain SGD is part of it."""
    executor = partial(TRACED, width=width)
    assert_agree(*eager_and(executor, local(EVERY_ALGORITHM[name])))
    assert len(traces) == 1
