"""Every term against numbers worked out by hand."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from problems import (
    close,
    layout,
    vec,
)
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import (
    Algorithm,
)
from fl_lightning.terms import (
    ASAM,
    LESAM,
    SAM,
    TOGA,
    Adaptive,
    ClientMomentum,
    Clip,
    CohortDual,
    ControlVariate,
    DynamicRegularizer,
    LastRound,
    Proximal,
    perturb,
)
from fl_lightning.terms.drift import om, one
from fl_lightning.vector import Layout, unit


def view(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


def quadratic(w: Tensor) -> Tensor:
    """The gradient of `w_1^2 / 2 + w_2^2`."""
    return w * vec(1.0, 2.0)


class Asked:
    """The quadratic's gradient; remembers where it was taken."""

    def __init__(self) -> None:
        self.at: list[Tensor] = []

    def __call__(self, w: Tensor) -> Tensor:
        self.at.append(w)
        return quadratic(w)


def test_unit_has_length_one_and_zero_stays_zero() -> None:
    close(unit(vec(3, -4)), 0.6, -0.8)
    close(unit(vec(0, 0)), 0, 0)


def test_span_is_the_way_of_a_unit_gradient() -> None:
    def span(**options: float | bool) -> float:
        return Algorithm(local=partial(SGD, lr=9.0, **options)).span([0.1, 0.1, 0.2])

    assert span(weight_decay=0.5) == pytest.approx(0.4)
    assert span(momentum=0.5) == pytest.approx(0.1 + 0.15 + 0.35)  # speeds 1, 1.5, 1.75
    assert span(momentum=0.5, dampening=0.5) == pytest.approx(0.1 + 0.1 + 0.2)  # speeds 1, 1, 1
    assert span(momentum=0.5, nesterov=True) == pytest.approx(0.15 + 0.175 + 0.375)  # 1 + speed / 2 ahead


def test_proximal_pulls_to_the_received_model() -> None:
    close(Proximal(mu=0.5).gradient(quadratic, vec(3, 2), view(anchor=vec(1, 4))), 3 + 0.5 * 2, 4 - 0.5 * 2)


def test_sam_steps_along_the_gradient_first() -> None:
    # at (3, 2) the gradient is (3, 4), of length 5
    close(SAM(rho=0.5).gradient(quadratic, vec(3, 2), None), 3.3, 2 * 2.4)


def test_asam_scales_the_ball_by_the_weights() -> None:
    # T = |w| + 1 = (4, 3), g = (3, 4), T g = (12, 12); e = 2 T^2 g / (12 sqrt 2)
    length = 2 / (12 * 2**0.5)
    expected = 3 + length * 16 * 3, 2 * (2 + length * 9 * 4)
    close(ASAM(rho=2.0, eta=1.0).gradient(quadratic, vec(3, 2), None), *expected)


def test_lesam_perturbs_once_a_visit_towards_the_older_model() -> None:
    v = view(o_i=vec(1, 5), anchor=vec(4, 1), e=vec(0, 0))
    term = LESAM(rho=0.5)
    assert term.start(v.anchor, v) is v.anchor
    close(v.e, -0.3, 0.4)  # 0.5 (-3, 4) / 5
    close(v.o_i, 4, 1)
    close(term.gradient(quadratic, vec(1, 1), v), 0.7, 2.8)


def test_last_round_perturbs_against_the_last_move() -> None:
    v = view(anchor=vec(4, 1), last=vec(1, 5), e=vec(0, 0), layout=layout())
    term = LastRound(rho=0.5)
    term.start(v.anchor, v)
    close(v.e, -0.3, 0.4)
    close(term.gradient(quadratic, vec(1, 1), v), 0.7, 2.8)
    close(term.update(vec(1, 1), (), v), 1, 1)
    close(v.last, 4, 1)


