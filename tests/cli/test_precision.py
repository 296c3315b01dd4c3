"""A run's precision belongs to its options, also where `fabric run` takes it."""

from pathlib import Path

import pytest
import yaml
from refusals import digits, experiment, sentence

from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a run in bf16."""
    experiment(tmp_path / "run", "--precision", "bf16-mixed").run()
    return tmp_path / "run/config.yaml"


def test_the_configuration_holds_it_and_a_resumed_run_keeps_it(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = experiment(config.parent.parent / "again", "--config", str(config))
    written = yaml.safe_load(config.read_text())["precision"]
    assert written == again.resolved()["precision"] == "bf16-mixed"
    more = "--resume", "--rounds", "2"
    other = experiment(config.parent, *more, "--precision", "32-true")
    assert "precision was bf16-mixed and is now 32-true" in sentence(capsys, other.run)
    experiment(config.parent, *more).run()
    assert len((config.parent / "metrics.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("flag", "precision"),
    [(None, None), ("32", "32-true"), ("bf16", "bf16-mixed"), ("bf16-mixed", "bf16-mixed")],
)
def test_the_precision_of_fabric_run_goes_over_files(
    flag: str | None,
    precision: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file alone is refused, since Fabric would not read it."""
    config = tmp_path / "config.yaml"
    config.write_text("precision: bf16-mixed\n")
    monkeypatch.setenv("LT_CLI_USED", "1")
    argv = ["--config", str(config)]
    if flag is None:
        said = sentence(capsys, Experiment, [digits], [mlp], argv=argv)
        assert "add --precision bf16-mixed" in said
    else:
        monkeypatch.setenv("LT_PRECISION", flag)
        again = Experiment([digits], [mlp], argv=argv)
        assert again.resolved()["precision"] == precision
