"""The scalars of a run, read from its `metrics.csv`."""

import csv
from collections.abc import Mapping
from pathlib import Path

from fl_lightning.errors import UserError

Scalars = Mapping[str, Mapping[int, float]]
"""Numbers by tag, as TensorBoard shows it, then by round."""


def read_scalars(path: Path) -> Scalars:
    """Read `metrics.csv`; a last line that is still being written does not count.

    Raises:
        UserError: If the file is no such table.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = list(reader.fieldnames or [])
        if "round" not in columns:
            raise UserError(f"{path.name} has no column round")
        rows = [row for row in reader if None not in row.values()]
    return {
        tag: {int(row["round"]): float(row[tag]) for row in rows if row[tag]}
        for tag in columns
        if tag != "round"
    }
