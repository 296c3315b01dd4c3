"""Runs lie in a folder of their own, and draw no pictures, which take most of a short run."""

import pytest

from fl_lightning.callbacks import TensorBoard


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TensorBoard, "log_partition", lambda *_: None)
