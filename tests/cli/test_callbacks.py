"""Callbacks on the command line and in YAML files."""

import pytest
from refusals import experiment

from fl_lightning.callbacks import CALLBACKS
from fl_lightning.cli.components import component_text, read_component


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("sharpness:rho=0.1", "sharpness:every=10,rho=0.1,samples=none"),
        ("Layer-Strength", "layer_strength:every=10"),
        (
            "evaluate_models:every=2,models=cohort,clients",
            "evaluate_models:models=cohort,clients,every=2",
        ),
        (
            "early_stopping:min-delta=1",
            "early_stopping:patience=10,monitor=val/loss,min_delta=1.0,mode=auto",
        ),
        ("diagnostics", "diagnostics"),
    ],
)
def test_a_text_is_recorded_with_every_option(given, whole):
    for text in (given, whole):
        assert component_text(read_component("callback", text)) == whole


def test_flags_replace_the_callbacks_of_a_file(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("callback:\n- layer_strength\n- sharpness:rho=0.1,every=5\n")

    def callbacks(*argv: str) -> list[str]:
        texts = experiment(tmp_path / "run", "--config", str(file), *argv).options.callback
        return [text.partition(":")[0] for text in texts]

    assert callbacks() == ["layer_strength", "sharpness"]
    assert callbacks("--callback", "none") == []
    assert callbacks("--callback", "diagnostics", "--callback", "consistency") == [
        "diagnostics",
        "consistency",
    ]


def test_help_lists_all_callbacks_and_the_options_of_those_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        experiment(tmp_path / "run", "--callback", "growth_stopping", "--help")
    shown = capsys.readouterr().out
    assert [name for name in CALLBACKS if f"  {name} " not in shown] == []
    assert "tau=X" in shown
    assert "rho=X" not in shown.partition("callbacks:")[2]
