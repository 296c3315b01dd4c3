"""Names, data and models that do not fit: one sentence, exit code 2, and nothing left behind."""

from collections import OrderedDict

import pytest
import torch
from problems import federation
from refusals import digits, experiment
from torch import nn

from fl_lightning import Algorithm, DeviceDataset, models
from fl_lightning.errors import UserError

NAMES = [
    ("--algorithm fedtogo", "did you mean fedtoga"),
    ("--algorithm fedavg --algorithm.rhoo 1", "--algorithm.rho"),
    ("--server-optimizer adm", "adam"),
    ("--executor stack", "stacked"),
    ("--precision 64-true", "32-true, bf16-mixed"),
    ("--strategy ddpp", "ddpp"),
    ("--lr-decay 0.95 --rounds 2000", "round 2,000 would be 3e-46"),
    ("--partition label_prior", "exactly one of them"),
    ("--partition iid --clients 1438", "1437 samples cannot be split over 1438 clients"),
    ("--clients 200", "min_size is 10"),
    ("--clients 700 --partition.alpha 1e-4 --partition.min-size 0", "682 of 700 clients"),
    ("--algorithm fedsam --perturb lesam", "cannot be added"),
    ("--ascent neighbor", "needs a perturbation"),
    ("--perturb sol --ascent neighbor", "SOL has no ascent along"),
    ("--partition by_domain", "no domains"),
    ("--partition from_file", "--partition.file is needed"),
    ("--partition from_file --partition.file nowhere.npz", "nowhere.npz"),
    ("--accelerator abacus", "abacus"),
    ("--logger wandbb", "'wandbb' is none of wandb, mlflow, trackio"),
    ("--validation 0.001", "leaves 0 validation"),
    ("--callback early_stopping", "EarlyStopping needs a validation part"),
    ("--callback early_stopping:monitor=val/loss", "val/loss, which needs a validation part"),
    ("--callback growth_stopping:patience=0", "patience of GrowthStopping"),
    ("--callback sharpnes:rho=0.1", "did you mean sharpness"),
    ("--callback sharpness:rh=0.1", "sharpness has no option 'rh'; did you mean rho"),
    ("--callback sharpness:rho=wide", "sharpness: rho: 'wide' is not a number"),
    ("--callback sharpness --callback sharpness:rho=0.1", "write twice"),
    ("--callback personal_weights --callback personal_weights:epochs=1", "write twice"),
    ("--callback nowhere.py:Mine", "no file 'nowhere.py'"),
    ("--run-dir=", "--run-dir"),
    ("--data nowhere.csv --data.target y --data.clients c", "no file /"),
    ("--config fedsg/table4", "did you mean fedssg/table4"),
    ("--loss mse", "choose another loss or other targets"),
]


@pytest.mark.parametrize(("argv", "words"), NAMES)
def test_a_name_or_a_combination_that_does_not_exist_is_refused(argv, words, refused):
    assert words in refused(*argv.split())


def test_a_cached_function_of_ones_own_is_a_function(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from functools import cache\nfrom fl_lightning import algorithms\n"
        "@cache\ndef mine(rho: float = 0.2):\n    return algorithms.fedsam(rho)\n"
    )
    made = experiment(tmp_path / "run", "--algorithm", f"{file}:mine", "--algorithm.rho", "0.3")
    assert made.chosen["algorithm"].options == {"rho": 0.3}


def test_a_class_of_ones_own_is_an_algorithm(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("from fl_lightning import Algorithm\nclass Mine(Algorithm): ...\n")
    made = experiment(tmp_path / "run", "--algorithm", f"{file}:Mine")
    assert type(made.chosen["algorithm"]()).__name__ == "Mine"


def flat() -> tuple[DeviceDataset, DeviceDataset]:
    train, test = (DeviceDataset(d.x.flatten(1).float(), d.y, d.classes) for d in digits())
    return train, test


def mislabeled() -> tuple[DeviceDataset, DeviceDataset]:
    train, test = digits()
    return DeviceDataset(train.x, train.y + 1, train.classes), test


def five(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 5))


def narrow(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(99, classes))


def normed(inputs: int, classes: int) -> nn.Module:
    hidden, head = nn.Linear(inputs, 8), nn.Linear(8, classes)
    layers = {"flat": nn.Flatten(), "hidden": hidden, "norm": nn.BatchNorm1d(8), "head": head}
    return nn.Sequential(OrderedDict(layers))


def over_pixels(channels: int, classes: int) -> nn.Module:
    convolution = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4))
    return nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


class Branching(nn.Module):
    """Chooses by a parameter's value, which vmap cannot."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 1.0 if float(self.head.bias.detach().sum()) > 0 else 2.0
        return self.head(x.flatten(1)) * factor


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"model": models.lenet}, ["size is 8", "16x16"]),
        ({"model": models.vit_b32}, ["channels is 1", "ViT-B/32"]),
        ({"model": models.lenet, "data": flat}, ["--model lenet", "shape 64"]),
        ({"model": narrow}, ["--model narrow", "1x8x8", "2x64 and 99x10"]),
        ({"model": five}, ["--model five", "5 outputs", "10 outputs"]),
        ({"data": mislabeled}, ["1 to 10", "0..9"]),
    ],
)
def test_data_and_models_that_do_not_fit_each_other_are_refused(choices, words, refused):
    said = refused(**choices)
    assert all(word in said for word in words), said


def linear(inputs: int, classes: int) -> nn.Module:
    return models.mlp(inputs, classes, hidden=())


@pytest.mark.parametrize(
    ("argv", "model", "words"),
    [
        ("--batch-size 1", normed, ["--model normed", "BatchNorm", "--batch-size"]),
        ("--clients 1437 --partition iid", normed, ["BatchNorm", "one sample"]),
        ("--sampling bernoulli --participation 1e-9", models.mlp, ["empty"]),
        ("", Branching, ["sequential executor"]),
        ("--algorithm fedrcl --algorithm.layers conv1", models.mlp, ["'conv1'", "hidden1"]),
        ("--algorithm fedrcl", linear, ["all head"]),
        ("--metric f1,rmse", linear, ["rmse", "test part"]),  # before the first round
    ],
)
def test_a_run_that_cannot_train_is_refused(argv, model, words, tmp_path, sentence):
    flags = "--executor", "stacked", *argv.split()
    said = sentence(experiment(tmp_path / "run", *flags, model=model).run)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        ("--batch-size 18", normed),
        ("--batch-size 17 --local-steps 16", normed),
        ("--batch-size 1000", normed),
        ("--batch-size 17", over_pixels),
        ("--executor sequential", Branching),
    ],
)
def test_a_model_that_fits_the_options_trains(argv, model, tmp_path):
    """Batches of several samples, or of several pixels, and one client after another."""
    experiment(tmp_path / "run", *argv.split(), model=model).run()


@pytest.mark.parametrize(
    "cohort",
    [
        *([], [0, 0], [1, 0], [-1, 2], [2, 6], {0, 1}, None),
        *(torch.tensor([0, 1]), [*torch.tensor([0, 1])], [0.0, 1.0]),
    ],
    ids=str,
)
def test_a_sampler_that_gives_no_cohort_is_refused(cohort):
    run = federation(Algorithm(), sampler=lambda *_: cohort)
    with pytest.raises(UserError, match=r"round 1 of 3: .* gave the cohort .* a list"):
        run.fit()


def test_a_sampler_of_other_parameters_is_refused_before_the_first_round():
    with pytest.raises(UserError, match=r"<lambda>\(num_clients, seed\) cannot be called"):
        federation(Algorithm(), sampler=lambda num_clients, seed: [0])
