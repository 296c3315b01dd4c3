"""The presets of the papers resolve to their values for every method of their tables."""

import re
import shlex
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from locations import ROOT

from fl_lightning import Algorithm, DeviceDataset
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.cli import analyze, compare
from fl_lightning.cli.config_files import TABLE_KEYS, read_chain
from fl_lightning.cli.converters import convert
from fl_lightning.cli.planning import experiment_of
from fl_lightning.experiment import Experiment
from fl_lightning.runs.config_yaml import flat
from fl_lightning.sweep import command, plan
from fl_lightning.sweep.table_file import TableFile

PRESETS = ROOT / "recipes/presets"
RECIPE = str(ROOT / "recipes/papers.py")
FILES = sorted(str(file.relative_to(PRESETS)) for file in PRESETS.rglob("*.yaml"))
README = (PRESETS / "README.md").read_text()
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


@cache
def contents(file: str) -> list[dict[str, Any]]:
    """What a file and those that it reads say of a run, the latter first."""
    return [
        {key: value for key, value in content.items() if key not in TABLE_KEYS | {"file"}}
        for content in read_chain(file)
    ]


def rows(files: Files) -> dict[str, dict[str, Any]]:
    """The methods' rows, those of later files in place of earlier ones."""
    every = [content.get("methods", {}) for file in files for content in contents(file)]
    return {name: row for methods in every for name, row in methods.items()}


def resolve(files: Files, *arguments: str) -> Experiment:
    """What the recipe would run."""
    return experiment_of(RECIPE, [w for f in files for w in ("--config", f)] + [*arguments])


def asked_for(files: Files, method: str) -> dict[str, Any]:
    """Every option that the files name for a method, as `Experiment.resolved` names it."""
    general: dict[str, Any] = {}
    for content in (content for file in files for content in contents(file)):
        general |= flat({k: v for k, v in content.items() if k != "methods"})
    row = rows(files)[method]
    own = {
        f"algorithm.{k}" if k in signature(ALGORITHMS[method]).parameters else k: v
        for k, v in row.items()
    }
    return general | own | {"algorithm": method}


CLASSES = {"cifar100": 100, "pathmnist": 9, "tissuemnist": 8, "office_home": 65, "domain_net": 345}
"""Of the data sets that do not have ten."""

DOMAINS = {"office_home": 3, "domain_net": 5}
"""Domains that train."""


def check_split(experiment: Experiment) -> None:
    """All clients get something of a data set with as many classes and domains."""
    name, samples = experiment.chosen["data"].name, 30 * max(100, experiment.options.clients)
    classes, domains = CLASSES.get(name, 10), DOMAINS.get(name)
    given: dict[str, Any] = {"classes": tuple(map(str, range(classes)))}
    if domains:
        given["domains"] = torch.arange(samples) % domains
        given["domain_names"] = tuple(map(str, range(domains)))
    data = DeviceDataset(torch.zeros(samples, 1), torch.arange(samples) % classes, **given)
    partition = experiment.split(data)
    assert len(partition) == experiment.options.clients
    assert partition.sizes.min() > 0


def test_every_file_names_its_paper_and_table_and_is_read() -> None:
    assert {file for files in COMBINATIONS for file in files} == set(FILES)
    for name in FILES:
        first = head(name)[0]
        assert re.match(r"# Fed\w+\b.*, (Table|Figure)s? \d", first)
        assert first[2:].lower().startswith(name.partition("/")[0])


@pytest.mark.parametrize("file", TABLES)
def test_every_row_and_column_of_a_table_is_a_run(file: str) -> None:
    """All rows of the first column and all columns of the first row."""
    whole = table(file)
    assert whole.published or "published" not in (PRESETS / file).read_text().partition("\n\n")[2]
    columns, first_row = dict[str, Experiment](), next(iter(whole.rows))
    (first_column, *_), *_ = whole.swept_columns()
    for (row, column, _), argv in plan.command_lines(whole):
        if row == first_row or column == first_column:
            experiment = experiment_of(RECIPE, argv)
            assert isinstance(experiment.algorithm(), Algorithm)
            columns.setdefault(column, experiment)
    for experiment in columns.values():
        check_split(experiment)


def same(resolved: Any, text: str) -> bool:
    """Whether an option has the value that a text gives it."""
    if resolved is None:
        return text == "none"
    kind = tuple[int, ...] if isinstance(resolved, tuple) else type(resolved)
    return resolved == pytest.approx(convert(kind, text))


@pytest.mark.parametrize("files", WITH_METHODS, ids=" ".join)
def test_every_method_of_a_table_gets_what_its_preset_says(files: Files) -> None:
    own, methods = str(contents(files[0])[0]["algorithm"]), rows(files)
    assert own in methods
    assert own.startswith(files[0].partition("/")[0])
    assert resolve(files).chosen["algorithm"].name == own
    check_split(resolve(files))
    for method in methods:
        experiment = resolve(files, "--algorithm", method)
        assert isinstance(experiment.algorithm(), Algorithm)
        resolved = flat(experiment.resolved())
        for name, value in asked_for(files, method).items():
            expected = (
                tuple(value) if isinstance(value, list) else None if value == "none" else value
            )
            actual = None if resolved[name] == "none" else resolved[name]
            assert actual == expected, f"{method}: {name}"


