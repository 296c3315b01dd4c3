"""The picture of the partition, which takes most of a short run: tests draw it where they look."""

from collections.abc import Iterator
from contextlib import contextmanager

from fl_lightning.callbacks import TensorBoard

log_partition = TensorBoard.log_partition


def leave_out() -> None:
    TensorBoard.log_partition = lambda *_: None


@contextmanager
def drawn() -> Iterator[None]:
    TensorBoard.log_partition = log_partition
    try:
        yield
    finally:
        leave_out()