def test_the_shapes_of_last_round() -> None:
    two = Layout(nn.ParameterList([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))]))
    G = vec(3, 4, 0, 5)  # parts of length 5 and 5
    close(perturb.by_sum_of_norms(two, G, 0.0), 0.3, 0.4, 0.0, 0.5)
    close(perturb.by_first_coordinates(two, G, 0.0), 3 / 7, 3 / 7, 4 / 7, 4 / 7)
    close(perturb.by_global_norm(two, G, 0.0), *(x / 50**0.5 for x in (3, 4, 0, 5)))


@pytest.mark.parametrize(
    ("ascent", "along"),
    [
        (perturb.own, (3 + 2 * 1, 4 + 2 * 1)),
        (perturb.neighbour, (10 + 2 * 1, -1 + 2 * 1)),
        (perturb.fusion, (3 + 10 + 2 * 1, 4 - 1 + 2 * 1)),
    ],
)
def test_toga_ascends_and_descends_with_the_trend(ascent: Any, along: tuple[float, float]) -> None:
    v = view(R=vec(10, -1), Delta=vec(1, 1))
    direction = TOGA(rho=0.5, kappa=2.0, beta=0.25, ascent=ascent, eps=0.0).gradient(quadratic, vec(3, 2), v)
    length = (along[0] ** 2 + along[1] ** 2) ** 0.5
    perturbed = 3 + 0.5 * along[0] / length, 2 * (2 + 0.5 * along[1] / length)
    close(v.R, *perturbed)
    close(direction, perturbed[0] + 0.25, perturbed[1] + 0.25)


@pytest.mark.parametrize(("per", "divisor"), [(perturb.per_step, 4), (perturb.per_epoch, 2), (perturb.per_length, 0.5)])
def test_togas_trend_is_the_movement_over_steps_epochs_or_length(per: Any, divisor: float) -> None:
    v = view(origin=vec(3, 2), steps=vec(4), epochs=vec(2), span=vec(0.5), Delta=vec(0, 0))
    message = TOGA(per=per).report(vec(1, 3), v)
    close(message, 2 / divisor, -1 / divisor)
    close(TOGA().update(vec(7, 7), message, v), 7, 7)
    assert v.Delta is message


def test_control_variate_corrects_and_learns() -> None:
    v = view(c=vec(1, 2), c_i=vec(0.5, 3), origin=vec(3, 2), span=vec(0.5), share=0.25)
    close(ControlVariate(k=2.0).gradient(quadratic, vec(3, 2), v), 3 + 2 * 0.5, 4 + 2 * -1)
    message = ControlVariate().report(vec(1, 3), v)
    close(v.c_i, 0.5 - 1 + 2 / 0.5, 3 - 2 - 1 / 0.5)
    close(message, -1 + 4, -2 - 2)
    close(ControlVariate().update(vec(9, 9), message, v), 9, 9)
    close(v.c, 1 + 0.25 * 3, 2 + 0.25 * -4)


def test_control_variate_of_the_code_that_weighs_by_size() -> None:
    v = view(c=vec(1, 2), c_i=vec(0, 0), origin=vec(3, 2), span=vec(0.5), size=vec(2))
    term = ControlVariate(length=0.2, scale=om, kept=one)
    close(term.gradient(quadratic, vec(3, 2), v), 3 + 1 / 2, 4 + 2 / 2)
    message = term.report(vec(1, 3), v)
    close(v.c_i, -1 + 2 / 0.2, -2 - 1 / 0.2)
    close(message, 2 * 9, 2 * -7)


def test_dynamic_regularizer_pulls_learns_and_shifts_the_server() -> None:
    term = DynamicRegularizer(alpha=0.5)
    v = view(h_i=vec(1, -1), anchor=vec(1, 4), h=vec(0.5, 0.5), share=0.25)
    close(term.gradient(quadratic, vec(3, 2), v), 3 + 0.5 * (1 + 2), 4 + 0.5 * (-1 - 2))
    message = term.report(vec(3, 2), v)
    close(message, 2, -2)
    close(v.h_i, 3, -3)
    close(term.update(vec(10, 10), message, v), 10 + 0.5 + 0.25 * 2, 10 + 0.5 - 0.25 * 2)
    close(v.h, 1, 0)


