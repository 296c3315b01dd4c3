"""A compiled local step is the local step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from problems import (
    EVERY_ALGORITHM,
    classification,
    classifier,
    convolutional,
    distances,
    federation,
    hard,
    trained,
)
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import (
    Algorithm,
    ClientData,
    Federation,
    ModelError,
    StackedExecutor,
    Term,
    algorithms,
)
from fl_lightning.core.oracle import Oracle
from fl_lightning.executors.compile import onednn as matrix_products

TOLERANCE = 1e-10


def three_rounds(algorithm: Algorithm, **options: Any) -> Federation:
    run = federation(hard(algorithm), **options)
    for _ in range(3):
        run.train_round()
    return run


def assert_alike(run: Federation, other: Federation, tolerance: float = TOLERANCE) -> None:
    assert not {name: d for name, d in distances(run, other).items() if not d <= tolerance}


def clients_of(name: str) -> ClientData:
    """With short last batches, which are not compiled; halves of two samples for Per-FedAvg under BatchNorm."""
    return (
        classification((16, 10, 12, 11, 4, 6), batch_size=6)
        if name == "perfedavg"
        else classification()
    )


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_one_trace_of_the_local_step_serves_all_rounds_clients_and_learning_rates(
    name: str, traces: list[Any]
) -> None:
    data = clients_of(name)
    traced = partial(StackedExecutor, width=1, compiled=data.batch_size)
    plain = three_rounds(EVERY_ALGORITHM[name], clients=data)
    assert_alike(plain, three_rounds(EVERY_ALGORITHM[name], clients=data, executor=traced))
    assert len(traces) == 1


@pytest.mark.parametrize("name", ["fedavg", "fedtoga", "fedssg", "fedrcl"])
def test_several_clients_are_one_trace(name: str, traces: list[Any]) -> None:
    traced = partial(StackedExecutor, width=2, compiled=5)
    assert_alike(
        three_rounds(EVERY_ALGORITHM[name]), three_rounds(EVERY_ALGORITHM[name], executor=traced)
    )
    assert len(traces) == 1


def descending(algorithm: Algorithm) -> Algorithm:
    """With weight decay and no momentum: what the program does itself."""
    return algorithm.with_outer_terms(local=partial(SGD, lr=0.1, weight_decay=0.01))


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fedsmoo", "fedtoga", "fedrcl"])
def test_a_step_of_sgd_is_part_of_the_program(name: str, width: int, traces: list[Any]) -> None:
    plain, traced = (
        federation(descending(EVERY_ALGORITHM[name]), **options)
        for options in ({}, {"executor": partial(StackedExecutor, width=width, compiled=5)})
    )
    for _ in range(3):
        plain.train_round()
        traced.train_round()
    assert_alike(plain, traced)
    assert len(traces) == 1


def test_groups_that_are_never_full_are_compiled_too_but_not_the_small_last_one(
    traces: list[Any],
) -> None:
    """The cohorts are of 5, 2 and 4 clients."""
    even = classification((10,) * 6)
    run = federation(
        descending(algorithms.fedavg()),
        clients=even,
        executor=partial(StackedExecutor, width=10, compiled=5),
    )
    for made in (1, 1, 2):
        run.train_round()
        assert len(traces) == made
    assert_alike(run, trained(descending(algorithms.fedavg()), clients=even))


@pytest.mark.parametrize(("name", "written"), [("fedprox", 1), ("fedsam", 2)])
def test_the_flat_gradient_is_written_only_where_it_is_needed_whole(
    name: str, written: int, traces: list[Any]
) -> None:
    """New weights are put together once; SAM's norm needs the gradient besides, its second pass no perturbed vector."""
    run = federation(
        descending(EVERY_ALGORITHM[name]), executor=partial(StackedExecutor, width=1, compiled=5)
    )
    run.train_round()
    assert (
        sum(node.target is torch.ops.aten.cat.default for node in traces[0].graph.nodes) == written
    )


