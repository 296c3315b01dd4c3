"""kNN-Per: the neighbors' vote on features made by hand."""

from dataclasses import replace
from math import exp

import pytest
import torch
from problems import vec
from torch import Tensor

from fl_lightning.core.prediction import NearestNeighbors, PersonalModel


def own(x: Tensor, y: list[int], logits: Tensor, features: int = 1) -> PersonalModel:
    """A client whose features are its inputs, repeated, and whose logits are constant."""

    def look(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, None].repeat(1, features), logits.expand(len(x), -1)

    return PersonalModel(look, x, torch.tensor(y), len(logits))


LOGITS = vec(0.0, 1.0)
CLIENT = own(vec(0, 1, 3), [0, 1, 1], LOGITS)


def vote(knn: NearestNeighbors, x: float, client: PersonalModel = CLIENT) -> list[float]:
    return knn(client)(vec(x))[0].tolist()


NEAR, FAR = exp(-1), exp(-9)
"""Of the point 0, the neighbors 0, 1 and 3 are at squared distances 0, 1 and 9."""


@pytest.mark.parametrize(
    ("knn", "votes"),
    [
        (NearestNeighbors(2, mix=1.0), [1, NEAR]),
        (NearestNeighbors(3, mix=1.0), [1, NEAR + FAR]),
        (NearestNeighbors(7, mix=1.0), [1, NEAR + FAR]),
        (NearestNeighbors(2, mix=1.0, scale=4.0), [1, exp(-1 / 4)]),
    ],
    ids=["two", "three", "more than there are", "another scale"],
)
def test_neighbors_vote_by_nearness(knn, votes):
    assert vote(knn, 0.0) == pytest.approx([v / sum(votes) for v in votes])
    # Two equal features double the squared distance, which is divided by their number.
    wide = own(CLIENT.x, CLIENT.y.tolist(), LOGITS, features=2)
    assert vote(knn, 0.0, wide) == pytest.approx(vote(knn, 0.0))


def test_far_from_every_sample_the_nearest_decides():
    assert vote(NearestNeighbors(3, mix=1.0), 1e4) == [0, 1]
    assert vote(NearestNeighbors(3, mix=1.0), -1e4) == [1, 0]


@pytest.mark.parametrize(
    ("logits", "said"), [(False, [1 / (1 + exp(1)), exp(1) / (1 + exp(1))]), (True, [0, 1])]
)
def test_the_vote_is_mixed_with_the_models_probabilities_or_with_its_logits(logits, said):
    """Also where one output is of two classes, or outputs are more than the classes."""
    votes = [1 / (1 + NEAR), NEAR / (1 + NEAR)]
    mixed = [0.25 * v + 0.75 * p for v, p in zip(votes, said, strict=True)]
    knn = NearestNeighbors(2, mix=0.25, logits=logits)
    assert vote(knn, 0.0) == pytest.approx(mixed)
    one = replace(own(CLIENT.x, [0, 1, 1], vec(1.0)), classes=2)
    assert vote(knn, 0.0, one) == pytest.approx(mixed)
    three = replace(own(CLIENT.x, [0, 1, 1], vec(0.0, 1.0, -1e9)), classes=2)
    assert vote(knn, 0.0, three)[:2] == pytest.approx(mixed)


def test_a_store_of_limited_capacity_holds_that_many_samples_drawn_at_random_once():
    """Sample i is the only one of class i, so the votes of all neighbors tell who is stored."""
    many = own(vec(*range(300)), list(range(300)), vec(*[0.0] * 300))

    def stored(capacity: int | None) -> list[int]:
        knn = NearestNeighbors(300, 1.0, 1e9, capacity)
        return [i for i, score in enumerate(vote(knn, 0.0, many)) if score]

    assert len(stored(250)) == 250
    assert stored(250) == stored(250) != list(range(250))
    assert stored(None) == stored(1000) == list(range(300))
