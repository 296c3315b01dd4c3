"""Data, models, optimizers and callbacks of a user's own that are odd: one sentence, as early as it can be known."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from fl_lightning.callbacks import Checkpoint, Evaluation
from lightning.fabric import Fabric
from problems import classification, classifier, everything, federation, trained
from refusals import digits, experiment, refused, scaffold, sentence
from torch import Tensor, nn

from fl_lightning import Algorithm, DeviceDataset, Federation, Term, TermError
from fl_lightning.data import Partition
from fl_lightning.experiment import Experiment

# ----------------------------------------------------------------------------------------------------------------- data


def features(dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    return [(data.x.to(dtype) / 16, data.y) for data in digits()]


def changed(
    part: int, change: Callable[[Tensor, Tensor], tuple[Any, Any]]
) -> Callable[[], tuple[DeviceDataset, DeviceDataset]]:
    """The digits as features, the training (0) or the test set (1) changed."""

    def odd() -> tuple[DeviceDataset, DeviceDataset]:
        pairs: list[tuple[Any, Any]] = [*features()]
        pairs[part] = change(*pairs[part])
        train, test = (DeviceDataset(x, y, digits()[0].classes) for x, y in pairs)
        return train, test

    return odd


def spoiled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.index_fill(0, torch.tensor([5]), torch.nan), y


DATA = {
    "nan in training": (changed(0, spoiled), "1 of 1437 training samples of odd are not finite"),
    "nan in the test": (changed(1, spoiled), "1 of 360 test samples of odd are not finite"),
    "no test": (changed(1, lambda x, y: (x[:0], y[:0])), "odd has no test samples"),
    "no training": (changed(0, lambda x, y: (x[:0], y[:0])), "odd has no training samples"),
    "two number types": (
        changed(1, lambda x, y: (x.double(), y)),
        "torch.float64: give both the same",
    ),
    "another number type": (
        lambda: tuple(DeviceDataset(x, y, digits()[0].classes) for x, y in features(torch.float64)),
        "they are torch.float64, its parameters torch.float32",
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_odd_data_are_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd, told = DATA[case]
    assert told in refused(capsys, tmp_path / "run", data=odd)


def test_arrays_of_numpy_are_no_tensors() -> None:
    x, y = features()[0]
    with pytest.raises(ValueError, match=r"x is ndarray; give a tensor"):
        DeviceDataset(x.numpy(), y, ())  # type: ignore[arg-type]


PARTITIONS = {
    "of other clients": (
        "Partition.from_owners(torch.arange(len(y)) % 5, 5)",
        "splits over 5 clients, but --clients is 6",
    ),
    "lists": (
        "[[0, 1], [2, 3]]",
        "must return a Partition, as Partition.from_owners and Partition.from_lists make it",
    ),
    "of other data": (
        "Partition.from_lists([[i, i + 1432] for i in range(clients)])",
        "hands out sample 1437, but there are 1437, counted from 0",
    ),
}


@pytest.mark.parametrize("case", PARTITIONS)
def test_odd_partitions_are_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, told = PARTITIONS[case]
    own = tmp_path / "own.py"
    own.write_text(
        f"import torch\nfrom fl_lightning import Partition\ndef own(y, clients, seed):\n    return {made}\n"
    )
    assert f"own.py:own {told}" in refused(capsys, tmp_path / "run", "--partition", f"{own}:own")


# --------------------------------------------------------------------------------------------------------------- models


class Odd(nn.Module):
    def __init__(self, change: Callable[[Tensor, bool], Any]):
        super().__init__()
        self.net, self.change = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net(x), self.training)


MODELS = {
    "a tuple": (lambda out, _: (out, out), "Odd returns tuple for two samples in training"),
    "a tuple in evaluation": (
        lambda out, training: out if training else (out,),
        "tuple for two samples in evaluation",
    ),
    "three dimensions": (
        lambda out, _: out[..., None],
        "returns a tensor of shape (2, 10, 1) for two samples",
    ),
    "one number": (lambda out, _: out.mean(), "returns a tensor of shape () for two samples"),
    "no gradient": (
        lambda out, _: out.detach(),
        "the output of Odd has no gradient",
    ),
    "an error in evaluation": (
        lambda out, training: out if training else out[7],
        "cannot take samples of shape 1x8x8 in evaluation",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_odd_models_are_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, told = MODELS[case]
    said = refused(capsys, tmp_path / "run", model=lambda: Odd(change))
    assert all(part in said for part in told.split(".*"))


def test_a_lazy_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lazy(classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

    assert "1.weight has no shape yet: run a lazy model on a sample" in refused(
        capsys, tmp_path / "run", model=lazy
    )


def test_what_is_no_number_is_no_class() -> None:
    """The largest of many nan is the first one, by PyTorch's reckoning."""
    run, data = federation(Algorithm()), classification().dataset
    metrics: dict[str, float] = {}
    run.server.buffers = {
        name: torch.full_like(b, torch.nan) if b.is_floating_point() else b
        for name, b in run.buffers.items()
    }
    Evaluation(DeviceDataset(data.x, torch.zeros_like(data.y), data.classes)).on_round_end(
        run, metrics
    )
    assert metrics["test/accuracy"] == 0