def test_large_float32_products_are_onednns_where_mkl_is_slow(
    traces: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(matrix_products, "_mkl_is_slow", lambda: True)
    monkeypatch.setattr(matrix_products, "LEAST", 100)
    options = {"clients": classification(dtype=torch.float32)}
    plain, traced = (
        three_rounds(
            algorithms.fedavg(), module=classifier(dtype=torch.float32), **options, **executor
        )
        for executor in ({}, {"executor": partial(StackedExecutor, width=1, compiled=5)})
    )
    assert max(distances(plain, traced).values()) < 1e-5
    targets = [node.target for node in traces[0].graph.nodes]
    assert targets.count(torch.ops.fl_lightning.product.default) == 5  # two forward, three backward
    assert torch.ops.aten.mm.default not in targets


def of_images(channels: int, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """A model with max-pooling and its clients."""
    return {
        "module": convolutional(channels, dtype),
        "clients": classification(dtype=dtype, shape=(channels, 4, 6)),
    }


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("channels", [1, 3])
def test_pooling_is_vector_pooling(channels: int, width: int, traces: list[Any]) -> None:
    plain, traced = (
        three_rounds(algorithms.fedavg(), **of_images(channels), **executor)
        for executor in ({}, {"executor": partial(StackedExecutor, width=width, compiled=5)})
    )
    assert_alike(plain, traced)
    (trace,) = traces
    if width == 1:  # of several clients vmap reshapes the indices, so PyTorch's own pooling stays
        assert not [node for node in trace.graph.nodes if "max_pool2d" in str(node.target)]


@pytest.mark.parametrize(
    ("precision", "dtype", "rounds", "tolerance"),
    [("32-true", torch.float64, 3, TOLERANCE), ("bf16-mixed", torch.float32, 1, 5e-3)],
    ids=["float64", "bf16"],
)
def test_what_the_compiler_makes_of_it_is_the_same(
    precision: Any, dtype: torch.dtype, rounds: int, tolerance: float
) -> None:
    """In bf16 it rounds less often: 0.0003 apart, where float32 is 0.05 away."""
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    plain, compiled = (
        federation(
            descending(algorithms.fedtoga()), fabric=fabric, **of_images(3, dtype), **executor
        )
        for executor in ({}, {"executor": partial(StackedExecutor, width=1, compiled=5)})
    )
    for _ in range(rounds):
        plain.train_round()
        compiled.train_round()
    assert_alike(plain, compiled, tolerance)


def test_what_a_replay_overwrites_is_copied_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph writes its results where the last ones lay, of which some are its arguments."""

    def replaying(graph: Callable[..., Any], *_: Any) -> Callable[..., Any]:
        results: list[Tensor] = []

        def replay(*tensors: Tensor) -> list[Tensor]:
            for result in results:
                result.zero_()
            results[:] = graph(*tensors)
            return results

        return replay

    monkeypatch.setattr(torch._inductor, "compile", replaying)
    replayed = partial(StackedExecutor, width=1, compiled=5, mode="reduce-overhead")
    assert_alike(
        three_rounds(algorithms.scaffold()), three_rounds(algorithms.scaffold(), executor=replayed)
    )


def test_only_full_batches_of_full_width_are_compiled(traces: list[Any]) -> None:
    three_rounds(
        algorithms.fedavg(),
        clients=classification((4, 3, 2, 4, 3, 2)),
        executor=partial(StackedExecutor, compiled=5),
    )
    assert not traces


class Halving(Term):
    """Takes the round for an int, which it is not in a compiled step."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) / (v.round + 1).bit_length()


class Impatient(nn.Module):
    """Decides by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = classifier(dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x if x.norm() > 1e-3 else 2 * x)


def test_a_step_that_cannot_be_compiled_is_one_sentence() -> None:
    with pytest.raises(
        ModelError, match=r"this local step cannot be compiled .*: train without --compile"
    ) as caught:
        three_rounds(Algorithm(Halving()), executor=partial(StackedExecutor, width=1, compiled=5))
    assert caught.value.__notes__[0] == "raised in Halving.gradient"


def test_a_model_that_cannot_be_compiled_is_not_the_terms_mistake() -> None:
    with pytest.raises(ModelError, match=r"this model or its loss decides by .* without --compile"):
        three_rounds(
            algorithms.fedsam(),
            module=Impatient(),
            executor=partial(StackedExecutor, width=1, compiled=5),
        )


def test_without_a_compiler_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: Any) -> Any:
        raise RuntimeError("no working C++ compiler found\nin any of these places")

    monkeypatch.setattr(torch._inductor, "compile", lacking)
    with pytest.raises(
        ModelError,
        match=r"\(RuntimeError: no working C\+\+ compiler found\): train without --compile",
    ):
        three_rounds(algorithms.fedavg(), executor=partial(StackedExecutor, width=1, compiled=5))


def test_what_the_model_draws_itself_depends_on_the_client_alone() -> None:
    """Random numbers that have no key: of a visit by itself they are named by the visit's seed."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = classifier(dropout=0.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + 0.1 * torch.randn_like(x))

    one_by_one = three_rounds(algorithms.fedavg(), module=Noisy())
    assert_alike(
        one_by_one,
        three_rounds(
            algorithms.fedavg(), module=Noisy(), executor=partial(StackedExecutor, width=1)
        ),
    )
