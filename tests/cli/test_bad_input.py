"""Names, data and models that do not fit: one sentence, exit code 2, and nothing left behind."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from problems import classification, federation
from refusals import digits, experiment, refused, sentence
from torch import nn

from fl_lightning import Algorithm, DeviceDataset, models
from fl_lightning.data import image_folder

# ----------------------------------------------------------------------------------- what there is not, or not together

OTHERS = [
    (["--algorithm", "fedtogo"], ["fedtogo", "did you mean fedtoga"]),
    (["--algorithmm", "fedavg"], ["--algorithmm", "--algorithm"]),
    (["--algorithm", "fedsam", "--algorithm.rh", "1"], ["--algorithm.rh", "--algorithm.rho"]),
    (["--partition", "dirichle"], ["dirichlet"]),
    (["--model", "mpl"], ["mlp"]),
    (["--data", "digts"], ["digits"]),
    (["--server-optimizer", "adm"], ["adam"]),
    (["--executor", "stack"], ["stacked"]),
    (["--sampling", "all"], ["fixed, bernoulli"]),
    (["--on-divergence", "ignore"], ["stop, skip-client, continue"]),
    (["--precision", "16-mixed"], ["32-true, bf16-mixed"]),
    (["--precision", "64-true"], ["32-true, bf16-mixed"]),
    (["--devices", "two"], ["devices"]),
    (["--devices", "0"], ["devices"]),
    (["--strategy", "ddpp"], ["ddpp"]),
    (["--partition", "class_priors"], ["exactly one of them"]),
    (
        ["--partition", "iid", "--clients", "1438"],
        ["1437 samples cannot be split over 1438 clients"],
    ),
    (["--clients", "200"], ["min_size is 10, but 1437 samples over 200 clients allow 0 to 7"]),
    (
        ["--clients", "700", "--partition.alpha", "1e-4", "--partition.min-size", "0"],
        ["682 of 700 clients hold no samples", "small alpha", "--partition.min-size"],
    ),
    (["--algorithm", "fedsam", "--perturb", "lesam"], ["cannot be added"]),
    (["--ascent", "neighbour"], ["does not perturb"]),
]


@pytest.mark.parametrize(("argv", "words"), OTHERS, ids=str)
def test_what_there_is_not_or_not_together_is_refused(
    argv: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, tmp_path / "run", *argv)
    for word in words:
        assert word in said


# --------------------------------------------------------------------------------------------------- models and data


def flat() -> tuple[DeviceDataset, DeviceDataset]:
    train, test = (DeviceDataset(d.x.flatten(1).float(), d.y, d.classes) for d in digits())
    return train, test


def two_shapes() -> tuple[DeviceDataset, DeviceDataset]:
    return digits()[0], flat()[1]


def mislabelled() -> tuple[DeviceDataset, DeviceDataset]:
    train, test = digits()
    return DeviceDataset(train.x, train.y + 1, train.classes), test


def five(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 5))


def narrow(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(99, classes))


def normed(inputs: int, classes: int) -> nn.Module:
    layers = {
        "flat": nn.Flatten(),
        "hidden": nn.Linear(inputs, 8),
        "norm": nn.BatchNorm1d(8),
        "head": nn.Linear(8, classes),
    }
    return nn.Sequential(OrderedDict(layers))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"model": models.lenet}, ["size is 8", "LeNet needs images of at least 16x16"]),
        ({"model": models.vit_b32}, ["channels is 1", "ViT-B/32"]),
        (
            {"model": models.lenet, "data": flat},
            ["--model lenet", "shape 64", "choose a model that takes them"],
        ),
        ({"model": models.resnet18_gn, "data": flat}, ["--model resnet18_gn", "shape 64"]),
        ({"model": narrow}, ["--model narrow", "images of shape 1x8x8", "2x64 and 99x10"]),
        ({"model": five}, ["--model five", "5 outputs", "labels up to 9", "10 outputs"]),
        ({"data": mislabelled}, ["y goes from 1 to 10", "labels must lie in 0..9"]),
        ({"data": two_shapes}, ["two_shapes", "(1, 8, 8)", "(64,)", "both the same"]),
    ],
)
def test_data_and_models_that_do_not_fit_each_other_are_refused(
    choices: dict[str, Any], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, tmp_path / "run", **choices)
    for word in words:
        assert word in said


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_sample_alone_in_its_batch_under_batch_norm_is_refused(
    executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """273 = 16 * 17 + 1: the last batch of an epoch has one sample."""
    said = refused(
        capsys, tmp_path / "run", "--batch-size", "17", "--executor", executor, model=normed
    )
    for word in (
        "--model normed",
        "client 1:",
        "its 273 samples in batches of 17",
        "--batch-size 18, which leaves none",
    ):
        assert word in said


@pytest.mark.parametrize(
    "argv",
    [
        ["--batch-size", "18"],
        ["--batch-size", "17", "--local-steps", "16"],
        ["--batch-size", "1000"],
    ],
    ids=str,
)
def test_batches_of_several_train_under_batch_norm(argv: list[str], tmp_path: Path) -> None:
    experiment(tmp_path / "run", *argv, model=normed).run()


def test_batch_norm_over_pixels_takes_a_single_sample(tmp_path: Path) -> None:
    def pixels(channels: int, classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3),
            nn.BatchNorm2d(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, classes),
        )

    experiment(tmp_path / "run", "--batch-size", "17", model=pixels).run()


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_part_of_a_batch_with_a_single_sample_is_told_with_client_and_round(
    executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Per-FedAvg halves batches of three."""
    argv = "--batch-size", "3", "--algorithm", "perfedavg", "--partition", "iid", "--clients", "479"
    said = sentence(
        capsys, experiment(tmp_path / "run", *argv, "--executor", executor, model=normed).run
    )
    for word in ("BatchNorm", "GroupNorm", "(in round 1 of 1, client"):
        assert word in said


