"""Terms that follow the global model's path, against numbers worked out by hand."""

from functools import partial
from typing import Any

import pytest
import torch
from oracles import Asked, view
from problems import close, federation, server, vec
from regressions import layout
from torch.optim import SGD

from fl_lightning import algorithms
from fl_lightning.terms import GF, WMSAM, NesterovAscent, ServerSAM
from fl_lightning.terms.released import NormPull


def client(**states: Any) -> Any:
    return view(anchor=vec(0, 0), origin=vec(0, 0), lr_sum=vec(0.5), steps=vec(5), **states)


@pytest.mark.parametrize(
    ("term", "e"),
    [
        (WMSAM(0.5), (-0.3, -0.4)),
        (WMSAM(0.5, ahead=True), (0.3, 0.4)),
        (WMSAM(0.5, steps=True), (0.3, 0.4)),
    ],
    ids=["away", "toward", "steps"],
)
def test_wmsam_perturbs_along_the_momentum(term: Any, e: tuple[float, float]) -> None:
    """m_i = m + al / (1 - al) (c - c_i) = (3, 4); no step has moved the client."""
    oracle = Asked()
    v = client(m=vec(1, 4), c=vec(3, 0), c_i=vec(1, 0), al=torch.tensor(0.5), k=torch.tensor(2))
    direction = term.gradient(oracle, vec(0, 0), v)
    close(oracle.at[0], *e, tolerance=1e-7)
    close(direction, 0.5 * e[0] + 1.5, 0.5 * 2 * e[1] + 2, tolerance=1e-7)
    assert v.k == 3


@pytest.mark.parametrize(
    ("u", "m", "disagreement"),
    [((-1, 0), (2, 0), 0), ((1, 0), (2, 0), 2), ((0, 1), (2, 0), 1), ((0, 1), (0, 0), 0)],
)
def test_wmsams_clients_report_how_much_they_disagree_with_the_momentum(
    u: Any, m: Any, disagreement: float
) -> None:
    v = client(m=vec(*m), c=vec(0, 0), c_i=vec(0, 0))
    said, g_i = WMSAM().report(vec(*u), v)
    assert said == pytest.approx(disagreement, abs=1e-9)
    close(g_i, -u[0] / 0.5, -u[1] / 0.5)
    close(v.c_i, *g_i.tolist())


def test_glosss_clients_start_along_the_last_gradient() -> None:
    term, v = ServerSAM(rho=0.5), view(D=vec(0, 0))
    close(term.start(vec(1, 1), v), 1, 1)
    term.update(vec(-3, -4), None, v)
    close(term.start(vec(1, 1), v), 1.3, 1.4)


def test_gf_goes_to_the_global_model_by_the_share_of_rounds_that_were_far() -> None:
    """In a window of two rounds."""
    term = GF(threshold=1.0, window=2)
    v = view(above=vec(0, 0), c=vec(0), last=vec(0, 0), anchor=vec(0, 0))
    shares = []
    for round, distance in enumerate([2.0, 0.5, 0.5]):
        v.round = round
        term.update(vec(0, 0), torch.tensor(distance), v)
        shares.append(float(v.c))
    assert shares == [1, 0.5, 0]


@pytest.mark.parametrize(("c", "at"), [(0.0, (1.3, 0)), (1.0, (0.6, 0.8)), (0.5, (0.95, 0.4))])
def test_gfs_gradient_is_between_both_perturbed_models(c: float, at: tuple[float, float]) -> None:
    oracle, v = Asked(), view(last=vec(3, 4), anchor=vec(0, 0), layout=layout(), c=torch.tensor(c))
    term = GF(rho=0.3, global_rho=1.0)
    term.start(v.anchor, v)
    term.gradient(oracle, vec(1, 0), v)
    close(oracle.at[1], *at)


def test_the_first_step_of_nsams_single_pass_is_at_the_client() -> None:
    oracle, v = Asked(), view(m=vec(3, 4), k=torch.tensor(0))
    for _ in range(2):
        NesterovAscent(beta=0.5, rho=0.5, eps=0.0).gradient(oracle, vec(1, 1), v)
    close(oracle.at[0], 1, 1)
    close(oracle.at[1], 1 + 1.5 - 0.3, 1 + 2 - 0.4)


def test_gmts_teacher_is_the_average_of_the_models_that_were_sent() -> None:
    """Whatever the server's optimizer makes of the update."""
    algorithm = algorithms.fedgmt(alpha=0.5).replace(server=partial(SGD, lr=0.5, momentum=0.9))
    run = federation(algorithm)
    average = run.w.detach().clone()
    for _ in range(3):
        average = 0.5 * average + 0.5 * run.w.detach()
        run.train_round()
        torch.testing.assert_close(server(run, "e"), average)


def test_a_pull_without_a_square_is_as_long_anywhere() -> None:
    pull = NormPull(0.5)
    for w in (vec(3, 4), vec(0.3, 0.4)):
        close(pull.gradient(torch.zeros_like, w, view(anchor=vec(0, 0))), 0.3, 0.4)
    close(pull.gradient(torch.zeros_like, vec(1, 1), view(anchor=vec(1, 1))), 0, 0)