def test_dynamic_regularizer_over_the_cohort_or_over_the_clients_size() -> None:
    v = view(h_i=vec(1, -1), anchor=vec(1, 4), h=vec(0.5, 0.5), share=0.25, size=vec(2))
    close(DynamicRegularizer(share=1.0).update(vec(10, 10), vec(2, -2), v), 12.5, 8.5)
    close(DynamicRegularizer(alpha=0.5, scale=om).gradient(quadratic, vec(3, 2), v), 3 + 0.25 * 3, 4 + 0.25 * -3)


def test_cohort_dual_sends_the_dual_itself() -> None:
    v = view(h_i=vec(1, -1), anchor=vec(1, 4))
    close(CohortDual().report(vec(3, 2), v), 3, -3)
    close(CohortDual().update(vec(10, 10), vec(3, -3), v), 13, 7)


def test_client_momentum_mixes_in_the_last_mean_gradient() -> None:
    v = view(m=vec(1, -1), origin=vec(3, 2), span=vec(0.5))
    close(ClientMomentum(alpha=0.25).gradient(quadratic, vec(3, 2), v), 0.25 * 3 + 0.75, 0.25 * 4 - 0.75)
    close(ClientMomentum(alpha=0.25, gain=1.0).gradient(quadratic, vec(3, 2), v), 3.75, 3.25)
    message = ClientMomentum().report(vec(1, 3), v)
    close(message, 4, -2)
    close(ClientMomentum().update(vec(9, 9), message, v), 9, 9)
    assert v.m is message


def test_clip_shortens_long_directions_only() -> None:
    close(Clip(max_norm=1.0).gradient(quadratic, vec(3, 2), None), 0.6, 0.8, tolerance=1e-6)
    close(Clip(max_norm=6.0).gradient(quadratic, vec(3, 2), None), 3, 4)


def test_adaptive_takes_two_steps_of_adam_without_bias_correction() -> None:
    term = Adaptive(beta1=0.5, beta2=0.75, tau=1.0, v0=4.0)
    v = view(m=vec(0, 0), v=term.server["v"](vec(0, 0), vec(0, 0)))
    close(term.update(vec(4, 0), (), v), 2 / (7**0.5 + 1), 0)  # m = 2, v = 3 + 4
    close(term.update(vec(0, 2), (), v), 1 / (5.25**0.5 + 1), 1 / (3.25**0.5 + 1))


@pytest.mark.parametrize("term", [SAM(0.5), LESAM(0.5), LastRound(0.5), TOGA(0.5)], ids=lambda t: type(t).__name__)
def test_a_perturbation_is_rho_long_and_a_zero_direction_perturbs_by_zero(term: Any) -> None:
    for anchor, w, length in [(vec(1, 1), vec(3, 2), 0.5), (vec(0, 0), vec(0, 0), 0.0)]:
        asked, nowhere = Asked(), vec(0, 0)
        v = view(o_i=nowhere, last=nowhere, anchor=anchor, e=None, R=nowhere, Delta=nowhere, layout=layout())
        term.start(anchor, v)
        term.gradient(asked, w, v)
        assert float((asked.at[-1] - w).norm()) == pytest.approx(length, abs=1e-6)


def test_layer_wise_rules_map_and_mask_the_vector_parameter_by_parameter() -> None:
    net = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1, bias=False)).double()
    layout, w = Layout(net), vec(3, 4, 5, -2)  # 0.weight, 0.bias, 1.weight
    close(layout.map(lambda part: part / part.norm(), w), 0.6, 0.8, 1, -1)
    close(layout.map(torch.add, w, w), 6, 8, 10, -4)
    close(layout.mask("1", like=w), 0, 0, 0, 1)
    close(layout.mask("0.bias", like=w), 0, 0, 1, 0)