class Noisy(nn.Module):
    """Draws from PyTorch's own generator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x)


def test_trying_the_model_out_changes_nothing() -> None:
    """Neither running statistics nor random numbers."""
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), Noisy(), nn.Linear(8, 3)).double()
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    federation(Algorithm(), module=module, clients=classification((7, 9)))
    assert torch.get_rng_state().equal(state)
    assert all(module.state_dict()[k].equal(v) for k, v in before.items())


@pytest.mark.parametrize("cohort", [[], [0, 0], [1, 0], [-1, 2], [2, 6]], ids=str)
def test_an_own_participation_that_gives_no_cohort_is_refused(cohort: list[int]) -> None:
    run = federation(Algorithm(), sampler=lambda *_: cohort)
    with pytest.raises(
        ValueError,
        match=r"round 1 of 3: .* gave the cohort \[.*, but a round has at least one client",
    ):
        run.fit()


def test_a_broken_image_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(20):
                Image.new("RGB", (8, 8), (i, 99, 30)).save(
                    tmp_path / "images" / split / name / f"{i}.png"
                )
    broken = tmp_path / "images" / "train" / "dog" / "7.png"
    broken.write_bytes(broken.read_bytes()[:40])
    said = refused(
        capsys,
        tmp_path / "run",
        "--data-dir",
        str(tmp_path / "images"),
        "--clients",
        "2",
        data=image_folder,
    )
    assert str(broken) in said
    assert "replace it or remove it" in said


def test_a_layer_that_the_model_lacks_is_named_with_those_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(
        capsys,
        experiment(tmp_path / "run", "--algorithm", "fedrcl", "--algorithm.layers", "conv1").run,
    )
    assert "no submodule 'conv1'" in said
    assert "hidden1" in said


def branching(inputs: int, classes: int) -> nn.Module:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(inputs, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.flatten(1)) * (
                1.0 if float(self.head.bias.detach().sum()) > 0 else 2.0
            )

    return Branching()


def test_a_model_that_cannot_be_stacked_is_told_with_the_executor_that_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(
        capsys, experiment(tmp_path / "run", "--executor", "stacked", model=branching).run
    )
    assert "sequential executor" in said
    experiment(
        tmp_path / "run",
        "--executor",
        "sequential",
        "--run-dir",
        str(tmp_path / "other"),
        model=branching,
    ).run()
