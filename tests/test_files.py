"""Files that are written whole or not at all."""

import locale
import os
from errno import ENOSPC
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from fl_lightning.files import atomic


def test_a_file_appears_at_the_end_and_with_its_line_ends(tmp_path):
    path = tmp_path / "new" / "table.csv"
    with atomic(path, "w") as file:
        file.write("a\r\nb\n")
        assert not path.exists()
    assert path.read_bytes() == b"a\r\nb\n"


def test_a_text_is_in_utf_8_in_any_locale(tmp_path):
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        with atomic(tmp_path / "table.csv", "w") as file:
            file.write("Käse")
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    assert (tmp_path / "table.csv").read_bytes() == "Käse".encode()


def save_on_a_full_disk(path: Path) -> None:
    with atomic(path) as file:
        file.write(b"half")
        file.write = Mock(side_effect=OSError(ENOSPC, os.strerror(ENOSPC)))
        torch.save([1], file)  # hides the error in one of its own


def test_an_error_names_the_file_and_leaves_it_as_it_was(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match=r"No space left.*model\.pt"):
        save_on_a_full_disk(path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("model.pt", b"before")]
