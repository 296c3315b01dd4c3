"""One sentence, said once, however many ranks have the same to say."""

import os
import subprocess
import sys

import pytest
import torch

from fl_lightning import sentences
from fl_lightning.failure import in_one_sentence
from fl_lightning.sentences import first_sentence

TORCHRUN = [{"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}, {"RANK": "2", "LOCAL_RANK": "0"}]
"""`fabric run` is torchrun too; the third rank is the first of another machine."""

SLURM = [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i % 2), "SLURM_NTASKS": "3"} for i in range(3)]
LIGHTNING = [{}, {"LOCAL_RANK": "1"}]


@pytest.mark.parametrize("launched", [TORCHRUN, SLURM, LIGHTNING], ids=["torchrun", "SLURM", "Lightning"])
def test_of_several_ranks_the_first_speaks_before_there_is_a_fabric(launched: list[dict[str, str]]) -> None:
    bare = {k: v for k, v in os.environ.items() if k not in {"RANK", "LOCAL_RANK", "SLURM_PROCID"}}
    command = [sys.executable, "-c", "from fl_lightning.sentences import fail; fail('it does not fit')"]
    started = [
        subprocess.Popen(command, env={**bare, **variables}, stderr=subprocess.PIPE, text=True)
        for variables in launched
    ]
    said = [rank.communicate(timeout=120)[1] for rank in started]
    assert said == ["error: it does not fit\n", *[""] * (len(launched) - 1)]
    assert {rank.returncode for rank in started} == {2}


@pytest.mark.parametrize(("error", "speaks"), [(OSError("no such disk"), True), (torch.OutOfMemoryError("No"), False)])
def test_what_is_wrong_with_a_machine_is_said_by_its_own_rank(
    error: Exception, speaks: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentences, "is_first_rank", lambda: False)
    with pytest.raises(SystemExit), in_one_sentence():
        raise error
    assert ("error: " in capsys.readouterr().err) == speaks


@pytest.mark.parametrize(
    ("message", "first"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", "CUDA out of memory"),
        ("size 2.5 does not fit\nTraceback. Of PyTorch", "size 2.5 does not fit"),
        ("\n  choose another model, e.g. lenet.\n", "choose another model, e.g. lenet"),
        ("", "RuntimeError"),
    ],
)
def test_the_first_sentence_of_an_error(message: str, first: str) -> None:
    assert first_sentence(RuntimeError(message)) == first
