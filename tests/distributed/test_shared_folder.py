"""Machines need one shared folder for the clients' states."""

from functools import partial
from pathlib import Path

import torch
from lightning.fabric import Fabric

from fl_lightning.distributed.collectives import check_shared_folder


def checked(fabric: Fabric, folder: Path) -> list[str]:
    """The outcome on each rank, in the folder of its number."""
    before, outcome = torch.get_rng_state(), "shared"
    try:
        check_shared_folder(fabric, folder / str(fabric.global_rank))
    except (OSError, ValueError, SystemExit) as error:
        outcome = str(error)
    assert torch.get_rng_state().equal(before)
    return [fabric.broadcast(outcome, src=rank) for rank in range(fabric.world_size)]


def on_two_ranks(folder: Path) -> list[str]:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    return fabric.launch(partial(checked, folder=folder))


def test_ranks_without_a_shared_folder_are_refused(tmp_path):
    """A file of an earlier run, which did share its folder, does not count."""
    (tmp_path / "0").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "0")
    assert on_two_ranks(tmp_path) == ["shared", "shared"]
    (tmp_path / "1").unlink()
    (tmp_path / "1").mkdir()
    (tmp_path / "1/.shared").write_bytes((tmp_path / "0/.shared").read_bytes())
    for rank, said in enumerate(on_two_ranks(tmp_path)):
        assert f"rank 1 does not see what rank 0 wrote in {tmp_path / str(rank)}: " in said


def test_no_rank_waits_for_one_that_cannot_write(tmp_path):
    (tmp_path / "0").write_text("a file, where the folder should be")
    first, second = on_two_ranks(tmp_path)
    assert "File exists" in first
    assert second == "2"
