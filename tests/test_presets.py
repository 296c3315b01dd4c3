"""The presets of the papers resolve to their values for every method of their tables."""

import re
import shlex
from functools import cache
from typing import Any

import pytest
import torch
from locations import ROOT
from small_papers import dataset

from fl_lightning import Algorithm
from fl_lightning.cli.config_files import read_chain
from fl_lightning.cli.recipes import experiment_of
from fl_lightning.experiment import Experiment
from fl_lightning.lab.sweep import plan
from fl_lightning.lab.sweep.table_file import TableFile
from fl_lightning.runs.converters import convert

PRESETS = ROOT / "recipes/presets"
RECIPE = str(ROOT / "recipes/papers.py")
FILES = sorted(str(file.relative_to(PRESETS)) for file in PRESETS.rglob("*.yaml"))
TABLES = [
    file
    for file in FILES
    if re.search(r"^(columns|rows):|^score:", (PRESETS / file).read_text(), re.M)
]

Files = tuple[str, ...]


@cache
def table(file: str) -> TableFile:
    return TableFile.read(file.removesuffix(".yaml"))


def further(options: Any) -> list[str]:
    """The presets that a column reads after the table."""
    names = options.get("config", [])
    return [f"{name}.yaml" for name in ([names] if isinstance(names, str) else names)]


COMBINATIONS = sorted(
    {(file, *further(o)) for file in TABLES for o in table(file).columns.values()}
    | {(file,) for file in TABLES}
)

WITH_METHODS = [files for files in COMBINATIONS if "\nmethods:" in (PRESETS / files[0]).read_text()]


def head(file: str) -> list[str]:
    lines = (PRESETS / file).read_text().splitlines()
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]


def flags(file: str) -> list[str]:
    """The flags that the head of a file names, between backticks."""
    found = [flag for line in head(file) for flag in re.findall(r"`(--[^`]*)`", line)]
    return [flag for flag in found if not flag.startswith(OF_THE_TABLE)]


OF_THE_TABLE = "--tune", "--sweep", "--methods", "--columns", "--score"


def methods(files: Files) -> set[str]:
    """The methods that have a row in one of the files, or in one that these read."""
    return {name for file in files for read in read_chain(file) for name in read.get("methods", ())}


@cache
def resolve(files: Files, *arguments: str) -> Experiment:
    """What the recipe would run."""
    return experiment_of(RECIPE, [w for f in files for w in ("--config", f)] + [*arguments])


def check_split(experiment: Experiment) -> None:
    """All clients get something of a data set with as many classes and domains."""
    samples = 30 * max(100, experiment.options.clients)
    partition = experiment.split(dataset(experiment.chosen["data"].name, torch.zeros(samples, 1)))
    assert len(partition) == experiment.options.clients
    assert partition.sizes.min() > 0


def test_every_file_names_its_paper_and_table_and_is_read():
    assert {file for files in COMBINATIONS for file in files} == set(FILES)
    for name in FILES:
        first = head(name)[0]
        assert re.match(r"# Fed\w+\b.*, (Table|Figure)s? \d", first)
        assert first[2:].lower().startswith(name.partition("/")[0])


@pytest.mark.parametrize("file", TABLES)
def test_every_row_and_column_of_a_table_is_a_run(file):
    """All rows of the first column and all columns of the first row."""
    whole = table(file)
    assert whole.published or "published" not in (PRESETS / file).read_text().partition("\n\n")[2]
    columns, first_row = dict[str, Experiment](), next(iter(whole.rows))
    for (row, column, _), argv in plan.command_lines(whole):
        if row == first_row or column == whole.column_labels[0]:
            experiment = experiment_of(RECIPE, argv)
            assert isinstance(experiment.algorithm(), Algorithm)
            columns.setdefault(column, experiment)
    for experiment in columns.values():
        check_split(experiment)


def same(resolved: Any, text: str) -> bool:
    """Whether an option has the value that a text gives it."""
    if resolved is None:
        return text == "none"
    kind = tuple[int, ...] if isinstance(resolved, list) else type(resolved)
    value = convert(kind, text)
    return resolved == pytest.approx([*value] if isinstance(value, tuple) else value)


@pytest.mark.parametrize("files", WITH_METHODS, ids=" ".join)
def test_every_method_of_a_table_can_be_made(files):
    """A misspelt option of its row is refused."""
    own = resolve(files)
    name = own.chosen["algorithm"].name
    assert name in methods(files)
    assert name.startswith(files[0].partition("/")[0])
    check_split(own)
    for method in methods(files):
        assert isinstance(resolve(files, "--algorithm", method).algorithm(), Algorithm)


@pytest.mark.parametrize("files", [f for f in WITH_METHODS if flags(f[-1])], ids=" ".join)
def test_the_flags_in_the_head_of_a_preset_are_accepted(files):
    """Those of one method for that one, others for all."""
    for text in flags(files[-1]):
        given = shlex.split(text)
        of_one = any(flag.startswith("--algorithm") for flag in given)
        own = resolve(files, *given)
        coefficients = {f[2:].replace("-", "_") for f in given if f.startswith("--algorithm.")}
        assert coefficients <= own.config.keys()
        check_split(own)
        for method in [""] if of_one else methods(files):
            experiment = resolve(files, *given, *(["--algorithm", method] if method else []))
            assert isinstance(experiment.algorithm(), Algorithm)


@pytest.mark.parametrize("files", WITH_METHODS, ids=" ".join)
def test_what_the_head_of_a_preset_tunes_is_an_option_of_a_method(files):
    options = {o for method in methods(files) for o in resolve(files, "--algorithm", method).config}
    assert {*re.findall(r"--tune ([\w.]+)=", "\n".join(head(files[-1])))} <= options


