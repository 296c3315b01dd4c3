"""The scalars of a run, read from its `metrics.csv`, and their directions by name."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from fl_lightning.errors import UserError

Scalars = Mapping[str, Mapping[int, float]]
"""Numbers by tag, as TensorBoard shows it, then by round."""

SCORES = (
    "acc accuracy ap auc auroc bleu dice f1 iou jaccard kappa map mcc miou ndcg precision psnr r2 "
    "recall specificity ssim"
)
"""Words in names of scalars whose larger values are better."""

NO_SCORES = "loss std gap drop variance"
"""Words in names of losses, and of how far scores lie apart."""

OF_CLIENTS = "test/clients", "test/clients_worst10", "test/local"
"""Accuracies over clients."""


def higher_is_better(tag: str) -> bool:
    """Whether larger values of a scalar are better, by its name, as `val_mIoU` or `BinaryAUROC`."""
    if tag.startswith("test/class_") or tag in OF_CLIENTS:
        return True
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tag)
    words = {*re.findall("[a-z0-9]+", f"{tag} {split}".lower())}
    scores = "accuracy" in tag.lower() or not words.isdisjoint(SCORES.split())
    return scores and words.isdisjoint(NO_SCORES.split())


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
