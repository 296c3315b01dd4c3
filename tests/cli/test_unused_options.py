"""No option is ignored in silence: what would not count beside the others is refused, or told in a line."""

from pathlib import Path

import pytest
from every_option import OPTIONS, WITH, values
from refusals import experiment, refused


@pytest.mark.parametrize(
    ("idle", "mend", "words"),
    [
        (
            "--local-steps 5 --local-epochs 3",
            "--local-steps none",
            "--local-steps takes the place of --local-epochs",
        ),
        ("--finetune-lr 0.1", "--finetune-epochs 1", "give that too, as --finetune-epochs 1,5"),
        (
            "--executor sequential --parallel-clients 4",
            "--executor stacked",
            "one client at a time: leave --parallel-clients 4 away",
        ),
        (
            "--executor sequential --parallel-clients 4",
            "--parallel-clients 1",
            "one client at a time: leave --parallel-clients 4 away",
        ),
        (
            "--algorithm fedtoga --algorithm.carry",
            "--algorithm.perturbation fusion",
            "--algorithm.carry True changes",
        ),
        (
            "--algorithm feddisco --algorithm.prox-clip split",
            "--algorithm.alpha 0.1",
            "--algorithm.prox-clip split",
        ),
        (
            "--algorithm fedsol --algorithm.first_step noise",
            "--algorithm.strength fixed",
            "--algorithm.first-step",
        ),
        (
            "--algorithm fedlesam --algorithm.first-participation skip --algorithm.reference last_round",
            "--algorithm.reference last_active",
            "--algorithm.first-participation skip changes nothing",
        ),
        (
            "--algorithm fedsol_ablation --algorithm.row a0 --algorithm.rho 1",
            "--algorithm.row a1",
            "--algorithm.rho 1",
        ),
        (
            "--algorithm fedsol_ablation --algorithm.beta 0.5",
            "--algorithm.row a2",
            "--algorithm.beta 0.5 changes",
        ),
        (
            "--algorithm fedsol --algorithm.proximal moon",
            "--algorithm.scope body",
            "moon looks at what enters the head",
        ),
        (
            "--server-optimizer adam --algorithm.server-lr 0.5",
            "--server-optimizer lookahead",
            "--algorithm.server-lr 0.5 changes nothing",
        ),
    ],
)
def test_what_would_not_count_is_refused(
    idle: str, mend: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, tmp_path / "run", *idle.split())
    if mend:
        experiment(tmp_path / "run", *idle.split(), *mend.split()).algorithm()


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=map(" ".join, OPTIONS))
def test_what_counts_is_not_refused(name: str, option: str, tmp_path: Path) -> None:
    """Every option of every algorithm and addition, with what else it needs to count."""
    part, _, choice = name.removeprefix("--").rpartition(" ")
    base = ["--algorithm", "fedsam"] if part == "ascent" else []
    others = WITH.get(f"{name} {option}", {}).items()
    part = part or "algorithm"
    for value in values(name, option):
        given = {**dict(others), option: value}
        flags = [
            f"--{part}.{key}={','.join(v) if isinstance(v, tuple) else v}"
            for key, v in given.items()
        ]
        experiment(tmp_path / "run", *base, f"--{part}={choice}", *flags).algorithm()


def test_files_may_hold_what_counts_with_another_choice(tmp_path: Path) -> None:
    """Those of a resumed run hold everything, and one file may serve GPUs and CPUs."""
    shared = tmp_path / "shared.yaml"
    shared.write_text(
        "executor: sequential\nwidth: 4\nlocal_epochs: 3\ndata_dir: elsewhere\nfinetune_lr: null\n"
    )
    experiment(tmp_path / "run", "--config", str(shared), "--local-steps", "5").algorithm()


def test_options_of_a_function_of_the_users_may_do_other_things(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("from fl_lightning.terms import SAM\nfrom fl_lightning import Algorithm\n")
    own.write_text(
        own.read_text() + "def own(verbose: bool = False):\n    return Algorithm(SAM(0.1))\n"
    )
    experiment(
        tmp_path / "run", "--algorithm", f"{own}:own", "--algorithm.verbose", "true"
    ).algorithm()


# ------------------------------------------------------------------------------------------------------ told in a line


def told(capsys: pytest.CaptureFixture[str], folder: Path, *argv: str) -> str:
    experiment(folder, *argv).run()
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            "--parallel-clients 4",
            "--parallel-clients does not count: --executor auto trains clients one after another here",
        ),
        ("--parallel-clients 1", ""),
        ("--data-dir elsewhere", "--data-dir does not count: digits reads no files"),
        ("--executor sequential --parallel-clients 10", ""),
        ("--executor stacked --parallel-clients 4", ""),
        ("--participation 0.04", "--participation 0.04 of 6 clients comes to 1 in a round"),
        ("--participation 0.04 --sampling bernoulli", ""),
        ("--participation 0.95 --sampling weighted", ""),
        (
            "--local-epochs 0.01",
            "--local-epochs 0.01 comes to 0.25 on average, as each client takes whole steps",
        ),
        ("--local-epochs 0.01 --local-steps none --batch-size 1 --rounds 1", ""),
        ("--config steps.yaml", ""),
        (
            "--compile --batch-size 2000",
            "--compile compiles nothing, as no client has a full batch of 2,000 samples",
        ),
        (
            "--algorithm local_only",
            "local_only is for clients' own models, which --finetune-epochs 1,5 scores",
        ),
        (
            "--algorithm fedbabu",
            "fedbabu is for clients' own models, which --finetune-epochs 1,5 scores",
        ),
        (
            "--algorithm knn_per",
            "knn_per is for clients' own models, which --finetune-epochs 1,5 scores",
        ),
        ("--algorithm knn_per --finetune-epochs 1", ""),
        ("--algorithm fedsol --algorithm.scope all", ""),
    ],
)
def test_what_comes_to_something_else_is_told(
    argv: str,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps.yaml").write_text("local_steps: 2\nlocal_epochs: 0.01\n")
    said = told(capsys, tmp_path / "run", *argv.split())
    assert line in said
    if not line:
        for sign in (
            "does not count",
            "comes to",
            "counts twice",
            "compiles nothing",
            "own models, which",
        ):
            assert sign not in said
