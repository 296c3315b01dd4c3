"""Models with dropout train alike in every executor; other random numbers are refused."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from executors import COMPILED, STACKED, TRACED, Around, assert_agree
from problems import EVERY_ALGORITHM, classification, classifier, federation, term, trained
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.ops import StochasticDepth

from fl_lightning import (
    Algorithm,
    Federation,
    ModelError,
    SequentialExecutor,
    StackedExecutor,
    Term,
)
from fl_lightning.core.oracle import Oracle


class OfSequences(nn.Module):
    """Scores of sequences of pairs, through a layer of width 8."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.inner, self.layer, self.outer = nn.Linear(2, 8), layer, nn.Linear(8, 3)
        self.head = "outer"

    def forward(self, x: Tensor) -> Any:
        out = self.layer(self.inner(x))
        return self.outer((out[0] if isinstance(out, tuple) else out).mean(1))


class Attention(nn.MultiheadAttention):
    def forward(self, x: Tensor, **options: Any) -> Any:
        return super().forward(x, x, x, **options)


def layers(p: float) -> dict[str, Callable[[], nn.Module]]:
    first = {"batch_first": True, "dropout": p}
    narrow = {"input_size": 8, "num_layers": 2, **first}
    return {
        "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, **first),
        "attention": lambda: Attention(8, 2, **first),
        "lstm": lambda: nn.LSTM(hidden_size=4, bidirectional=True, **narrow),
        "gru": lambda: nn.GRU(hidden_size=8, **narrow),
        "channels": lambda: nn.Sequential(nn.Dropout1d(p), nn.AlphaDropout(p)),
        "depth": lambda: nn.Sequential(StochasticDepth(p, "row"), StochasticDepth(p, "batch")),
    }


def of_sequences(name: str, p: float = 0.3, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return OfSequences(layers(p)[name]()).to(dtype)


def sequences(dtype: torch.dtype = torch.float64) -> Any:
    return classification(shape=(3, 2), dtype=dtype)


@pytest.mark.parametrize("name", layers(0.0))
def test_stacked_clients_agree_with_sequential_ones_on(name: str) -> None:
    """Under FedSOL, whose reference passes are in evaluation."""

    def run(p: float = 0.3, **options: Any) -> Federation:
        module = of_sequences(name, p)
        given = {"module": module, "clients": sequences(), "rounds": 1, **options}
        return trained(EVERY_ALGORITHM["fedsol"], **given)

    expected = run()
    assert_agree(run(executor=STACKED), expected)
    assert (run(p=0.0).w - expected.w).abs().max() > 1e-5


@pytest.mark.parametrize("name", ["encoder", "lstm", "depth"])
def test_compiled_clients_agree_with_sequential_ones_on(name: str, traces: list[Any]) -> None:
    clients, cohort = classification((5, 5), shape=(3, 2), epochs=2), lambda *_: [0, 1]
    given = {"clients": clients, "sampler": cohort, "rounds": 1}
    compiled = COMPILED["stacked, traced"]
    expected = trained(Algorithm(), module=of_sequences(name), **given)
    run = trained(Algorithm(), module=of_sequences(name), executor=compiled, **given)
    assert_agree(run, expected)
    assert len(traces) == 1


def test_stacked_clients_agree_on_losses_of_an_lstm() -> None:
    """Passes without a gradient take other ways through PyTorch."""

    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) * oracle.loss(w)

    expected, run = (
        trained(Algorithm(term(gradient=gradient)), module=of_sequences("lstm"), **given)
        for given in ({"clients": sequences()}, {"clients": sequences(), "executor": STACKED})
    )
    assert_agree(run, expected)


def test_lstm_in_float32_runs_without_a_warning() -> None:
    """Its oneDNN form would be run client by client."""
    module = of_sequences("lstm", dtype=torch.float32)
    trained(Algorithm(), module=module, clients=sequences(torch.float32), executor=STACKED)


# ------------------------------------------------------------------------- other random numbers


@pytest.mark.parametrize("executor", [STACKED, TRACED], ids=["stacked", "compiled"])
@pytest.mark.parametrize(
    "draw",
    [
        lambda inner, x: inner(x + torch.randn_like(x)),
        lambda inner, x: inner(x * torch.empty(6, dtype=x.dtype).bernoulli_(0.5)),
        lambda inner, x: inner(x * random.random()),
    ],
    ids=["torch", "in place", "python"],
)
def test_a_model_that_draws_otherwise_is_refused_before_the_first_round(
    draw: Callable[[nn.Module, Tensor], Any], executor: Any
) -> None:
    run = federation(Algorithm(), module=Around(draw), executor=executor)
    with pytest.raises(ModelError, match="Around or its loss draws random numbers"):
        run.prepare()


def test_one_client_at_a_time_may_draw_otherwise() -> None:
    module = Around(lambda inner, x: inner(x + torch.randn_like(x)))
    for executor in (SequentialExecutor, partial(StackedExecutor, width=1)):
        federation(Algorithm(), module=module, executor=executor).prepare()


def test_trying_the_model_changes_nothing() -> None:
    module = classifier()
    run = federation(Algorithm(), module=module, executor=STACKED)
    generator = torch.get_rng_state()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    run.prepare()
    assert all(value.equal(state[name]) for name, value in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert torch.get_rng_state().equal(generator)


def transformer() -> nn.Module:
    torch.manual_seed(1)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 4, "mlp_dim": 4, "num_classes": 3}
    model = VisionTransformer(4, 2, dropout=0.2, attention_dropout=0.2, **sizes)
    nn.init.normal_(model.heads.head.weight)
    return model.double()


def test_stacked_clients_agree_on_a_vision_transformer() -> None:
    given = {"clients": classification(shape=(3, 4, 4)), "rounds": 1}
    expected = trained(Algorithm(), module=transformer(), **given)
    assert_agree(trained(Algorithm(), module=transformer(), executor=STACKED, **given), expected)
