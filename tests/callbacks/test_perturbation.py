"""Measures of perturbations and of FedSOL's strength, each against plain PyTorch."""

from types import SimpleNamespace

import pytest
import torch
from measured import global_loss, measured, outputs, plain
from problems import COHORTS, federation
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import Algorithm, Federation, algorithms
from fl_lightning.callbacks import LayerStrength, PerturbationDrift
from fl_lightning.executors import ClientResult
from fl_lightning.terms import SAM


def test_sams_perturbation_drifts_from_the_global_one():
    """At the first step: e_i is rho along the gradient of the client's first batch at w^t."""
    run, metrics = measured(
        PerturbationDrift(1), algorithm=Algorithm(SAM(0.2)), module=plain(), rounds=1
    )
    w = federation(Algorithm(), module=plain()).w.detach().requires_grad_()
    up = torch.autograd.grad(global_loss(run, w), w)[0]
    up, drifts, cosines = up / up.norm(), [], []
    for client in COHORTS[0]:
        x, y = run.clients.visit(client, 0)[0]
        g = torch.autograd.grad(F.cross_entropy(outputs(run, w, x), y), w)[0]
        drifts.append(float((0.2 * (g / g.norm() - up)).square().sum()))
        cosines.append(float(g.dot(up) / g.norm()))
    assert metrics[0]["perturbation/drift"] == pytest.approx(sum(drifts) / 5, rel=1e-6)
    assert metrics[0]["perturbation/cos"] == pytest.approx(sum(cosines) / 5, rel=1e-6)
    assert metrics[0]["perturbation/norm"] == pytest.approx(0.2, rel=1e-6)


def test_diagnostics_are_no_perturbation():
    """FedSOL's are a gradient at the model itself, after the perturbed one."""
    whole = algorithms.fedsol(rho=0.5, scope="all")
    measure = PerturbationDrift(1, steps=2)
    found = [
        measured(measure, algorithm=whole, diagnostics=d, rounds=1)[1][0] for d in (True, False)
    ]
    assert found[0]["perturbation/norm"] == found[1]["perturbation/norm"] > 0


def test_a_method_without_a_perturbation_has_no_drift():
    _, metrics = measured(PerturbationDrift(1, steps=2), rounds=1)
    assert metrics[0]["perturbation/norm"] == 0
    assert "perturbation/drift" not in metrics[0]


def test_fedsols_strength_of_each_parameter_at_the_end_of_local_training():
    moves = list[dict[str, Tensor]]()

    def keep(federation: Federation, client: int, result: ClientResult) -> None:
        moved = result.origin + result.progress - federation.w.detach()
        moves.append(federation.layout.named(moved))

    keeps = SimpleNamespace(on_client_end=keep)
    run, metrics = measured(LayerStrength(1), keeps, algorithm=algorithms.fedsol(), rounds=1)
    for name in run.layout.names:
        means = [float(F.normalize(m[name].flatten(), dim=0).abs().mean()) for m in moves]
        assert metrics[0][f"strength/{name}"] == pytest.approx(sum(means) / 5)
