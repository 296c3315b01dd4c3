"""How a client reads the model that it has made its own: from its outputs, or with its own samples' neighbours."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.core.constraints import PositiveFloat, PositiveInt, UnitInterval, check


@dataclass(frozen=True)
class PersonalModel:
    """A client's own model and samples.

    Attributes:
        look: Features (what enters the head, flattened) and logits of a batch of inputs, in
            evaluation mode.
        x, y: The client's training samples, not augmented.
        classes: How many classes there are.
    """

    look: Callable[[Tensor], tuple[Tensor, Tensor]]
    x: Tensor
    y: Tensor
    classes: int


Predict = Callable[[PersonalModel], Callable[[Tensor], Tensor]]
"""`predict(own)` prepares a client once; what it returns gives scores (b, classes) for a batch of inputs."""


def from_logits(own: PersonalModel) -> Callable[[Tensor], Tensor]:
    """The model's outputs."""
    return lambda x: own.look(x)[1]


@dataclass(frozen=True)
class NearestNeighbours:
    """kNN-Per (Marfoq et al., ICML 2022): `mix` of the neighbours' vote, `1 - mix` of the model's probabilities.

    A neighbour among the client's training samples votes with `exp(-d^2 / (F scale))`, d being its
    distance in the F features that enter the head.

    Attributes:
        neighbours: How many vote.
        mix: Their share; it should be chosen on validation data.
        scale: Of the squared distances.
        capacity: How many samples a client stores, drawn at random; None is all.
        logits: Mix with the raw logits, as the authors' code does by a slip.
    """

    neighbours: PositiveInt = 7
    mix: UnitInterval = 0.5
    scale: PositiveFloat = 1.0
    capacity: PositiveInt | None = None
    logits: bool = False

    def __post_init__(self) -> None:
        check(self, " of NearestNeighbours")

    def __call__(self, own: PersonalModel) -> Callable[[Tensor], Tensor]:
        """Store the features of the client's samples."""
        kept = torch.randperm(len(own.y), generator=torch.Generator().manual_seed(0))[
            : self.capacity
        ]
        kept = kept.to(own.y.device)
        stored = torch.cat([own.look(own.x[i])[0] for i in kept.split(100)])
        votes_for = torch.nn.functional.one_hot(own.y[kept], own.classes).to(stored)

        def scores(x: Tensor) -> Tensor:
            features, logits = own.look(x)
            squared = torch.cdist(features, stored).square()
            near, index = squared.topk(min(self.neighbours, len(stored)), largest=False)
            nearness = torch.exp(
                (near[:, :1] - near) / (features.shape[1] * self.scale)
            )  # the nearest counts 1
            votes = (nearness[..., None] * votes_for[index]).sum(1) / nearness.sum(1, keepdim=True)
            model = logits if self.logits else logits.softmax(1)
            return self.mix * votes + (1 - self.mix) * model

        return scores
