"""Sources of texts and tables, whose clients are part of the data."""

from collections.abc import Mapping
from pathlib import Path

import torch

from fl_lightning.core.constraints import OpenFraction, PositiveInt
from fl_lightning.data.federated import FederatedData
from fl_lightning.errors import UserError


def topics(length: PositiveInt = 64, test: OpenFraction = 0.2) -> FederatedData:
    """Next characters of Python's language reference, which every Python has; 79 topics as clients.

    The topics have 202 to 62,522 of 464,970 characters (of Python 3.11), so the clients' sizes
    differ as much. Take no number from it for Shakespeare, which it only stands in for.

    Args:
        length: Characters of a sample.
        test: Fraction of each client's samples to test on.
    """
    from pydoc_data.topics import topics as texts

    return _next_characters(texts, length, test)


def text_folder(root: Path, length: PositiveInt = 64, test: OpenFraction = 0.2) -> FederatedData:
    """Next characters of the files `root/*.txt`, each of which is a client.

    Args:
        root: The folder.
        length: Characters of a sample.
        test: Fraction of each client's samples to test on.
    """
    files = sorted(root.glob("*.txt"))
    if not files:
        raise UserError(f"{root} holds no .txt files: give the folder of the texts as --data-dir")
    return _next_characters({file.stem: _text(file) for file in files}, length, test)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not in UTF-8 ({error.reason}): convert it") from None


def _next_characters(texts: Mapping[str, str], length: int, test: float) -> FederatedData:
    """Blocks of characters and of those that follow them; texts below two blocks are left out."""
    symbols = {symbol: k for k, symbol in enumerate(sorted({*"".join(texts.values())}))}
    blocks = {
        name: torch.tensor([symbols[symbol] for symbol in text]).unfold(0, length + 1, length)
        for name, text in texts.items()
        if len(text) > 2 * length
    }
    if not blocks:
        raise UserError(
            f"no text has {2 * length + 1} characters: give longer ones, or --data.length"
        )
    owners = [name for name, block in blocks.items() for _ in block]
    rows = torch.cat([*blocks.values()])
    return FederatedData((rows[:, :-1].clone(), rows[:, 1:].clone()), test, clients=owners)


def table(
    file: Path,
    target: str,
    clients: str,
    columns: tuple[str, ...] = (),
    test: OpenFraction = 0.2,
    standardize: bool = True,
    standardize_target: bool = True,
) -> FederatedData:
    """A CSV file: a column of targets, one of owners, and numbers as inputs.

    Args:
        file: The file, with a header.
        target: The column of targets; texts are classes.
        clients: The column of owners.
        columns: The columns of inputs; all others by default.
        test: Fraction of each client's rows to test on.
        standardize: Shift and scale each input to mean 0 and standard deviation 1.
        standardize_target: The same for a target of numbers, whose loss has no unit then; metrics
            stay in the target's unit.
    """
    return FederatedData.from_table(
        file,
        target=target,
        clients=clients,
        columns=columns or None,
        test=test,
        standardize=standardize,
        standardize_target=standardize_target,
    )
