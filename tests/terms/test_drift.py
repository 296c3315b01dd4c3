"""Drift corrections, and shared vector rules, against numbers worked out by hand."""

from collections import OrderedDict
from functools import partial

import pytest
import torch
from oracles import direction_of, view
from problems import close, vec
from torch import nn
from torch.optim import SGD

from fl_lightning import Algorithm, UserError
from fl_lightning.core.vector import Layout
from fl_lightning.terms import (
    CenteredGradientVariate,
    Clip,
    MovingVariate,
)
from fl_lightning.terms.released import ReleasedControlVariate, SplitProximal, UnclippedPull


def test_span_is_the_way_of_a_unit_gradient() -> None:
    def lr_sum(**options: float | bool) -> float:
        return Algorithm(local=partial(SGD, lr=9.0, **options)).lr_sum([0.1, 0.1, 0.2])

    assert lr_sum(weight_decay=0.5) == pytest.approx(0.4)
    assert lr_sum(momentum=0.5) == pytest.approx(0.1 + 0.15 + 0.35)  # speeds 1, 1.5, 1.75
    assert lr_sum(momentum=0.5, dampening=0.5) == pytest.approx(0.1 + 0.1 + 0.2)  # speeds 1, 1, 1
    # 1 + speed / 2 ahead
    assert lr_sum(momentum=0.5, nesterov=True) == pytest.approx(0.15 + 0.175 + 0.375)


def test_layer_wise_rules_map_and_mask_the_vector_parameter_by_parameter() -> None:
    net = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1, bias=False)).double()
    layout, w = Layout(net), vec(3, 4, 5, -2)  # 0.weight, 0.bias, 1.weight
    close(layout.map(lambda part: part / part.norm(), w), 0.6, 0.8, 1, -1)
    close(layout.map(torch.add, w, w), 6, 8, 10, -4)
    close(layout.mask("1", like=w), 0, 0, 0, 1)
    close(layout.mask("0.bias", like=w), 0, 0, 1, 0)


@pytest.mark.parametrize("ask", [Layout.mask, Layout.take, partial(Layout.put, values=vec())])
def test_a_word_that_no_parameter_has_is_refused(ask) -> None:
    layout, w = Layout(nn.Linear(2, 1, bias=False).double()), vec(1, 2)
    with pytest.raises(UserError, match="'wieght' in its name; did you mean weight"):
        ask(layout, "wieght", w)
    assert not layout.mask("norm", w).any()  # a kind of layer that the model lacks


def test_the_head_is_not_whatever_begins_with_its_name() -> None:
    module = nn.Sequential(OrderedDict(fc_norm=nn.LayerNorm(2), fc=nn.Linear(2, 1)))
    close(Layout(module).mask("head", vec(*range(7))), 0, 0, 0, 0, 1, 1, 1)


def test_the_two_halves_of_a_split_pull_are_the_whole_one() -> None:
    v = view(anchor=vec(1, 4), size=vec(2))
    close(direction_of(SplitProximal(mu=0.5), v), 3 - 0.5 * 1, 4 - 0.5 * 4)
    close(direction_of(UnclippedPull(mu=0.5), v), 3 + 0.5 * 3, 4 + 0.5 * 2)
    close(direction_of(UnclippedPull(mu=0.5, size_weighting=True), v), 3 + 0.25 * 3, 4 + 0.25 * 2)


def test_size_scaling_applies_to_c_i() -> None:
    """FedDC: c_i <- c_i - c / om_i + move / length; the server gets om_i times the change."""
    v = view(c=vec(1, 2), c_i=vec(5, 5), origin=vec(3, 2), lr_sum=vec(0.5), size=vec(2))
    message = ReleasedControlVariate(size_weighting=True).report(vec(1, 3), v)
    close(v.c_i, 5 - 0.5 + 4, 5 - 1 - 2)
    close(message, 2 * 3.5, 2 * -3)


def test_mean_past_adds_the_mean_of_all_clients_back() -> None:
    v = view(d_i=vec(0.5, 3), d=vec(1, 2), origin=vec(3, 2), lr_sum=vec(0.5), participation=0.25)
    close(direction_of(CenteredGradientVariate(), v), 3 + 1 - 0.5, 4 + 2 - 3)
    message = CenteredGradientVariate().report(vec(1, 3), v)
    close(v.d_i, 4, -2)
    close(message, 4 - 0.5, -2 - 3)
    close(CenteredGradientVariate().update(vec(9, 9), message, v), 9, 9)
    close(v.d, 1 + 0.25 * 3.5, 2 - 0.25 * 5)


def test_clip_shortens_long_directions_only() -> None:
    close(direction_of(Clip(max_norm=1.0)), 0.6, 0.8, tolerance=1e-6)
    close(direction_of(Clip(max_norm=6.0)), 3, 4)


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
