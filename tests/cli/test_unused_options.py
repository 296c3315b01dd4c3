"""Options that have no effect with the others: the run prints a note for each."""

from pathlib import Path

import pytest
import torch
from every_option import OPTIONS, WITH, values
from refusals import experiment, sentence
from torch.optim import AdamW

from fl_lightning import by_size, uniform
from fl_lightning.cli.arguments import given
from fl_lightning.cli.parser import unused_option_notes
from fl_lightning.core.weighting import Disco
from fl_lightning.runs.config import load


def notes(folder: Path, *argv: str) -> list[str]:
    run = experiment(folder, *argv)
    return list(unused_option_notes(given(argv), run.options, run.chosen))


UNUSED = [
    ("--local-epochs 3 --local-steps 5", "--local-steps none"),
    ("--finetune-lr 0.1", "--finetune-epochs 1"),
    ("--validation-from test", "--validation 0.1"),
    ("--parallel-clients 4", "--executor stacked"),
    ("--data-dir elsewhere", ""),
    ("--algorithm.carry --algorithm fedtoga", "--algorithm.perturbation fusion"),
    ("--algorithm.prox-clip split --algorithm feddisco", "--algorithm.alpha 0.1"),
    ("--algorithm.first-step noise --algorithm fedsol", "--algorithm.strength fixed"),
    (
        "--algorithm.first-participation skip "
        "--algorithm fedlesam --algorithm.reference last_round",
        "--algorithm.reference last_active",
    ),
    ("--algorithm.rho 1 --algorithm fedsol_ablation --algorithm.row a0", "--algorithm.row a1"),
]
"""Options that have no effect, the first of each line, and what gives it one."""


@pytest.mark.parametrize(("unused", "used"), UNUSED)
def test_an_option_without_effect_is_noted(unused, used, tmp_path):
    (note,) = notes(tmp_path, *unused.split())
    assert note.startswith(f"note: {unused.split()[0]} ")
    assert "has no effect" in note
    if used:
        assert notes(tmp_path, *unused.split(), *used.split()) == []


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=map(" ".join, OPTIONS))
def test_an_option_with_an_effect_is_not_noted(name, option, tmp_path):
    """Every option of every algorithm and modifier, with what else it needs."""
    kind, _, choice = name.removeprefix("--").rpartition(" ")
    base = ["--algorithm", "fedsam"] if kind == "ascent" else []
    kind = kind or "algorithm"
    for value in values(name, option):
        coefficients = {**WITH.get(f"{name} {option}", {}), option: value}
        flags = [
            f"--{kind}.{key}={','.join(v) if isinstance(v, tuple) else v}"
            for key, v in coefficients.items()
        ]
        assert notes(tmp_path, *base, f"--{kind}={choice}", *flags) == []


def test_files_may_hold_options_for_other_choices(tmp_path):
    """Those of a resumed run hold everything, and one file may serve GPUs and CPUs."""
    shared = tmp_path / "shared.yaml"
    shared.write_text("parallel_clients: 4\nlocal_epochs: 3\ndata_dir: elsewhere\n")
    assert notes(tmp_path, "--config", str(shared), "--local-steps", "5") == []


def test_user_defined_functions_may_do_other_things_with_an_option(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from fl_lightning import Algorithm\n"
        "def own(verbose: bool = False):\n    return Algorithm()\n"
    )
    assert notes(tmp_path, f"--algorithm={own}:own", "--algorithm.verbose", "true") == []


OWN_OPTIMIZERS = """
from torch.optim import SGD, AdamW
from fl_lightning import Algorithm
from fl_lightning.terms import ExactAggregation

def needs(params, lr, weight_decay):
    return AdamW(params, lr=lr, weight_decay=weight_decay)

def adamw():
    return Algorithm(local=needs, clips=False)

def fixed():
    return Algorithm(local=lambda params: SGD(params, lr=0.5), weight=lambda cohort: cohort.size**2)

def exact():
    return Algorithm(ExactAggregation())
"""
"""One takes its learning rate and weight decay from the run, one takes nothing."""


@pytest.mark.parametrize(
    ("argv", "weight", "server_lr"),
    [
        ("--algorithm fedadam", by_size, None),
        ("--algorithm fedadam --weighting uniform --server-lr 0.1", uniform, 0.1),
        ("--algorithm scaffold --weighting by_size --server-lr 0.5", by_size, 0.5),
        ("--algorithm feddisco --weighting uniform", Disco(base=uniform), None),
        ("--algorithm feddyn --server-optimizer adam", uniform, None),
        ("--algorithm feddyn --server-optimizer adam --server-lr 0.1", uniform, 0.1),
        ("--algorithm fedadam --client-start relaxed", by_size, None),
    ],
)
def test_weighting_and_server_lr_replace_the_algorithms_own(argv, weight, server_lr, tmp_path):
    made = experiment(tmp_path, *argv.split()).algorithm()
    assert made.weight == weight
    assert (made.server_lr and made.server_lr(3, 4)) == server_lr


