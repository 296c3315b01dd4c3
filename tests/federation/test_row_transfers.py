"""Rows of the client store that move to and from their files while clients train."""

import os
import threading
from errno import EIO, ENOSPC
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from problems import STACKED, federation, hard

from fl_lightning import SequentialExecutor, algorithms
from fl_lightning.federation.row_files import Row, RowFiles

TIMEOUT_S = 30.0


def test_rows_are_moved_while_other_clients_train(monkeypatch):
    """No visit ends before the next row is read; no row is written before the next visit begins."""
    order = [0, 2, 1, 5, 4]  # the longest first
    run = federation(
        hard(algorithms.scaffold()), sampler=lambda *_: sorted(order), client_state_memory=0
    )
    run.train_round()
    was_read, begun = ({client: threading.Event() for client in order} for _ in range(2))
    after = dict(pairwise(order))
    read, visit, write = RowFiles.read, SequentialExecutor._visit, RowFiles.write

    def reading(files: RowFiles, slot: int, client: int, row: Row) -> Row:
        read(files, slot, client, row)
        was_read[client].set()
        return row

    def training(executor, received, each):
        begun[each.client].set()
        assert each.client not in after or was_read[after[each.client]].wait(TIMEOUT_S)
        return visit(executor, received, each)

    def writing(files: RowFiles, slot: int, client: int, row: Row) -> None:
        assert client not in after or begun[after[client]].wait(TIMEOUT_S)
        write(files, slot, client, row)

    monkeypatch.setattr(RowFiles, "read", reading)
    monkeypatch.setattr(SequentialExecutor, "_visit", training)
    monkeypatch.setattr(RowFiles, "write", writing)
    run.train_round()


@pytest.mark.parametrize("client", [0, 4])
@pytest.mark.parametrize(("name", "code"), [("read", EIO), ("write", ENOSPC)])
@pytest.mark.parametrize("width", [1, 2])
def test_a_round_with_a_disk_error_does_not_count(client, name, code, width, monkeypatch):
    """In the round's first group or its last."""
    executor = partial(STACKED, width=2) if width > 1 else SequentialExecutor
    options = {"sampler": lambda *_: [0, 2, 3, 4], "executor": executor, "client_state_memory": 0}
    run = federation(hard(algorithms.scaffold()), **options)
    run.train_round()
    before, function = run.w.detach().clone(), getattr(RowFiles, name)

    def refuse(files: RowFiles, slot: int, whose: int, row: Row) -> Any:
        if whose == client:
            raise OSError(code, os.strerror(code))
        return function(files, slot, whose, row)

    monkeypatch.setattr(RowFiles, name, refuse)
    with pytest.raises(OSError, match=os.strerror(code)):
        run.train_round()
    assert run.round == 1
    assert run.w.equal(before)
