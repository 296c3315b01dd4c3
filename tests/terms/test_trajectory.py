"""Terms that follow the global model's path, against numbers worked out by hand."""

from functools import partial
from typing import Any

import pytest
import torch
from oracles import view
from problems import close, federation, server, vec
from torch.optim import SGD

from fl_lightning import algorithms
from fl_lightning.terms import WMSAM
from fl_lightning.terms.released import NormPull


def client(**states: Any) -> Any:
    return view(anchor=vec(0, 0), origin=vec(0, 0), lr_sum=vec(0.5), steps=vec(5), **states)


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
