"""The scalars of a run, read from its `metrics.csv`, and their directions by name."""

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from fl_lightning.errors import UserError

Scalars = Mapping[str, Mapping[int, float]]
"""Numbers by tag, as TensorBoard shows it, then by round."""

HIGHER_IS_BETTER = re.compile(
    r"^(?!.*(_std$|(\b|_)loss(\b|_)))(test/(clients|clients_worst10|local)$|.*(accuracy|test/class_"
    r"|(\b|_)(acc|ap|auc|auroc|bleu|dice|f1|iou|jaccard|kappa|map|mcc|miou|ndcg|precision|psnr|r2"
    r"|recall|specificity|ssim)(\b|_)))",
    re.IGNORECASE,  # LightningModules log names such as val_Acc, test/F1 or "test R2"
)
"""Names of scalars whose larger values are better: no losses and deviations."""


def higher_is_better(tag: str) -> bool:
    """Whether larger values of a scalar are better, by its name."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tag)  # of torchmetrics, as MulticlassF1Score
    return any(map(HIGHER_IS_BETTER.match, (tag, words)))


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
