"""kNN-Per: the neighbours' vote on features made by hand."""

from collections.abc import Callable
from math import exp
from typing import Any

import pytest
import torch
from problems import vec
from torch import Tensor

from fl_lightning import algorithms
from fl_lightning.core.prediction import NearestNeighbours, PersonalModel, from_logits


def own(x: Tensor, y: list[int], logits: Tensor, features: int = 1) -> PersonalModel:
    """A client whose features are its inputs, repeated, and whose logits are constant."""
    return PersonalModel(
        lambda x: (x[:, None].repeat(1, features), logits.expand(len(x), -1)), x, torch.tensor(y), 2
    )


LOGITS = vec(0.0, 1.0)
CLIENT = own(vec(0, 1, 3), [0, 1, 1], LOGITS)


def vote(knn: NearestNeighbours, x: float, client: PersonalModel = CLIENT) -> list[float]:
    return knn(client)(vec(x))[0].tolist()


def test_neighbours_vote_by_nearness() -> None:
    """Of the point 0 the neighbours 0 and 1 are at squared distances 0 and 1; 3 is at 9."""
    total = 1 + exp(-1)
    assert vote(NearestNeighbours(2, mix=1.0), 0.0) == pytest.approx([1 / total, exp(-1) / total])
    total = 1 + exp(-1) + exp(-9)
    assert vote(NearestNeighbours(3, mix=1.0), 0.0) == pytest.approx(
        [1 / total, (exp(-1) + exp(-9)) / total]
    )
    assert vote(NearestNeighbours(1, mix=1.0), 2.9) == [0, 1]


def test_distances_count_by_scale_and_number_of_features() -> None:
    """Two equal features double the squared distance, and it is divided by two."""
    wide = own(CLIENT.x, CLIENT.y.tolist(), LOGITS, features=2)
    narrow = vote(NearestNeighbours(2, mix=1.0), 0.0)
    assert vote(NearestNeighbours(2, mix=1.0), 0.0, wide) == pytest.approx(narrow)
    total = 1 + exp(-1 / 4)
    assert vote(NearestNeighbours(2, mix=1.0, scale=4.0), 0.0) == pytest.approx(
        [1 / total, exp(-1 / 4) / total]
    )


def test_more_neighbours_than_samples_are_all_samples() -> None:
    assert vote(NearestNeighbours(7, mix=1.0), 0.3) == vote(NearestNeighbours(3, mix=1.0), 0.3)


def test_far_from_every_sample_the_nearest_decides() -> None:
    assert vote(NearestNeighbours(3, mix=1.0), 1e4) == [0, 1]
    assert vote(NearestNeighbours(3, mix=1.0), -1e4) == [1, 0]


def test_the_vote_is_mixed_with_the_models_probabilities_or_with_its_logits() -> None:
    votes, probabilities = (
        [1 / (1 + exp(-1)), exp(-1) / (1 + exp(-1))],
        [1 / (1 + exp(1)), exp(1) / (1 + exp(1))],
    )
    mixed = [0.25 * v + 0.75 * p for v, p in zip(votes, probabilities, strict=True)]
    assert vote(NearestNeighbours(2, mix=0.25), 0.0) == pytest.approx(mixed)
    with_logits = [0.25 * v + 0.75 * z for v, z in zip(votes, [0.0, 1.0], strict=True)]
    assert vote(NearestNeighbours(2, mix=0.25, logits=True), 0.0) == pytest.approx(with_logits)
    assert from_logits(CLIENT)(vec(0.0)).tolist() == [[0.0, 1.0]]


def test_a_store_of_limited_capacity_holds_that_many_samples_drawn_at_random_once() -> None:
    """Sample i is the only one of class i, so the votes of all neighbours tell who is stored."""
    many = PersonalModel(
        lambda x: (x[:, None], vec(*[0.0] * 300).expand(len(x), -1)),
        vec(*range(300)),
        torch.arange(300),
        300,
    )

    def stored(capacity: int | None) -> list[int]:
        scores: Callable[[Tensor], Tensor] = NearestNeighbours(300, 1.0, 1e9, capacity)(many)
        return scores(vec(0.0))[0].nonzero().flatten().tolist()

    assert len(stored(250)) == 250
    assert stored(250) == stored(250) != list(range(250))
    assert stored(None) == stored(1000) == list(range(300))


@pytest.mark.parametrize(
    "bad",
    [
        {"neighbours": 0},
        {"mix": -0.1},
        {"mix": 1.1},
        {"mix": float("nan")},
        {"scale": 0.0},
        {"capacity": -1},
    ],
    ids=str,
)
def test_what_cannot_vote_is_refused(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(ValueError, match=f"^{name} of NearestNeighbours is a .*number"):
        NearestNeighbours(**bad)


def test_knn_per_names_how_its_clients_read_their_model() -> None:
    assert algorithms.knn_per(5, 0.3, 2.0, 500, "logits").predict == NearestNeighbours(
        5, 0.3, 2.0, 500, logits=True
    )
    assert algorithms.knn_per().predict == NearestNeighbours(7, 0.5, 1.0, None, logits=False)
    assert algorithms.fedavg().predict is from_logits
