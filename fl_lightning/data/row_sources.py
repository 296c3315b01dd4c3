"""Sources of texts, tables and made samples, whose clients are part of the data."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fl_lightning.core.constraints import (
    NonNegativeFloat,
    NonNegativeInt,
    OpenFraction,
    PositiveInt,
    checked,
)
from fl_lightning.core.randomness import generator
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

    Files that are shorter than two samples are left out with a warning.

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
    if short := sorted(texts.keys() - blocks.keys()):
        warnings.warn(
            f"{len(short)} of {len(texts)} texts have less than {2 * length + 1} characters and "
            f"are left out, such as {short[0]!r}: --data.length gives shorter samples",
            stacklevel=2,
        )
    owners = [name for name, block in blocks.items() for _ in block]
    rows = torch.cat([*blocks.values()])
    return FederatedData((rows[:, :-1].clone(), rows[:, 1:].clone()), test, clients=owners)


@checked
def synthetic(
    alpha: NonNegativeFloat = 1.0,
    beta: NonNegativeFloat = 1.0,
    iid: bool = False,
    clients: PositiveInt = 30,
    test: OpenFraction = 0.1,
    seed: NonNegativeInt = 0,
) -> FederatedData:
    """Synthetic(alpha, beta) of FedProx, whose clients have linear models and inputs of their own.

    Client k has `y = argmax(W_k x + b_k)` in 10 classes, with `W_k` and `b_k` from N(u_k, 1), 60
    inputs from N(v_k, Sigma), where Sigma is diagonal with j^-1.2 and v_k is from N(B_k, 1), and
    lognormal(4, 2) + 50 samples. u_k is from N(0, alpha) and B_k from N(0, beta), by the released
    code standard deviations; the paper says variances, which are the same for 0 and 1. Li et al.,
    MLSys 2020, https://arxiv.org/abs/1812.06127.

    Args:
        alpha: How much the clients' models differ.
        beta: How much the clients' inputs differ.
        iid: One model and one distribution of inputs for all clients, as in synthetic_iid.
        clients: Number of clients; q-FFL has 100.
        test: Fraction of each client's samples to test on.
        seed: Seed of the data.
    """
    g = generator(seed, "synthetic")

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    sizes = (normal(clients) * 2 + 4).exp().long() + 50
    u, v = alpha * normal(clients, 1, 1), beta * normal(clients, 1) + normal(clients, 60)
    if iid:
        models, v = normal(1, 61, 10).expand(clients, -1, -1), torch.zeros_like(v)
    else:
        models = u + normal(clients, 61, 10)
    deviations = torch.arange(1, 61, dtype=torch.float64) ** -0.6
    owners = torch.arange(clients).repeat_interleave(sizes)
    x = v[owners] + deviations * normal(len(owners), 60)
    each = zip(x.split(sizes.tolist()), models, strict=True)
    y = torch.cat([torch.addmm(model[-1], rows, model[:-1]).argmax(1) for rows, model in each])
    return FederatedData((x.float(), y), test, clients=owners, seed=seed)


def table(
    file: Path,
    target: str,
    clients: str,
    columns: tuple[str, ...] = (),
    test: OpenFraction = 0.2,
    standardize: bool = True,
    standardize_target: bool = True,
    classes: tuple[str, ...] = (),
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
        classes: Names of the classes 0, 1, ... of a target of whole numbers, such as no,yes.
    """
    return FederatedData.from_table(
        file,
        target=target,
        clients=clients,
        columns=columns or None,
        test=test,
        standardize=standardize,
        standardize_target=standardize_target,
        classes=classes or None,
    )
