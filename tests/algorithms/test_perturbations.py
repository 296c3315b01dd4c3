"""Where FedLESAM and FedTOGA take gradients, over several visits."""

import pytest
import torch
from problems import Recorder, round_after_round, rows, server, without_addresses
from regressions import regression
from torch import Tensor

from fl_lightning import Algorithm, Term, algorithms
from fl_lightning.terms import SAM, Neighbor

C = algorithms
EXACT = {"rtol": 0, "atol": 1e-12}


def only_client_1(num_clients: int, seed: int, round: int) -> list[int]:
    return [1]


def test_fedtogas_lemmas_hold_on_recorded_gradients() -> None:
    """C.1: u - w = -a sum gamma_k gt_k + gamma a (h_i - beta Delta), and C.2 for h_i'.

    In the paper's letters a = 1/lam, and h_i = -lam times our displacement. Client 1 is alone in
    the second round, so that Delta is its movement over K eta.
    """
    lam, eta, K, beta = 0.5, 0.1, 4, 0.8
    log: list[tuple[Tensor, Tensor]] = []
    algorithm = Algorithm(Recorder(log), *C.fedtoga(rho=0.1, kappa=2.0, beta=beta, lam=lam).terms)
    run = regression(algorithm, sampler=lambda n, seed, round: [[0, 1, 2], [1]][round])
    run.train_round()
    anchor, Delta, h_i = run.w.detach().clone(), server(run, "Delta"), -lam * rows(run, "h_i")[1]
    log.clear()
    run.train_round()
    gammas = [eta * lam * (1 - eta * lam) ** (K - 1 - k) for k in range(K)]
    perturbed = [g for _, g in log[1::2]]  # each step asks twice
    gamma = sum(gammas)
    pushed = sum(gamma_k * g for gamma_k, g in zip(gammas, perturbed, strict=True))
    moved = -pushed / lam + gamma / lam * (h_i - beta * Delta)
    dual = (1 - gamma) * h_i + pushed + gamma * beta * Delta
    torch.testing.assert_close(-lam * rows(run, "h_i")[1], dual, **EXACT)
    torch.testing.assert_close(-server(run, "Delta") * K * eta, moved, **EXACT)
    torch.testing.assert_close(run.w.detach(), anchor + moved + server(run, "h"), **EXACT)


@pytest.mark.parametrize(
    ("term", "lengths"),
    [
        (C.fedlesam(rho=0.3).terms[0], [0, 0, 0, 0.3, 0.3, 0.3]),
        (Neighbor(SAM(0.3)), [0, 0.3, 0.3, 0, 0.3, 0.3]),
        (Neighbor(SAM(0.3), carry=True), [0, 0.3, 0.3, 0.3, 0.3, 0.3]),
        (Neighbor(SAM(0.3), fusion=True), [0.3] * 6),
    ],
    ids=without_addresses,
)
def test_a_perturbation_is_rho_long_once_there_is_a_past(term: Term, lengths: list[float]) -> None:
    """Three steps of two visits; the previous gradient is forgotten unless it is carried."""
    inside: list[tuple[Tensor, Tensor]] = []
    outside: list[tuple[Tensor, Tensor]] = []
    algorithm = Algorithm(Recorder(inside), term, Recorder(outside))
    run = regression(algorithm, steps=3, sampler=only_client_1)
    run.prepare()  # which tries the algorithm on two samples
    inside.clear()
    outside.clear()
    round_after_round(run, 2)
    asked = len(inside) // 6
    last = torch.stack([at for at, _ in inside[asked - 1 :: asked]])
    e = (last - torch.stack([w for w, _ in outside])).norm(dim=1)
    assert e.tolist() == pytest.approx(lengths, abs=1e-9)
