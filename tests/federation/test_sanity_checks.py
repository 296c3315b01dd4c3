"""Odd data, models, optimizers, callbacks and ranks: named early, in one sentence."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from lightning.fabric import Fabric
from problems import classification, classifier, everything, federation, on_two_ranks, trained
from refusals import digits, scaffold
from torch import Tensor, nn

from fl_lightning import Algorithm, DeviceDataset, Term
from fl_lightning.callbacks import Checkpoint, Evaluation
from fl_lightning.data import Partition, schemes
from fl_lightning.runs.chosen import Chosen, build_data
from fl_lightning.training import parts
from fl_lightning.training.session import Session

Data = Callable[[], Any]
Change = Callable[[Any, Any], tuple[Any, Any]]


def changed(train: Change = lambda x, y: (x, y), test: Change = lambda x, y: (x, y)) -> Data:
    def odd() -> Any:
        return tuple(
            DeviceDataset(*change(data.x.float() / 16, data.y), data.classes)
            for change, data in zip((train, test), digits(), strict=True)
        )

    return odd


def normalized(**change: Any) -> Data:
    def odd() -> Any:
        train, test = digits()
        return train, replace(test, **change)

    return odd


def spoiled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.index_fill(0, torch.tensor([5]), torch.nan), y


def empty(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x[:0], y[:0]


def doubled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.double(), y


class Changed(nn.Module):
    def __init__(self, change: Callable[[Tensor], Any]):
        super().__init__()
        self.net, self.change = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net(x))


class FailsInEvaluation(Changed):
    def __init__(self) -> None:
        super().__init__(lambda out: out if self.training else out[7])


def model(change: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Changed(change)


def single(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.flatten(1)[:, 0], y


DATA = {
    "nan in training": (changed(spoiled), "training samples.* in 1 of 1,437"),
    "nan in the test": (changed(test=spoiled), "odd, test samples.* in 1 of 360"),
    "no test": (changed(test=empty), "odd has no test samples"),
    "no training": (changed(empty), "odd has no training samples"),
    "single numbers": (changed(single, single), "odd has single numbers"),
    "two dtypes": (changed(test=doubled), "dtype torch.float32 for training and torch.float64"),
    "another mean": (normalized(mean=(0.5,)), "odd has mean"),
    "another std": (normalized(std=(0.5,)), "odd has std"),
    "another dtype": (changed(doubled, doubled), "shape 1x8x8 .*same dtype, but got Double"),
}
MODELS = {
    "a tuple": (model(lambda out: (out, out)), "compare the output of Changed.*'tuple'"),
    "three dimensions": (model(lambda out: out[..., None]), r"\(2, 10, 1\)"),
    "no derivative": (model(lambda out: out + 0 * out.unique().sum()), "derivative for '_unique2'"),
    "an error in evaluation": (FailsInEvaluation, "1x8x8 in evaluation"),
    "no gradient": (model(lambda out: out.detach()), "output of Changed has no gradient"),
}


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        *[pytest.param({"data": odd}, named, id=case) for case, (odd, named) in DATA.items()],
        *[pytest.param({"model": odd}, named, id=case) for case, (odd, named) in MODELS.items()],
    ],
)
def test_odd_data_and_models_are_refused(choices, named, refused):
    assert re.search(named, refused(**choices))


def test_a_test_set_that_is_the_training_set_is_named():
    train, _ = digits()
    with pytest.warns(UserWarning, match="odd has the same samples for training and for testing"):
        build_data(Chosen("odd", lambda: (train, train), {}), Path())


def test_a_partition_that_splits_owners_anew_is_named() -> None:
    owners = {"domains": torch.arange(6) // 2, "domain_names": ("a", "b", "c")}
    owned = DeviceDataset(torch.ones(6, 2), torch.arange(6) % 2, ("0", "1"), **owners)
    with pytest.warns(UserWarning, match="samples of 3 owners.*--partition by_domain"):
        parts.partition(Chosen("iid", schemes.iid, {}), owned, 2, 0)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("Partition.from_owners(torch.arange(len(y)) % 5, 5)", "5 clients"),
        ("[[0, 1], [2, 3]]", "Partition"),
    ],
    ids=["of other clients", "lists"],
)
def test_odd_partitions_are_refused(made, named, tmp_path, refused):
    (tmp_path / "own.py").write_text(
        "import torch\nfrom fl_lightning import Partition\n"
        f"def own(y, clients, seed):\n    return {made}\n"
    )
    said = refused("--partition", f"{tmp_path / 'own.py'}:own")
    assert re.search(f"own.py:own.*{named}", said)


def test_a_model_that_returns_nan_is_right_about_nothing():
    """PyTorch's argmax of nan alone is 0."""
    run, data, metrics = federation(Algorithm()), classification().dataset, dict[str, float]()
    run.server.buffers["norm.running_mean"] *= torch.nan
    zeros = DeviceDataset(data.x, torch.zeros_like(data.y), data.classes)
    Evaluation(zeros).on_round_end(run, metrics)
    assert metrics["test/accuracy"] == 0


