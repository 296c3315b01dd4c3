"""A module trains the same in every executor, or parallel clients refuse it."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from lightning_modules import ByRound, Lit, data, distance, module, owners, rows, state, trainer
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import fl_lightning as fl

EXECUTORS = {
    "stacked": {"executor": "stacked", "parallel_clients": 3},
    "compiled": {"compile": True},
    "stacked and compiled": {"executor": "stacked", "parallel_clients": 2, "compile": True},
}


def fitted(**executor: Any) -> tuple[dict[str, Tensor], Any]:
    """Weights and history after three rounds of FedTOGA."""
    module = ByRound(partial(SGD, lr=0.1, momentum=0.9), dropout=0.3, step=2).double()
    run = trainer("fedtoga", rounds=3, **executor)
    run.fit(module, data(torch.float64, test=rows(20, torch.float64)))
    return state(module), run.history.drop(columns=[n for n in run.history if "time/" in n])


sequential = cache(fitted)


@pytest.mark.parametrize("name", EXECUTORS)
def test_executors_agree(name: str, traces: list[Any]) -> None:
    """With ragged clients, batches that are dictionaries, dropout, momentum and a scheduler."""
    expected, history = sequential()
    found, other = fitted(**EXECUTORS[name])
    assert distance(found, expected) < 1e-10
    assert (other - history).abs().max().max() < 1e-10
    assert bool(traces) == ("compiled" in name)
    assert history["local/lr"].tolist() == pytest.approx([0.1, 0.1, 0.05])
    assert {"loss", "loss_std", "loss_worst10", "test_loss"} <= {*history}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # by dynamo, in evaluation
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_part_in_torch_compile_draws_the_same_dropout(executor: str) -> None:
    plain, compiled = (Lit(dropout=0.5).double() for _ in range(2))
    compiled.drop.compile(backend="eager")
    for each in (plain, compiled):
        trainer(executor=executor).fit(each, data(torch.float64))
    assert distance(plain, compiled) == 0


def draws(self: Any, batch: Any, index: int) -> Tensor:
    return Lit.training_step(self, {**batch, "x": batch["x"] + torch.randn(6)}, index)


def test_what_parallel_clients_cannot_run_is_named_by_the_users_class() -> None:
    mine = module(training_step=draws)
    with pytest.raises(fl.UserError, match=r"^Mine or its loss draws random numbers"):
        trainer(executor="stacked").fit(mine, data())


def test_a_penalty_of_a_models_weights_trains_one_client_at_a_time() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out, y) + line.weight.square().sum()

    x, y = rows(12, torch.float64).values()
    given = fl.FederatedData((x, y), clients=[0] * 12)
    line, options = nn.Linear(6, 3).double(), {"loss": loss, "lr": 0.1, "batch_size": 12}
    start = state(line)
    trainer(rounds=1, **options).fit(line, given)
    found = line.weight.detach().clone()
    line.load_state_dict(start)
    loss(line(x), y).backward()
    torch.testing.assert_close(found, start["weight"] - 0.1 * line.weight.grad)
    with pytest.raises(fl.UserError, match="reads weights of Linear itself"):
        trainer(executor="stacked", **options).fit(line, given)
    trainer(executor="stacked", **options).fit(nn.Linear(6, 3), given)  # of another model's


class Recomputed(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return checkpoint(super().forward, x, use_reentrant=False)


class WithGradientOfInputs(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        x = x.clone().requires_grad_()
        out = super().forward(x)
        return out + torch.autograd.grad(out.sum(), x, create_graph=True)[0].mean()


class WithGradientOfTime(nn.Linear):
    """As a physics-informed network, whose time does not come with the samples."""

    def forward(self, x: Tensor) -> Any:
        time = torch.ones(len(x), 1, requires_grad=True)
        out = super().forward(x * time)
        return out + torch.autograd.grad(out.sum(), time, create_graph=True)[0]


class WithInferenceMode(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        with torch.inference_mode():
            scale = super().forward(x).std()
        return super().forward(x) / scale.clone()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Recomputed, "saved tensor hooks"),
        (WithGradientOfInputs, "requires_grad_"),
        (WithGradientOfTime, "does not require grad"),
        (WithInferenceMode, "inference tensor"),
    ],
)
def test_what_cannot_run_in_parallel_trains_one_after_another(kind: Any, words: str) -> None:
    given = fl.FederatedData(tuple(rows().values()), clients=owners())
    trainer(rounds=1).fit(kind(6, 3), given)
    with pytest.raises(fl.UserError, match=f"{words}.*sequential executor"):
        trainer(rounds=1, executor="stacked").fit(kind(6, 3), given)
