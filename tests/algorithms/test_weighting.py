"""Aggregation weights: FedDisco's on cohorts made by hand, and own ones."""

import pytest
import torch
from problems import close, federation, vec

from fl_lightning import Algorithm
from fl_lightning.core.weighting import Cohort, Disco


def cohort(sizes: list[float], *labels: list[int]) -> Cohort:
    return Cohort(vec(*sizes), torch.tensor(labels))


ONE_SKEWED = cohort([1, 3], [5, 5], [30, 0])
"""A quarter and three quarters of the samples; all of the discrepancy is the second client's."""


@pytest.mark.parametrize(
    ("a", "b", "weights"),
    [
        (0.5, 0.1, (0.25 + 0.1, 0.75 - 0.5 + 0.1)),
        (0.0, 0.1, (0.25 + 0.1, 0.75 + 0.1)),
        (1.0, 0.0, (0.25, 0)),  # not below zero
    ],
)
def test_a_skewed_client_weighs_less(a: float, b: float, weights: tuple[float, float]) -> None:
    close(Disco(a, b)(ONE_SKEWED), *weights)


def test_clients_with_uniform_labels_weigh_their_samples_and_nothing_is_divided_by_zero() -> None:
    close(Disco(0.5, 0.1)(cohort([1, 3], [4, 4], [9, 9])), 0.25 + 0.1, 0.75 + 0.1)


def test_where_no_weight_is_positive_samples_weigh() -> None:
    close(Disco(10.0, 0.0)(cohort([1, 3], [5, 0], [0, 30])), 0.25, 0.75)
    close(Disco(10.0, 0.1)(cohort([3], [5, 0])), 1.0)


def test_shares_of_labels_have_the_digits_of_sizes() -> None:
    """Quotients of whole numbers are float32."""

    def by_first_label(cohort: Cohort) -> torch.Tensor:
        return cohort.labels[:, 0] / cohort.labels.sum(1)

    run = federation(Algorithm(weight=by_first_label))
    counts = run.clients.class_counts.double()
    shares = counts[:2, 0] / counts[:2].sum(1)
    expected = (shares / shares.mean()).tolist()
    assert run.local_training.weights([0, 1]) == pytest.approx(expected, rel=1e-14)