@pytest.mark.parametrize("files", [f for f in WITH_METHODS if flags(f[-1])], ids=" ".join)
def test_the_flags_in_the_head_of_a_preset_are_accepted(files: Files) -> None:
    """Those of one method for that one, others for all."""
    for text in flags(files[-1]):
        given = shlex.split(text)
        methods = [] if any(flag.startswith("--algorithm") for flag in given) else rows(files)
        check_split(resolve(files, *given))
        for method in methods or [""]:
            experiment = resolve(files, *given, *(["--algorithm", method] if method else []))
            assert isinstance(experiment.algorithm(), Algorithm)
            resolved = flat(experiment.resolved())
            for flag, value in zip(given, [*given[1:], "--"], strict=True):
                if flag.startswith("--") and not value.startswith("--"):
                    now = resolved[flag[2:].replace("-", "_")]
                    assert same(now, value), text


COMMANDS = [*dict.fromkeys(re.findall(r"`((?:fl-lightning|python recipes/)[^`]+)`", README))]


def given(kind: str) -> list[list[str]]:
    """The arguments of the README's commands that begin with these words."""
    return [shlex.split(command)[2:] for command in COMMANDS if command.startswith(kind)]


@pytest.mark.parametrize("argv", given("fl-lightning table"), ids=" ".join)
def test_a_table_of_the_readme(argv: list[str]) -> None:
    own, further = command.parse(argv)
    [_, cell], *_ = plan.command_lines(command.table_of(own))
    assert isinstance(experiment_of(RECIPE, [*cell, *further]).algorithm(), Algorithm)


@pytest.mark.parametrize("argv", given("fl-lightning partition"), ids=" ".join)
def test_a_partition_of_the_readme(argv: list[str]) -> None:
    shared, *groups = " ".join(argv).replace("--figure heat.png ", "").split(" -- ")
    for group in groups:
        check_split(experiment_of(RECIPE, shlex.split(f"{shared} {group}")))


def test_the_other_commands_of_the_readme() -> None:
    for argv in given("fl-lightning compare"):
        compare._parse(argv)
    for argv in given("fl-lightning analyze"):
        analyze._parse(argv)
    kinds = (
        "table",
        "partition",
        "compare",
        "analyze",
        "list",
        "recipes/papers.py",
        "recipes/toy.py",
    )
    assert {command.split()[1] for command in COMMANDS} <= {*kinds}


VALUES = """
# FedTOGA: its hyper-parameters, section 2, and its set-up, section 3
fedtoga/table1 | fedtoga | rho 0.1, kappa 1, beta 0.8, lam 0.1, --lr-decay 0.997, --model lenet
fedtoga/table1 | fedgamma | rho 0.01, --lr 0.1, --batch-size 50, --local-epochs 5
fedtoga/table1 | fedyogi | server_lr 0.01, beta1 0.9, beta2 0.99, tau 0.001
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
fedlesam/table2 | fedadam | server_lr 0.1, tau 0.01, v0 0, --clip-norm 10
fedlesam/table3 | fedavg | --lr 0.001, --rounds 400, --batch-size 32, --clients 3
fedlesam/table3 | fedavg | --model vit_b32, --model.weights imagenet
fedlesam/table3 | feddyn | prox_clip whole
fedlesam/table3 | fedsmoo | prox_clip whole
fedlesam/table3 | fedlesam_d | prox_clip whole
fedlesam/table3 fedlesam/domain_net_50_clients | fedsam | --clients 50, --participation 0.2
# FedSOL: tables 7 and 8, sections 2 and 3
fedsol/table2 | fedsol | rho 2, tau 3, scope head, --momentum 0.9, --lr 0.01
fedsol/table2 | fedprox | mu 1, --weight-decay 1e-05, --lr-decay 0.99, --clip-norm none
fedsol/table2 | fedsam | rho 0.1, weighting by_size, --rounds 300
fedsol/table2 | fedasam | rho 1, eta 0, scaled all
fedsol/table2 | moon | mu 0.1, tau 0.5, --model fedavg_cnn
fedsol/table2 fedsol/mnist | fedavg | --model fedavg_cnn, --data mnist
fedsol/table2 fedsol/tissuemnist | fedntd | beta 1, tau 1, --rounds 200, --clients 200
fedsol/table9 | local_only | --rounds 200, --local-epochs 1, --finetune-epochs 1,5
fedsol/table9 | knn_per | neighbours 5, mix 0.5, capacity 500
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
"""
"""Presets, a method of theirs, and values that the papers have, each of a coefficient or a flag."""


@pytest.mark.parametrize("line", [v for v in VALUES.splitlines() if v and v[0] != "#"])
def test_values_of_the_papers(line: str) -> None:
    files, method, values = line.split(" | ")
    resolved = flat(resolve(tuple(files.split()), "--algorithm", method).resolved())
    for name, value in (pair.split() for pair in values.split(", ")):
        key = name[2:].replace("-", "_") if name.startswith("--") else f"algorithm.{name}"
        assert same(resolved[key], value), name


@pytest.mark.parametrize(
    ("written", "misspelt"),
    [
        ("local_epochs: 5", "local_epohcs: 5"),
        ("kappa: 1.0", "kapa: 1.0"),
        ("  fedsam: {", "  fedsamm: {"),
        ("reuse:", "reues:"),
    ],
)
def test_a_misspelt_key_is_refused(
    written: str, misspelt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (PRESETS / "fedtoga/table1.yaml").read_text()
    assert text.count(written) == 1
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace(written, misspelt))
    with pytest.raises(SystemExit):
        resolve((str(wrong),))
    assert misspelt.strip().partition(":")[0] in capsys.readouterr().err
