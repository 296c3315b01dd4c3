r"""LoRA for a classifier of texts: from which of eight topics a passage is; no download of data.

    python recipes/passages.py
    python recipes/passages.py \
        --model.architecture FOLDER --data.tokenizer FOLDER

The topics are of Python's language reference. A folder, or a name on the Hugging Face Hub, brings a
model's weights and its tokenizer.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

import fl_lightning as fl
from fl_lightning.core.constraints import PositiveFloat, PositiveInt
from fl_lightning.experiment import Experiment

TOPICS = ["compound", "debugger", "formatstrings", "import", "numeric-types", "string-methods"]
TOPICS += ["typesmapping", "typesseq"]


def passages(
    tokenizer: str | None = None,
    length: PositiveInt = 32,
    alpha: PositiveFloat = 0.5,
    clients: PositiveInt = 10,
) -> fl.FederatedData:
    """Passages of eight topics of Python's language reference, which every Python has.

    Args:
        tokenizer: A folder or a name on the Hugging Face Hub; without one, bytes are the tokens.
        length: Tokens of a passage.
        alpha: Each topic's passages go to clients in shares from Dirichlet(alpha).
        clients: Number of clients.
    """
    from pydoc_data.topics import topics

    encode: Callable[[str], Iterable[int]] = str.encode
    if tokenizer is not None:
        from transformers import AutoTokenizer

        named = AutoTokenizer.from_pretrained(tokenizer)
        encode = partial(named.encode, add_special_tokens=False)
    parts = [torch.tensor([*encode(topics[name])]).unfold(0, length, length) for name in TOPICS]
    labels = torch.arange(len(TOPICS)).repeat_interleave(torch.tensor([*map(len, parts)]))
    owners = fl.partitions.dirichlet(alpha=alpha, clients=clients)
    return fl.FederatedData(
        {"input_ids": torch.cat(parts), "label": labels}, clients=owners, test=0.2, classes=TOPICS
    )


def classifier(
    classes: int,
    architecture: str = "bert",
    rank: PositiveInt = 8,
    targets: tuple[str, ...] = ("query", "value"),
) -> nn.Module:
    """A model of transformers with adapters of LoRA, and a new head.

    Args:
        classes: Number of topics.
        architecture: A type, which gets random weights; a folder or a name on the Hub.
        rank: Rank of the adapters.
        targets: Last parts of the names of the layers that get adapters.
    """
    return fl.models.huggingface(
        architecture,
        task="classes",
        classes=classes,
        lora_rank=rank,
        lora_targets=targets,
        vocabulary=256,  # bytes
    )


if __name__ == "__main__":
    Experiment(
        data=[passages],
        models=[classifier],
        algorithm="local_adamw",
        weighting="by_size",
        partition="by_domain",
        clients=None,
        participation=0.5,
        rounds=30,
        local_steps=5,
        batch_size=8,
        lr=0.003,
        doc=__doc__,
    ).run()