VALUES = """
# FedTOGA: its hyper-parameters, section 2, and its set-up, section 3
fedtoga/table1 | fedtoga | rho 0.1, kappa 1, beta 0.8, lam 0.1, --lr-decay 0.997, --model lenet
fedtoga/table1 | fedgamma | rho 0.01, --lr 0.1, --batch-size 50, --local-epochs 5
fedtoga/table1 | fedyogi | beta1 0.9, beta2 0.99, tau 0.001
fedtoga/table1 | fedacg | beta 0.85, prox 0.005, --weight-decay 0.001
fedtoga/table1 | feddyn | alpha 0.01, --clients 100, --participation 0.1
fedtoga/table2 | feddyn | alpha 0.1, --lr-decay 0.998, --rounds 800
fedtoga/table2 | fedgamma | rho 0.1
fedtoga/table2 | fedlesam_d | rho 0.1, --lr-decay 0.9995
fedtoga/table1 fedtoga/cifar100_200_clients | fedtoga | --lr-decay 0.9995, --clients 200
fedtoga/table1 fedtoga/cifar100_100_clients | fedavg | --local-epochs 2, --batch-size 20
fedtoga/cifar100_100_clients | fedavg | --data cifar100
# FedLESAM: sections 2.3, 3.1 and 3.2
fedlesam/table2 | fedlesam | rho 0.01, reference last_active, --lr-decay 0.998, --model resnet18_gn
fedlesam/table2 | fedlesam_s | rho 0.1, correction 1, --lr-decay 0.998
fedlesam/table2 | fedlesam_d | rho 0.1, lam 0.1, --lr-decay 0.9995
fedlesam/table2 | fedsmoo | rho 0.1, prox_clip split, --lr-decay 0.9995
fedlesam/table2 | fedadam | --server-lr 0.1, tau 0.01, v0 0, --clip-norm 10
fedlesam/table3 | fedavg | --lr 0.001, --rounds 400, --batch-size 32, --clients 3
fedlesam/table3 | fedavg | --model vit_b32, --model.weights imagenet
fedlesam/table3 | feddyn | prox_clip whole
fedlesam/table3 | fedsmoo | prox_clip whole
fedlesam/table3 | fedlesam_d | prox_clip whole
fedlesam/table3 fedlesam/domain_net_50_clients | fedsam | --clients 50, --participation 0.2
# FedGMT: the README of FL-SAM
fedgmt/table1 | fedgmt | gamma 1, alpha 0.95, tau 3, beta 10, --lr 0.01, --lr-decay 0.998
fedgmt/table1 | fedlesam_d | pull norm, lam 0.1, --rounds 500, --weight-decay 1e-05
# FedSOL: tables 7 and 8, sections 2 and 3
fedsol/table2 | fedsol | rho 2, tau 3, scope head, --momentum 0.9, --lr 0.01
fedsol/table2 | fedprox | mu 1, --weight-decay 1e-05, --lr-decay 0.99, --clip-norm none
fedsol/table2 | fedsam | rho 0.1, --weighting by_size, --rounds 300
fedsol/table2 | fedasam | rho 1, eta 0, scaled all
fedsol/table2 | moon | mu 0.1, tau 0.5, --model fedavg_cnn
fedsol/table2 fedsol/mnist | fedavg | --model fedavg_cnn, --data mnist
fedsol/table2 fedsol/tissuemnist | fedntd | beta 1, tau 1, --rounds 200, --clients 200
fedsol/table9 | local_only | --rounds 200, --local-epochs 1, --finetune-epochs 1,5
fedsol/table9 | knn_per | neighbors 5, mix 0.5, capacity 500
# FedSSG: sections 1.8, 2.9, 3.5 and 3.6
fedssg/table1 | fedssg | alpha 0.05, gate_offset 1, --rounds 1000
fedssg/table1 | fedprox | mu 0.0002
fedssg/table1 | feddc | alpha 0.01, correction_lr base
fedssg/table1 fedssg/cifar10_500_clients | fedssg | alpha 0.2, --participation 0.02
fedssg/table1 fedssg/cifar100_500_clients | feddc | alpha 0.05, --rounds 1500
fedssg/table1 | fedvra | gamma 0.1, a 1
fedssg/table1 fedssg/cifar10_500_clients | fedvra | a 7, d 10
fedssg/table4 | feddc | alpha 0.1, --rounds 300, --participation 0.15, --model.hidden 200,200
fedssg/table4 fedssg/emnist_500_clients | fedssg | alpha 0.6, --rounds 600, --clients 500
fedssg/table4 fedssg/emnist_100_clients | fedavg | --model.hidden 100,100
# FedMuon: section 1 of newer_matrix
fedmuon/table1 | fedmuon | gamma 0.5, beta 0.98, gain 0.5, --rounds 300, --batch-size 50
fedmuon/table1 | local_muon | beta 0.95, decay 0.01, --clients 100
fedmuon/table1 fedmuon/vit_tiny | fedmuon | gain 10, --model vit_tiny, --local-epochs 5
# FedAvg: section 3
fedavg/table1 | fedavg | --clients 100, --participation 0.1, --model.hidden 200,200
fedavg/table1_cnn | fedavg | --model fedavg_cnn, --local-epochs 5, --batch-size 10, --momentum 0
"""
"""Presets, a method of theirs, and values that the papers have, each of a coefficient or a flag."""


@pytest.mark.parametrize("line", [v for v in VALUES.splitlines() if v and v[0] != "#"])
def test_values_of_the_papers(line):
    files, method, values = line.split(" | ")
    resolved = resolve(tuple(files.split()), "--algorithm", method).config
    for name, value in (pair.split() for pair in values.split(", ")):
        key = name[2:].replace("-", "_") if name.startswith("--") else f"algorithm.{name}"
        assert same(resolved[key], value), name
