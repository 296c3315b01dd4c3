"""FedLESAM's perturbation: constant in a visit, back to an older model."""

import pytest
import torch
from problems import (
    Recorder,
    all_three,
    hard,
    mean_gradient,
    regression,
    round_after_round,
    rows,
    trained,
)
from torch import Tensor

from fl_lightning import Algorithm, algorithms
from fl_lightning.core.vector import unit

C = algorithms
UNIFORM = C.fedavg(weighting="uniform")


def only_client_1(num_clients: int, seed: int, round: int) -> list[int]:
    return [1]


def test_with_everybody_taking_part_the_last_active_model_is_the_last_rounds() -> None:
    def everybody(num_clients: int, seed: int, round: int) -> list[int]:
        return list(range(num_clients))

    def gap(**options: object) -> float:
        own, common = (
            trained(hard(C.fedlesam(rho=0.3, reference=reference)), **options).w.detach()
            for reference in ("last_active", "last_round")
        )
        return float((own - common).abs().max())

    assert gap(sampler=everybody) <= 1e-12
    assert gap() > 1e-6


def test_a_first_visit_refers_to_the_first_model_or_to_the_one_received() -> None:
    # Client 2 comes first in round 1 and is not perturbed there if the first participation is
    # skipped.
    options = {"participation": lambda n, seed, round: [[0, 1], [2]][round]}
    runs = [
        regression(C.fedlesam(rho=0.3, first_participation=first), **options)
        for first in ("init", "skip")
    ]
    runs.append(regression(C.fedavg(weighting="uniform"), **options))
    for run in runs:
        run.train_round()
    init, skip, plain = (run.w.detach() for run in runs)
    assert init.equal(skip)
    torch.testing.assert_close(init, plain)  # in round 0 w^0 is what everyone received
    for run in runs:
        run.train_round()
    torch.testing.assert_close(skip, plain, rtol=0, atol=1e-12)
    assert (init - plain).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("method", "base"),
    [(C.fedlesam(), UNIFORM), (C.fedlesam_s(), C.scaffold()), (C.fedlesam_d(), C.feddyn())],
    ids=["fedlesam", "fedlesam_s", "fedlesam_d"],
)
def test_round_0_is_the_base_methods_and_round_1_is_not(method: Algorithm, base: Algorithm) -> None:
    runs = [trained(hard(a), rounds=1) for a in (method, base)]
    assert runs[0].w.equal(runs[1].w)
    for run in runs:
        run.sampler = lambda n, seed, round: [0, 1]
        run.train_round()
    assert (runs[0].w - runs[1].w).abs().max() > 1e-6


def test_the_perturbation_is_one_vector_of_length_rho_the_whole_visit() -> None:
    inside: list[tuple[Tensor, Tensor]] = []
    outside: list[tuple[Tensor, Tensor]] = []
    algorithm = Algorithm(Recorder(inside), *C.fedlesam(rho=0.3).terms, Recorder(outside))
    run = regression(algorithm, sampler=only_client_1)
    for length in (0.0, 0.3, 0.3):
        inside.clear()
        outside.clear()
        run.train_round()
        e = torch.stack(
            [taken - w for (taken, _), (w, _) in zip(inside[-4:], outside[-4:], strict=True)]
        )
        torch.testing.assert_close(e, e[:1].expand_as(e), rtol=0, atol=1e-12)
        assert float(e[0].norm()) == pytest.approx(length, abs=1e-9)


def test_a_perturbed_visit_is_a_plain_one_from_a_shifted_start() -> None:
    """Without weight decay and clipping: the perturbation is constant."""
    run = round_after_round(regression(C.fedlesam(rho=0.3), sampler=only_client_1), 1)
    e = 0.3 * unit(run.server.initial_w - run.w.detach())
    shifted = regression(UNIFORM, sampler=only_client_1)
    shifted.w.data.copy_(run.w.detach() + e)
    run.train_round()
    shifted.train_round()
    torch.testing.assert_close(run.w.detach() + e, shifted.w.detach(), rtol=0, atol=1e-12)


def test_what_a_client_refers_to_is_the_model_that_it_received_last() -> None:
    run = regression(C.fedlesam(rho=0.3))
    expected = run.server.initial_w.repeat(3, 1)
    for round in range(4):
        received = run.w.detach().clone()
        run.train_round()
        expected[run.sampler(3, 0, round)] = received
        assert rows(run, "o_i").equal(expected)
    assert len(expected.unique(dim=0)) == 3


def test_the_older_model_lies_uphill() -> None:
    run = regression(C.fedlesam(rho=0.1), sampler=all_three, lr=0.02)
    for _ in range(3):
        run.train_round()
        e = rows(run, "o_i")[0] - run.w.detach()
        assert e.dot(mean_gradient(run.w.detach())) > 0