@pytest.fixture
def own(tmp_path):
    """A run of one of these algorithms: its name, and flags."""
    file = tmp_path / "own.py"
    file.write_text(OWN_OPTIMIZERS)

    def run(name, *argv, **options):
        return experiment(tmp_path / "run", f"--algorithm={file}:{name}", *argv, **options)

    return run


def test_a_local_optimizer_gets_the_options_that_it_needs(own, tmp_path, capsys):
    run = own("adamw", "--lr", "0.003", "--weight-decay", "0.25", clip_norm=1.0)
    optimizer = run.algorithm().local([torch.zeros(1, requires_grad=True)])
    group = optimizer.param_groups[0]
    assert (type(optimizer), group["lr"], group["weight_decay"]) == (AdamW, 0.003, 0.25)
    run.run()
    assert "has a local AdamW of learning rate 0.003" in capsys.readouterr().out
    config = load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["lr"], config["weight_decay"]) == (0.003, 0.25)
    assert not {"momentum", "clip_norm"} & config.keys()
    assert "term/clipped" not in (tmp_path / "run" / "metrics.csv").read_text()


@pytest.mark.parametrize(
    ("name", "flag", "fix"),
    [
        ("adamw", "--momentum", "needs momentum"),
        ("adamw", "--clip-norm", "clips=True"),
        ("fixed", "--lr", "needs lr"),
        ("fixed", "--weight-decay", "needs weight_decay"),
        ("fixed", "--weighting", "weight=by_size"),
        ("exact", "--server-lr", "without ExactAggregation"),
    ],
)
def test_a_general_option_that_an_algorithm_cannot_use_is_refused(name, flag, fix, own, capsys):
    said = sentence(capsys, own(name, flag, "uniform" if flag == "--weighting" else "0.1").run)
    assert f"own.py:{name} does not use {flag}: " in said
    assert fix in said


def test_files_may_set_options_that_a_local_optimizer_cannot_use(own, tmp_path):
    """One file serves many methods; what has no effect does not stand in the run's options."""
    file = tmp_path / "shared.yaml"
    file.write_text("lr: 0.01\nmomentum: 0.5\nclip_norm: 3.0\nweighting: uniform\n")
    options = own("fixed", "--config", str(file)).config
    assert not {"lr", "momentum", "weight_decay", "weighting"} & options.keys()
    assert options["clip_norm"] == 3.0
    assert own("adamw", "--config", str(file)).config["lr"] == 0.01


@pytest.mark.parametrize(("norm", "said"), [("1e-6", True), ("1e6", False), ("none", False)])
def test_clipping_of_every_step_of_the_first_round_is_said_once(norm, said, printed):
    printed_lines = printed(f"--clip-norm {norm} --rounds 2").splitlines()
    assert sum("every local step of round 1 was clipped" in line for line in printed_lines) == said


@pytest.fixture
def printed(capsys, tmp_path):
    def printed(argv: str) -> str:
        experiment(tmp_path / "run", *argv.split()).run()
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("--parallel-clients 4", "--parallel-clients has no effect: add --executor stacked"),
        ("--participation 0.04", "--participation 0.04 of 6 clients is 1 a round"),
        ("--local-epochs 0.01", "--local-epochs 0.01 is 0.25 on average"),
        (
            "--participation 1 --batch-size 2000 --model.hidden 32",
            "--executor stacked trains so small a model",
        ),
        ("--compile --batch-size 2000", "no client has a full batch of 2,000 samples"),
        ("--algorithm local_only", "local_only trains clients' own models"),
        ("--algorithm local_only --server-lr 0.5", "--server-lr has no effect: clients send"),
        ("--algorithm fedbabu", "fedbabu trains clients' own models"),
        ("--algorithm knn_per", "knn_per trains clients' own models"),
        ("--sampling weighted --weighting by_size", "they count twice"),
        ("--algorithm fedtoga", "fedtoga: effective server momentum: 0.8\n"),
        ("--algorithm fedvra --algorithm.a 300", "fedvra: the dual step a = 300 is unstable"),
        ("--algorithm local_adamw --lr 0.1", "local_adamw: steps are as long as the learning rate"),
        ("--algorithm local_adamw --lr 0.001", ""),
        ("", "weighted by their samples"),
        ("--algorithm fedsam", "weighted equally"),
    ],
)
def test_a_run_prints_weights_and_effects_that_its_user_may_not_expect(argv, line, printed):
    assert line in printed(argv)


@pytest.mark.parametrize(
    "argv",
    [
        "--executor stacked --parallel-clients 4",
        "--participation 0.04 --sampling bernoulli",
        "--participation 0.95 --sampling weighted --weighting uniform",
        "--local-epochs 0.01 --local-steps none --batch-size 1",
        "--participation 1 --partition dirichlet --partition.alpha 0.1 --model.hidden 32",
        "--algorithm knn_per --finetune-epochs 1",
        "--algorithm fedsol --algorithm.scope all",
    ],
)
def test_an_ordinary_run_prints_no_such_line(argv, printed):
    said = printed(argv)
    for words in ("no effect", "a round\n", "on average, in", "count twice", "own models: "):
        assert words not in said
    assert "so small a model" not in said
