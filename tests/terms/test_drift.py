"""Drift corrections, and shared vector rules, against numbers worked out by hand."""

from collections import OrderedDict
from functools import partial

import pytest
from oracles import direction_of, view
from problems import close, vec
from torch import nn

from fl_lightning import UserError
from fl_lightning.core.vector import Layout
from fl_lightning.terms import (
    CenteredGradientVariate,
    MovingVariate,
)


@pytest.mark.parametrize("ask", [Layout.mask, Layout.take, partial(Layout.put, values=vec())])
def test_a_word_that_no_parameter_has_is_refused(ask) -> None:
    layout, w = Layout(nn.Linear(2, 1, bias=False).double()), vec(1, 2)
    with pytest.raises(UserError, match="'wieght' in its name; did you mean weight"):
        ask(layout, "wieght", w)
    assert not layout.mask("norm", w).any()  # a kind of layer that the model lacks


def test_the_head_is_not_whatever_begins_with_its_name() -> None:
    module = nn.Sequential(OrderedDict(fc_norm=nn.LayerNorm(2), fc=nn.Linear(2, 1)))
    close(Layout(module).mask("head", vec(*range(7))), 0, 0, 0, 0, 1, 1, 1)


def test_mean_past_adds_the_mean_of_all_clients_back() -> None:
    v = view(d_i=vec(0.5, 3), d=vec(1, 2), origin=vec(3, 2), lr_sum=vec(0.5), participation=0.25)
    close(direction_of(CenteredGradientVariate(), v), 3 + 1 - 0.5, 4 + 2 - 3)
    message = CenteredGradientVariate().report(vec(1, 3), v)
    close(v.d_i, 4, -2)
    close(message, 4 - 0.5, -2 - 3)
    close(CenteredGradientVariate().update(vec(9, 9), message, v), 9, 9)
    close(v.d, 1 + 0.25 * 3.5, 2 - 0.25 * 5)


def test_the_moving_variate_is_the_first_cohorts_mean_and_then_a_moving_average() -> None:
    term = MovingVariate(gamma=0.25)
    v = view(c=vec(0, 0), c_i=vec(5, 5), origin=vec(3, 2), lr_sum=vec(0.5), round=0)
    message = term.report(vec(1, 3), v)
    close(v.c_i, 5 + 4, 5 - 2)
    close(message, 9, 3)
    term.update(vec(0, 0), message, v)
    close(v.c, 9, 3)
    v.round = 1
    term.update(vec(0, 0), vec(4, 8), v)
    close(v.c, 9 + 1, 3 + 2)
