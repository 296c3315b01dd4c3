"""AdamW, Muon and LMO as terms."""

from functools import partial

import pytest
import torch
from problems import classifier, federation, rows, trained, vec
from regressions import layout
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim import AdamW as TorchAdamW

from fl_lightning import Algorithm, algorithms
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.terms import AdamW, Muon
from fl_lightning.terms.matrix import newton_schulz, polar


def matrix(m: int, n: int) -> Tensor:
    return torch.randn(m, n, dtype=torch.float64)


def test_wide_matrices_are_iterated_as_square_ones() -> None:
    for Z in (matrix(4, 30), matrix(30, 4), matrix(30, 4).view(30, 2, 2, 1)):
        X = Z.flatten(1) / Z.norm()
        for _ in range(5):
            A = X @ X.T
            X = 3.4445 * X + (-4.775 * A + 2.0315 * A @ A) @ X
        torch.testing.assert_close(newton_schulz(Z, eps=0.0), X.view_as(Z), rtol=0, atol=1e-13)


def test_the_polar_factor_leaves_out_null_directions() -> None:
    U, _, Vh = torch.linalg.svd(matrix(6, 6))
    Z = U[:, :2] * vec(3.0, 1e-6) @ Vh[:2]
    torch.testing.assert_close(polar(Z), U[:, :2] @ Vh[:2], rtol=0, atol=1e-9)


def test_the_adamw_of_a_visit_is_that_of_torch() -> None:
    local = partial(TorchAdamW, lr=0.01, weight_decay=0.05)
    ours = algorithms.local_adamw(decay=0.05).replace(local=partial(SGD, lr=0.01))
    both = (Algorithm(local=local), ours)
    expected, run = (trained(a, module=classifier(norm=False)) for a in both)
    torch.testing.assert_close(run.w, expected.w, rtol=0, atol=1e-12)


def test_a_client_of_diloco_keeps_its_moments() -> None:
    """With one client and no server momentum the rounds are one long run of AdamW."""
    rates = {"local": partial(SGD, lr=0.01), "server": partial(SGD, lr=1.0)}
    algorithm = algorithms.diloco(momentum=0.0).replace(**rates)
    given, module = (classifier(norm=False, dropout=0.0) for _ in range(2))
    run = federation(algorithm, module=given, sampler=lambda *_: [2], decays=False)
    optimizer = TorchAdamW(module.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for round in range(3):
        for x, y in run.clients.visit(2, round):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module.train()(x), y).backward()
            optimizer.step()
        run.train_round()
        expected = torch.cat([p.detach().flatten() for p in module.parameters()])
        torch.testing.assert_close(run.w.detach(), expected, rtol=0, atol=1e-12)
    assert rows(run, "k")[2] == 3 * len(run.clients.visit(2, 0))


def test_the_server_of_diloco_is_that_of_torch() -> None:
    theirs = partial(SGD, lr=0.7, momentum=0.9, nesterov=True)
    expected = trained(algorithms.diloco(momentum=0.0).replace(server=theirs))
    run = trained(algorithms.diloco())
    torch.testing.assert_close(run.w, expected.w, rtol=0, atol=1e-8)  # AdamW magnifies rounding


@pytest.mark.parametrize("name", ["fedadamw", "fedmuon"])
@pytest.mark.parametrize("shape", [(0,), (0, 8)])
def test_a_parameter_without_elements_changes_nothing(name: str, shape: tuple[int, ...]) -> None:
    module = classifier()
    module.norm.extra = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    run, expected = (trained(ALGORITHMS[name](), module=given) for given in (module, classifier()))
    assert run.w.equal(expected.w)


def test_a_warm_second_moment_is_corrected_by_the_steps_of_all_rounds() -> None:
    """Of equal gradients the direction is their sign, whatever the moments began with."""
    ones = torch.ones(4, dtype=torch.float64)
    of = layout(nn.Linear(3, 1).double())
    state = {"m": 0 * ones, "s": (1 - 0.999**30) * ones, "k": vec(0)[0]}
    view = type("View", (), {**state, "layout": of, "round": 3, "steps": 10})
    direction = AdamW("whole", decay=0.0).gradient(lambda w: ones, 0 * ones, view)
    torch.testing.assert_close(direction, ones)


def test_muon_sends_a_momentum_of_low_rank() -> None:
    term, of = Muon("whole", rank=0.5), layout(nn.Linear(20, 10))
    sent = term.sent(torch.randn(of.size), type("View", (), {"layout": of}))
    weight, bias = of.split(sent)
    assert torch.linalg.matrix_rank(weight) == int(0.5 * 10 * 20 / 31)
    assert not bias.any()


def test_newton_and_schulz_scale_an_orthogonal_matrix_and_bring_singular_values_near_1() -> None:
    Q = torch.linalg.qr(matrix(9, 5))[0]
    for Z in (Q, Q.T):
        O = newton_schulz(Z, 1)
        torch.testing.assert_close(O / O.norm(), Z / Z.norm())
        torch.testing.assert_close(polar(Z), Z)
    for Z in (matrix(20, 30), matrix(30, 20), matrix(30, 20).view(30, 5, 2, 2)):
        O = newton_schulz(Z)
        assert O.shape == Z.shape
        values = torch.linalg.svdvals(O.flatten(1))
        assert 0.6 < values.min() < values.max() < 1.3
        angle = torch.linalg.svdvals(polar(Z).flatten(1).T @ O.flatten(1))
        torch.testing.assert_close(angle.sum(), values.sum())  # the same singular vectors