# ------------------------------------------------------------------------------------------------ optimizers and terms


@pytest.mark.parametrize("kind", ["local", "server"])
@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (torch.optim.LBFGS, "LBFGS .*'closure'"),
        (torch.optim.SparseAdam, "SparseAdam .*dense gradients"),
        (lambda parameters: None, "NoneType .*it is no torch.optim.Optimizer"),
    ],
)
def test_an_optimizer_that_takes_no_plain_step_is_refused(
    kind: str, optimizer: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"the {kind} optimizer {reason}"):
        federation(Algorithm(**{kind: optimizer}))


class ByCoordinate(torch.optim.SGD):
    """Each of the classifier's 99 weights at a rate of its own."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.param_groups[0]["params"][0].grad.mul_(torch.linspace(0, 1, 99))
        super().step()


def test_an_optimizer_may_depend_on_the_length_of_the_vector() -> None:
    assert trained(Algorithm(server=partial(ByCoordinate, lr=1.0))).round == 3


def exhausted(self: Term, w: Tensor, v: Any) -> Any:
    return next(iter(()))


def test_a_term_that_finds_nothing_left_is_told() -> None:
    with pytest.raises(
        TermError, match=r"Mine.report ends with StopIteration: a next\(\) found nothing left"
    ):
        trained(Algorithm(type("Mine", (Term,), {"report": exhausted})()))


def test_a_message_may_come_with_a_graph() -> None:
    def report(self: Term, w: Tensor, v: Any) -> Any:
        return w.clone().requires_grad_() * 2

    run, plain = (
        trained(Algorithm(type("Mine", (Term,), {"report": report})())),
        trained(Algorithm()),
    )
    assert run.w.equal(plain.w)


# ------------------------------------------------------------------------------------------------------------ callbacks


class Adds:
    def __init__(self, tag: str, value: Any):
        self.tag, self.value = tag, value

    def on_round_end(self, metrics: dict[str, Any]) -> None:
        metrics[self.tag] = self.value


@pytest.mark.parametrize(
    ("tag", "value", "told"),
    [
        ("mine", "good", "metrics['mine'] is to be one number, not 'good'"),
        ("mine", None, "metrics['mine'] is to be one number, not None"),
        ("mine", torch.ones(3), "metrics['mine'] is to be one number, not tensor([1., 1., 1.])"),
        (
            "round",
            7,
            "metrics['round'] is the number of the round in metrics.csv: choose another name",
        ),
    ],
)
def test_what_is_no_scalar_is_told_with_its_callback(
    tag: str, value: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, scaffold, tmp_path / "run", callbacks=[Adds(tag, value)])
    assert said == f"error: {told} (raised in Adds.on_round_end) (after round 1 of 7)\n"


def test_a_tensor_of_one_number_is_a_scalar(tmp_path: Path) -> None:
    scaffold(tmp_path / "run", "--rounds", "1", callbacks=[Adds("mine", torch.tensor(2.5))])
    assert runs.results(tmp_path / "run")["metrics"][0]["mine"] == "2.5"


class Misnamed:
    def on_round_end(self, run: Federation, metrics: dict[str, float]) -> None: ...


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (
            Adds,
            "a callback is an object with one of the methods on_fit_start, on_round_end, on_round_logged, on_fit_end",
        ),
        (5, "on_fit_end, not 5"),
        (
            Misnamed(),
            "Misnamed.on_round_end asks for run, but is called by name with federation and metrics",
        ),
    ],
)
def test_what_is_no_callback_is_refused(
    callback: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in sentence(capsys, scaffold, tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()


def test_a_closed_pipe_is_not_the_runs_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Prints:
        def on_round_end(self) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    said = sentence(capsys, scaffold, tmp_path / "run", callbacks=[Prints()])
    assert "nobody reads any more what this program prints" in said


# ------------------------------------------------------------------------------------------------------ several ranks


def differing(fabric: Fabric, what: str) -> Any:
    """What becomes of ranks that load other data, split them in another way, or begin with another model."""
    rank, clients, module = fabric.global_rank, classification(), classifier()
    if what == "data":
        clients.dataset.x[0] += rank
    if what == "partition":
        owners = torch.arange(len(clients.dataset)).roll(rank) % 6
        clients.partition = Partition.from_owners(owners, 6)
    if what == "model":
        with torch.no_grad():
            for tensor in module.state_dict().values():
                tensor += rank
    run = federation(Algorithm(), fabric=fabric, clients=clients, module=module)
    try:
        run.train_round()
    except ValueError as error:
        return [str(error), fabric.broadcast(str(error), src=1)]
    kept = {name: value.tolist() for name, value in everything(run).items()}
    return [kept, fabric.broadcast(kept, src=1)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("what", ["data", "partition", "model"])
def test_ranks_that_differ_are_refused_or_made_alike(what: str) -> None:
    first, second = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork").launch(
        partial(differing, what=what)
    )
    assert first == second
    if what != "model":
        assert first.startswith("rank 1 has other data, or another partition")


def raises(*_: Any, **__: Any) -> Any:
    raise RuntimeError("bad luck")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("place", "who", "when"),
    [
        (
            (Evaluation, "on_round_end"),
            "after round 1 of 7: another rank ended",
            "after round 1 of 7",
        ),
        ((Checkpoint, "on_round_logged"), "round 2 of 7: another rank ended", "after round 1 of 7"),
        ((Experiment, "algorithm"), "", "on rank 1"),
        ((Experiment, "federation"), "this rank has lost the others: one of them ended", ""),
    ],
)
def test_what_one_rank_alone_raises_is_told_by_it_and_the_other_ends(
    place: Any, who: str, when: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    codes = runs.end(runs.begin(folder, ranks=2, prepare=runs.at_call(1, *place, raises, rank=1)))
    assert codes == [2, 2], runs.said(folder)
    assert "Traceback" not in runs.said(folder)
    assert who in runs.said(folder)
    if when:
        told = rf"error: RuntimeError: bad luck \(test_preflight.py, line \d+; [^)]*\) \({when}\)\n"
        assert len(re.findall(told, runs.said(folder))) == 1


def test_an_experiment_of_ones_own_data_and_model_still_runs(tmp_path: Path) -> None:
    experiment(
        tmp_path / "run",
        data=changed(1, lambda x, y: (x[:1], y[:1])),
        model=lambda: Odd(lambda o, _: o),
    ).run()
