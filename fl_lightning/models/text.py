"""Small networks that predict the next token at every place: (b, t) int64 to (b, t, vocabulary)."""

import torch
from torch import Tensor, nn

from fl_lightning.core.constraints import PositiveInt, UnitInterval, checked


class CharLSTM(nn.Module):
    """An embedding, LSTM layers, and `classifier`."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the token after each place."""
        return self.classifier(self.lstm(self.embedding(tokens))[0])


@checked
def char_lstm(
    vocabulary: int,
    embedding: PositiveInt = 8,
    hidden: PositiveInt = 256,
    layers: PositiveInt = 2,
) -> nn.Module:
    """LSTM layers, as McMahan et al. (AISTATS 2017, arXiv:1602.05629) train on Shakespeare.

    Args:
        embedding: Numbers that stand for a token.
        hidden: Width of the LSTM.
        layers: Number of layers of the LSTM.
    """
    return CharLSTM(vocabulary, embedding, hidden, layers)


class CharTransformer(nn.Module):
    """Embeddings of tokens and places, causal encoder layers, and `classifier`."""

    mask: Tensor

    def __init__(
        self, vocabulary: int, size: int, width: int, heads: int, layers: int, dropout: float
    ):
        super().__init__()
        self.embedding, self.places = nn.Embedding(vocabulary, width), nn.Embedding(size, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, vocabulary)
        future = torch.full((size, size), -torch.inf).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the token after each place."""
        t = tokens.shape[1]
        x = self.embedding(tokens) + self.places.weight[:t]
        return self.classifier(self.encoder(x, self.mask[:t, :t], is_causal=True))


@checked
def char_transformer(
    vocabulary: int,
    size: int,
    width: PositiveInt = 64,
    heads: PositiveInt = 4,
    layers: PositiveInt = 2,
    dropout: UnitInterval = 0.0,
) -> nn.Module:
    """A causal Transformer with normalization before each block.

    Args:
        size: Most tokens in a sample.
        width: Numbers that stand for a token.
        heads: Attention heads of a layer.
        layers: Number of layers.
        dropout: Probability with which an activation is dropped.
    """
    return CharTransformer(vocabulary, size, width, heads, layers, dropout)
