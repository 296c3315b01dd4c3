"""A run's precision belongs to its options, also where Fabric takes it."""

from pathlib import Path

import pytest
import yaml
from refusals import experiment, sentence


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a run in bf16."""
    experiment(tmp_path / "run", "--precision", "bf16-mixed").run()
    return tmp_path / "run/config.yaml"


def test_a_configuration_holds_it_and_a_resumed_run_keeps_it(config: Path) -> None:
    again = experiment(config.parent.parent / "again", "--config", str(config))
    assert (
        yaml.safe_load(config.read_text())["precision"]
        == again.resolved()["precision"]
        == "bf16-mixed"
    )
    experiment(config.parent, "--resume", "--rounds", "2").run()
    assert len((config.parent / "metrics.csv").read_text().splitlines()) == 3


def test_another_one_is_refused_on_resume(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resumed = experiment(config.parent, "--resume", "--rounds", "2", "--precision", "32-true")
    assert "precision was bf16-mixed and is now 32-true" in sentence(capsys, resumed.run)


@pytest.mark.parametrize("told", [None, "32", "bf16", "bf16-mixed"])
def test_fabric_run_is_to_be_told_too_and_goes_over_files(
    told: str | None,
    config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LT_CLI_USED", "1")
    monkeypatch.setattr("refusals.Experiment", _without_fabrics_own)
    if told:
        monkeypatch.setenv("LT_PRECISION", told)
    if told is None:
        said = sentence(capsys, experiment, config.parent.parent / "again", "--config", str(config))
        assert "add --precision bf16-mixed to it" in said
    else:
        again = experiment(config.parent.parent / "again", "--config", str(config))
        assert again.resolved()["precision"] == ("32-true" if told == "32" else "bf16-mixed")


def _without_fabrics_own(*args: object, argv: list[str], **options: object) -> object:
    from fl_lightning.experiment import Experiment

    taken = argv.index("--accelerator")
    return Experiment(*args, argv=argv[:taken] + argv[taken + 2 :], **options)  # type: ignore[arg-type]
