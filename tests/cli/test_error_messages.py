"""One sentence, said once, however many ranks have the same to say."""

import pytest
import torch
from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only

from fl_lightning.cli import error_messages
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.errors import TermError, first_sentence

TORCHRUN = [{"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(3)]
"""`fabric run` is torchrun too."""

ANOTHER_MACHINE = [{"RANK": str(3 + i), "LOCAL_RANK": str(i)} for i in range(3)]
"""That of a torchrun on another machine, which has a console of its own."""

SLURM = [
    {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i % 2), "SLURM_NTASKS": "3"} for i in range(3)
]
LIGHTNING = [{}, {"LOCAL_RANK": "1"}]


@pytest.mark.parametrize(
    "launched",
    [TORCHRUN, ANOTHER_MACHINE, SLURM, LIGHTNING],
    ids=["torchrun", "another", "SLURM", "Lightning"],
)
def test_of_several_ranks_the_first_speaks_before_there_is_a_fabric(
    launched: list[dict[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variables in launched:
        for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(
            rank_zero_only, "rank", _get_rank() or 0
        )  # as Lightning does when it is imported
        with pytest.raises(SystemExit):
            error_messages.exit_with_error("it does not fit")
    assert capsys.readouterr().err == "error: it does not fit\n"


@pytest.mark.parametrize(
    ("error", "speaks"),
    [
        (OSError("no such disk"), True),
        (torch.OutOfMemoryError("No"), True),
        (TermError("No"), False),
    ],
)
def test_what_is_wrong_with_a_machine_is_said_by_its_own_rank(
    error: Exception,
    speaks: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(error_messages, "is_first_rank", lambda: False)
    with pytest.raises(SystemExit), exit_with_message():
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
