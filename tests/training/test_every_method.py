"""Every method on images, texts, tables and a LightningModule: it trains, or says why not."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from every_algorithm import DIFFERENT_GRADIENTS, LORA
from lightning_modules import Lit, distance, rows, state, trainer
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning.algorithms.registry import ALGORITHMS

OWNERS = torch.arange(24) % 3
G = torch.Generator().manual_seed(1)


class NextToken(nn.Module):
    """Scores (n, t, 5) for tokens (n, t)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(tokens))[0])


def image() -> tuple[nn.Module, Any, dict[str, Any]]:
    pixels = torch.randint(256, (24, 1, 4, 4), generator=G, dtype=torch.uint8)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    return net, (pixels, torch.arange(24) // 8), {}  # all classes for each owner


def text() -> tuple[nn.Module, Any, dict[str, Any]]:
    tokens = torch.randint(5, (24, 7), generator=G)
    return NextToken(), (tokens[:, :-1], tokens[:, 1:]), {"metrics": ["perplexity"]}


def table() -> tuple[nn.Module, Any, dict[str, Any]]:
    x = torch.randn(24, 5, generator=G)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    return net, (x, x.sum(1)), {"loss": "mse", "metrics": ["r2"]}


def lightning() -> tuple[nn.Module, Any, dict[str, Any]]:
    return Lit(norm=False), rows(24), {}


TASKS = {task.__name__: task for task in (image, text, table, lightning)}

REFUSED: dict[tuple[str, str], str] = {
    **{("feddisco", task): "classes of their samples" for task in ("text", "table")},
    ("fedntd", "table"): "of classes",
    ("fedgkd", "table"): "of classes",
    **{("fedbn", task): "no parameter of the part 'norm'" for task in TASKS},
    ("gradient_projection", "table"): "of classes",
    ("fedgmt", "table"): "of classes",
    ("fedrcl", "table"): "no classes",  # it contrasts samples of a class with others
    ("fedrcl", "text"): "no classes",  # of whole texts
    ("feddecorr", "text"): "enters the head",  # it correlates features of whole texts
    **{(name, "text"): "no classes" for name in ("fedrs", "fedlc")},
    **{(name, "table"): "the loss is mse" for name in ("fedrs", "fedlc")},
    **dict.fromkeys(
        [(f"fedsol{kind}", "table") for kind in ("", "_ft", "_ablation")], "of classes"
    ),
    **{
        (name, task): "part 'lora_B'" if name in ("ffa_lora", "fedsa_lora") else "no LoRA layers"
        for name in LORA
        if name != "fedit"
        for task in TASKS
    },
    **dict.fromkeys(  # the step computes the loss, so that it has none of the displaced head
        [(f"fedsol{kind}", "lightning") for kind in ("", "_ft")], "'outer'.* own loss"
    ),
}
"""Words of the refusal, by method and task."""


PAIRS = [
    (method, task)
    for method, task in product(ALGORITHMS, TASKS)
    if task == "lightning" or method in DIFFERENT_GRADIENTS or (method, task) in REFUSED
]
"""Only terms that compute gradients see the task."""


@pytest.mark.parametrize(("method", "task"), PAIRS)
def test_a_method_trains_or_says_why_not(method: str, task: str) -> None:
    torch.manual_seed(1)
    module, samples, options = TASKS[task]()
    before = state(module)
    if method.startswith("dp_"):
        options["sampling"] = "bernoulli"
    fit = trainer(method, rounds=1, local_steps=2, batch_size=4, **options)
    data = fl.FederatedData(samples, clients=OWNERS, test=0.25)
    if words := REFUSED.get((method, task)):
        with pytest.raises(fl.UserError, match=words):
            fit.fit(module, data)
        assert distance(module, before) == 0
        assert not Path("runs").exists()
        return
    fit.fit(module, data)
    assert (distance(module, before) > 0) == (method != "local_only")
    assert all(t.isfinite().all() for t in module.state_dict().values())
    assert fit.history["train/loss"].notna().all()