@pytest.mark.parametrize("kind", ["local", "server"])
def test_an_optimizer_that_cannot_step_on_a_vector_is_refused(kind):
    with pytest.raises(TypeError, match=r"LBFGS.* 'closure'"):
        federation(Algorithm(**{kind: torch.optim.LBFGS}))


def reporting(report: Callable[[Tensor], Any]) -> Algorithm:
    return Algorithm(type("Mine", (Term,), {"report": lambda self, w, v: report(w)})())


def test_a_message_may_have_a_graph():
    run = trained(reporting(lambda w: w.clone().requires_grad_() * 2))
    assert run.w.equal(trained(Algorithm()).w)


class Adds:
    def __init__(self, tag: str, value: Any):
        self.tag, self.value = tag, value

    def on_round_end(self, metrics: dict[str, Any]) -> None:
        metrics[self.tag] = self.value


@pytest.mark.parametrize(("tag", "value"), [("mine", "good"), ("mine", None), ("round", 7)])
def test_a_metric_that_is_not_one_number_is_named(tag, value, tmp_path, sentence):
    said = sentence(scaffold, tmp_path / "run", callbacks=[Adds(tag, value)])
    assert said.startswith(f"error: metrics['{tag}'] is ")
    assert tag == "round" or repr(value) in said
    assert "after round 1 of 7" in said


class Misnamed:
    def on_round_ended(self) -> None: ...


@pytest.mark.parametrize(
    ("callback", "named"),
    [
        ("sharpness", "'sharpness' is no callback"),
        (Misnamed(), "on_round_ended; did you mean on_round_end"),
    ],
)
def test_an_object_that_is_no_callback_is_refused(callback, named, tmp_path, sentence):
    assert named in sentence(scaffold, tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()


def differing(fabric: Fabric, what: str) -> Any:
    """A round of ranks with other data, partitions or models: its error, or its result."""
    rank, clients, module = fabric.global_rank, classification(), classifier()
    if what == "data":
        clients.dataset.x[0] += rank
    if what == "partition":
        owners = torch.arange(len(clients.dataset)).roll(rank) % 6
        clients.partition = Partition.from_owners(owners, 6)
    if what == "model":
        for tensor in module.state_dict().values():
            tensor += rank
    run = federation(Algorithm(), fabric=fabric, clients=clients, module=module)
    try:
        run.train_round()
    except ValueError as error:
        return str(error)
    return {name: value.tolist() for name, value in everything(run).items()}


@pytest.mark.parametrize("what", ["data", "partition", "model"])
def test_ranks_that_differ_are_refused_or_synchronized(what):
    first, second = on_two_ranks(partial(differing, what=what))
    assert first == second
    if what != "model":
        assert first.startswith("rank 1 has other data, or another partition")


def raises(*_, **__):
    raise RuntimeError("bad luck")


@pytest.mark.parametrize(
    ("place", "other", "when"),
    [
        ((Evaluation, "on_round_end"), "after round 1 of 7: another rank", "after round 1 of 7"),
        ((Checkpoint, "on_round_logged"), "round 2 of 7: another rank", "after round 1 of 7"),
        ((Session, "_simulation"), "another rank ended", ""),
    ],
)
def test_an_error_of_one_rank_keeps_its_traceback_and_the_other_ends(place, other, when, tmp_path):
    folder = tmp_path / "run"
    codes = jobs.end(jobs.begin(folder, ranks=2, prepare=jobs.at_call(1, *place, raises, rank=1)))
    said = jobs.said(folder)
    assert codes == [2, 1], said
    assert "RuntimeError: bad luck\n" + (f"{when}\n" if when else "") in said
    assert other in said


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x)


def test_the_dry_run_of_a_model_changes_neither_statistics_nor_random_numbers():
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), Noisy(), nn.Linear(8, 3)).double()
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    federation(Algorithm(), module=module, clients=classification((7, 9)))
    assert torch.get_rng_state().equal(state)
    assert all(module.state_dict()[k].equal(v) for k, v in before.items())
