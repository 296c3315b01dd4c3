"""Scores of clients' own models during the rounds."""

from pathlib import Path
from typing import Any

import jobs
import pytest
from refusals import Stops, experiment

ROUNDS = 3
MEASURE = "--callback", "personal_scores:every=1,epochs=1"


def rounds_of(folder: Path, algorithm: str, *argv: str, rounds: int = ROUNDS) -> list[Any]:
    experiment(folder, "--algorithm", algorithm, *argv, rounds=rounds).run()
    return jobs.results(folder)["metrics"]


@pytest.mark.parametrize("algorithm", ["fedper", "ditto", "pfedme", "apfl", "perfedavg"])
def test_a_round_has_the_scores_of_a_run_that_ends_in_it(algorithm, tmp_path):
    """And the training is that of a run without scores."""
    scored = rounds_of(tmp_path / "scored", algorithm, *MEASURE, rounds=2)
    for last in (1, 2):
        options = "--finetune-epochs", "1"
        ended = rounds_of(tmp_path / str(last), algorithm, *options, rounds=last)[-1]
        of_round = scored[last - 1]
        mean, deviation = (float(of_round[f"own/accuracy{end}"]) for end in ("", "_std"))
        assert mean == pytest.approx(float(ended["personal/accuracy_1"]))
        assert deviation == pytest.approx(float(ended["personal/std_1"]))
        assert all(of_round[tag] == ended[tag] for tag in ended if "personal" not in tag)


ENDS_AT_0 = "--lr", "cosine(0.1, 0)", "--callback"


def test_fine_tuning_at_a_rate_of_0_is_refused_before_the_first_round(tmp_path, sentence):
    given = tmp_path / "run", "fedper", *ENDS_AT_0, "personal_scores:epochs=1"
    assert "personal_scores:lr" in sentence(rounds_of, *given)
    assert not (tmp_path / "run" / "model.pt").exists()


def test_models_are_scored_as_they_are_where_the_rate_ends_at_0(tmp_path):
    options = *ENDS_AT_0, "personal_scores", "--finetune-epochs", "0"
    last = rounds_of(tmp_path / "run", "fedper", *options)[-1]
    assert float(last["own/accuracy"]) == pytest.approx(float(last["personal/accuracy_0"]))


def test_a_resumed_run_has_the_scores_of_an_uninterrupted_one(tmp_path):
    whole = rounds_of(tmp_path / "whole", "fedper", *MEASURE)
    options = "--algorithm", "fedper", "--checkpoint-every", "1", *MEASURE
    stopped = experiment(tmp_path / "run", *options, rounds=ROUNDS)
    stopped.callbacks = [Stops(2)]
    with pytest.raises(SystemExit):
        stopped.run()
    experiment(tmp_path / "run", "--resume").run()
    assert jobs.results(tmp_path / "run")["metrics"] == whole
