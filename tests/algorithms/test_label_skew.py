"""Methods against label skew equal plain programs with the losses of released code."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache

import pytest
import ragged_problem as ragged
import torch
from executors import EAGER
from problems import classification, federation, hard, round_after_round, trained
from ragged_problem import SIZES
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

import fl_lightning as fl
from fl_lightning import Algorithm, ClientData, algorithms
from fl_lightning.core.losses import TaskLoss, binary_cross_entropy, mse
from fl_lightning.errors import UserError

ROUNDS, LR = 4, 0.1

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A batch's loss of features, scores, classes, and the client's class counts."""


def correlated(z: Tensor, scores: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """FedDecorr's paper, with the code's eps, without the constant diagonal."""
    cov = torch.cov(z.T)
    K = cov / torch.outer(*2 * [(cov.diagonal() + 1e-8).sqrt()])
    return F.cross_entropy(scores, y) + 0.1 * K.fill_diagonal_(0.0).square().mean()


def decorrelated(z: Tensor, scores: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """bytedance/FedDecorr, loss.py, FedDecorrLoss.forward; beta as approach/fedavg.py:44."""
    n, d = z.shape
    columns = [(c - c.mean()) / (1e-8 + c.var()) ** 0.5 for c in z.T]
    sums = torch.einsum("in,jn->ij", *2 * [torch.stack(columns)])
    pairs = sums[torch.ones(d, d).triu(1).bool()]
    return F.cross_entropy(scores, y) + 0.1 * (pairs**2).mean() / n


def missing_restricted(z: Tensor, scores: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """bytedance/FedDecorr, approach/fedrs.py:69-72 and 97."""
    return F.cross_entropy(torch.where(counts > 0, scores, 0.5 * scores), y)


def rare_restricted(z: Tensor, scores: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """lxcnju/FedRepo, algorithms/fedrs.py:80 and 185-192."""
    shares = counts / counts.sum()
    return F.cross_entropy(scores * (0.5 + 0.5 * shares / shares.max()), y)


def calibrated(z: Tensor, scores: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """bytedance/FedDecorr, approach/fedlogitcal.py:96, without classes that the client lacks."""
    held = counts.nonzero().flatten()
    margins = 0.1 / counts[held].sqrt().sqrt()
    place = torch.searchsorted(held, y)
    return F.cross_entropy(scores[:, held] - margins, place)


@cache
def by_hand(loss: Loss) -> list[Tensor]:
    counts = [y.bincount(minlength=5).double() for y in ragged.Y.split(SIZES)]
    model, path = ragged.network(), []
    for cohort in ragged.COHORTS[:ROUNDS]:
        models, weights = [], torch.tensor([SIZES[i] for i in cohort], dtype=torch.float64)
        for i in cohort:
            local = deepcopy(model)
            optimizer = SGD(local.parameters(), LR)
            for x, y in ragged.batches(i):
                z = local[:4](x)
                optimizer.zero_grad()
                loss(z, local[4](z), y, counts[i]).backward()
                optimizer.step()
            models.append(nn.utils.parameters_to_vector(local.parameters()).detach())
        w = (weights / weights.sum()) @ torch.stack(models)
        nn.utils.vector_to_parameters(w, model.parameters())
        path.append(w.clone())
    return path


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        (algorithms.feddecorr(), decorrelated),
        (algorithms.feddecorr(products="mean"), correlated),
        (algorithms.fedrs(), missing_restricted),
        (algorithms.fedrs(restricts="rare"), rare_restricted),
        (algorithms.fedlc(tau=0.1), calibrated),
    ],
    ids=["feddecorr", "feddecorr, paper", "fedrs", "fedrs, as released", "fedlc"],
)
@pytest.mark.parametrize("executor", EAGER.values(), ids=EAGER)
def test_a_method_equals_a_plain_program(
    algorithm: Algorithm, loss: Loss, executor: object
) -> None:
    run = ragged.ragged_federation(algorithm, LR, ROUNDS, executor=executor)
    for w in by_hand(loss):
        run.train_round()
        torch.testing.assert_close(run.w.detach(), w, rtol=0, atol=1e-9)


def test_fedlc_is_fedavg_where_a_client_has_as_many_samples_of_each_class() -> None:
    def clients(y: Tensor) -> ClientData:
        made = classification((12,) * 6)
        made.dataset.y.copy_(y)
        return made

    for y, same in ((torch.arange(72) % 3, True), (torch.arange(72) % 5 // 2, False)):
        run, fedavg = (
            round_after_round(federation(hard(a), clients=clients(y)), 3).w.detach()
            for a in (algorithms.fedlc(), algorithms.fedavg())
        )
        assert ((run - fedavg).abs().max() < 1e-12) == same


def test_a_client_of_one_class_learns_nothing_from_fedlc() -> None:
    clients = classification()
    clients.dataset.y.zero_()
    run = federation(algorithms.fedlc(), clients=clients)
    before = run.w.detach().clone()
    assert round_after_round(run, 2).w.equal(before)


def margin(out: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(out, y)


@pytest.mark.parametrize("method", ["fedrs", "fedlc"])
@pytest.mark.parametrize(
    "loss",
    [mse, binary_cross_entropy, margin, nn.CrossEntropyLoss(label_smoothing=0.1), F.nll_loss],
    ids=["mse", "binary", "margin", "smoothed", "nll"],
)
def test_another_loss_than_the_cross_entropy_is_refused(method: str, loss: TaskLoss) -> None:
    with pytest.raises(UserError, match=r"in a cross entropy .* the loss is"):
        federation(getattr(algorithms, method)(), loss=loss)


@pytest.mark.parametrize("method", ["fedrs", "fedlc"])
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), F.cross_entropy, lambda out, y: F.cross_entropy(out, y)]
)
def test_a_cross_entropy_by_any_name_is_taken(method: str, loss: TaskLoss) -> None:
    algorithm = getattr(algorithms, method)()
    run, other = trained(algorithm), trained(algorithm, loss=loss)
    torch.testing.assert_close(run.w, other.w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["fedrs", "fedlc"])
def test_ignored_targets_are_no_classes(method: str) -> None:
    """Before the first round."""
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    y[::5] = -100
    fit = fl.FederatedTrainer(method, rounds=1, accelerator="cpu")
    with pytest.raises(UserError, match="no classes"):
        fit.fit(nn.Linear(6, 3), fl.FederatedData((x, y), clients=torch.arange(24) % 3))


def test_scores_of_classes_that_no_data_have_count_as_missing() -> None:
    """The model has scores of five classes, the data have three."""
    for method in ("fedrs", "fedlc"):
        run = trained(getattr(algorithms, method)(), module=nn.Linear(6, 5).double())
        assert run.w.isfinite().all()
