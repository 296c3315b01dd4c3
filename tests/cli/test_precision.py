"""A run's precision belongs to its options, also where `fabric run` takes it."""

import pytest
import torch
from lightning.fabric import Fabric
from problems import federation
from refusals import digits, experiment

from fl_lightning import Algorithm
from fl_lightning.experiment import Experiment
from fl_lightning.models import mlp


def test_a_run_in_bf16_keeps_32_bits_and_its_precision(tmp_path):
    experiment(tmp_path / "plain").run()
    experiment(tmp_path / "run", "--precision", "bf16-mixed").run()
    plain, rounded = (
        torch.load(tmp_path / folder / "model.pt", weights_only=True)["classifier.weight"]
        for folder in ("plain", "run")
    )
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - plain).abs().max() < 0.1
    again = experiment(tmp_path / "again", "--config", str(tmp_path / "run/config.yaml"))
    assert again.config["precision"] == "bf16-mixed"
    experiment(tmp_path / "run", "--resume", "--rounds", "2").run()


@pytest.mark.parametrize(
    ("precision", "hardware", "noted"),
    [("bf16-mixed", False, True), ("bf16-mixed", True, False), ("32-true", False, False)],
)
def test_bf16_in_software_is_noted(precision, hardware, noted, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: hardware)
    experiment(tmp_path / "run", "--precision", precision).run()
    assert ("bf16 in software" in capsys.readouterr().out) == noted


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_a_precision_that_would_not_be_kept_is_refused(precision):
    with pytest.raises(ValueError, match="precision"):
        federation(Algorithm(), fabric=Fabric(accelerator="cpu", precision=precision))


@pytest.mark.parametrize(
    ("flag", "precision"), [("", ""), ("32", "32-true"), ("bf16", "bf16-mixed")]
)
def test_the_precision_of_fabric_run_goes_over_files(
    flag, precision, tmp_path, monkeypatch, sentence
):
    """A file alone is refused, since Fabric would not read it."""
    config = tmp_path / "config.yaml"
    config.write_text("precision: bf16-mixed\n")
    monkeypatch.setenv("LT_CLI_USED", "1")
    argv = ["--config", str(config)]
    if flag:
        monkeypatch.setenv("LT_PRECISION", flag)
        assert Experiment([digits], [mlp], argv=argv).config["precision"] == precision
    else:
        said = sentence(Experiment, [digits], [mlp], argv=argv)
        assert "add --precision bf16-mixed" in said
