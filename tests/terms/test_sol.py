"""FedSOL and the projection against numbers worked out by hand."""

from typing import Any

import pytest
import torch
from oracles import autograd, direction_of, oracle_of, view
from problems import close, vec
from regressions import line
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fl_lightning import algorithms
from fl_lightning.core.rehearsed_round import dummy_facts
from fl_lightning.core.vector import Layout, unit
from fl_lightning.terms import (
    SOL,
    ControlVariate,
    Distill,
    DynamicRegularizer,
    GradientProjection,
    HeadSOL,
    Proximal,
)
from fl_lightning.terms.sol import relative_move


def seen(module: nn.Module) -> Any:
    """At w = (3, 2) this client has moved by (3, 4), along which the distance rises most."""
    return view(anchor=vec(0, -2), layout=Layout(module))


@pytest.mark.parametrize(
    ("scope", "e"), [("all", (0.3, 0.4)), ("body", (0.5, 0)), ("head", (0, 0.5))]
)
def test_only_the_scope_moves_and_its_norm_alone_counts(scope: Any, e: tuple[float, float]) -> None:
    two = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    direction = direction_of(SOL(Proximal(1.0), 0.5, None, scope), seen(two))
    close(direction, 3 + e[0], 2 * (2 + e[1]))


@pytest.mark.parametrize(
    ("scale", "still", "e"),
    [(None, True, 0), (None, False, 0.5), ("tensor", True, 0), ("tensor", False, 0)],
)
def test_a_client_that_has_not_moved_is_not_perturbed_unless_as_released(
    scale: Any, still: bool, e: float
) -> None:
    # c - c_i = (3, 4)
    v = view(anchor=vec(3, 2), layout=Layout(line()), c=vec(3, 5), c_i=vec(0, 1))
    direction = direction_of(SOL(ControlVariate(), 0.5, scale, still=still), v)
    close(direction, 3 + e * 0.6, 2 * (2 + e * 0.8))


def test_the_inner_terms_states_move_as_on_their_own() -> None:
    inner = DynamicRegularizer(alpha=0.5)
    runs = []
    for term in (inner, SOL(inner), GradientProjection(inner)):
        v = view(h_i=vec(1, -1), h=vec(0.5, 0.5), anchor=vec(1, 4), participation=0.25)
        assert (term.client, term.server, term.local) == (inner.client, inner.server, {})
        message = term.report(vec(3, 2), v)
        runs.append([message, term.update(vec(10, 10), message, v), v.h_i, v.h])
    torch.testing.assert_close(runs[1:], [runs[0]] * 2, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("anchor", "direction"),
    [
        ((6, 2), (0, 4)),  # q = (-3, 0): the gradient (3, 4) loses what goes against it
        ((6, 6), (3 - 25 / 25 * 3, 4 - 25 / 25 * 4)),  # q = (-3, -4)
        ((0, 2), (3, 4)),  # q = (3, 0) agrees
        ((3, 2), (3, 4)),  # no q
    ],
)
def test_a_projection_drops_what_goes_against_the_proximal_gradient(
    anchor: Any, direction: Any
) -> None:
    for mu in (1.0, 7.0):
        close(direction_of(GradientProjection(Proximal(mu)), view(anchor=vec(*anchor))), *direction)


def test_nothing_is_dropped_before_the_first_step_where_the_proximal_gradient_is_noise() -> None:
    # q = (-3, 0) goes against the gradient (3, 4)
    v = view(anchor=vec(3, 2), c=vec(0, 0), c_i=vec(3, 0))
    close(direction_of(GradientProjection(ControlVariate()), v), 3, 4)
    v.anchor = vec(0, 0)
    close(direction_of(GradientProjection(ControlVariate()), v), 0, 4)


# through a real network

X = torch.randn(5, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 1, 0])


class Distilled:
    """A network away from the received one; the two objectives and their gradients written out."""

    def __init__(self, beta: float = 2.0, tau: float = 3.0) -> None:
        torch.manual_seed(1)
        self.module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()
        self.layout = Layout(self.module)
        self.anchor = self.layout.read(self.module)
        self.w = self.anchor + torch.randn_like(self.anchor)
        self.oracle, self.beta, self.tau = oracle_of(self.module, X, Y), beta, tau
        self.facts = {**dummy_facts(self.layout, self.w), "anchor": self.anchor}
        self.view = view(**self.facts)

    def out(self, w: Tensor) -> Tensor:
        return functional_call(self.module, self.layout.named(w), (X,))

    def local(self, w: Tensor) -> Tensor:
        return autograd(w, lambda w: F.cross_entropy(self.out(w), Y))

    def proximal(self, w: Tensor) -> Tensor:
        received = (self.out(self.anchor) / self.tau).softmax(1).detach()

        def kl(w: Tensor) -> Tensor:
            log_local = (self.out(w) / self.tau).log_softmax(1)
            return (received * (received.log() - log_local)).sum(1).mean()

        return self.beta * autograd(w, kl)


@pytest.mark.parametrize("row", ["a0", "a1", "a2", "a3", "a4", "a5", "a6"])
def test_a_row_of_fedsols_ablation_is_its_formula(row: Any) -> None:
    toy, rho = Distilled(), 0.5
    local, proximal, w = toy.local, toy.proximal, toy.w
    e = rho * unit(proximal(w))
    mixed = rho * unit(local(w) + proximal(w))
    expected = {
        "a0": local(w),
        "a1": local(w + e),
        "a2": local(w) + proximal(w + e),
        "a3": local(w + e) + proximal(w + e),
        "a4": local(w + mixed) + proximal(w + mixed),
        "a5": local(w) + proximal(w),
        "a6": local(w + e) + proximal(w),
    }
    given = {"scope": "all", "beta": toy.beta, "tau": toy.tau}
    algorithm = algorithms.fedsol_ablation(row, rho, "fixed", **given)
    none = [{} for _ in algorithm.terms]
    direction, _ = algorithm.gradient(toy.oracle, w, toy.facts, none, none)
    torch.testing.assert_close(direction, expected[row])


@pytest.mark.parametrize(
    ("scale", "tau"), [(None, 3.0), ("column", 3.0), ("tensor", 3.0), (None, 1.0)]
)
def test_the_head_displaced_in_one_pass_is_the_head_displaced_in_two(
    scale: Any, tau: float
) -> None:
    toy = Distilled(tau=tau)
    mask = toy.layout.mask("2.", toy.w)
    moved = toy.layout.map(lambda part: relative_move(part, scale), toy.w - toy.anchor)
    strength = 1.0 if scale is None else moved
    expected = toy.local(toy.w + 0.5 * strength * unit(mask * toy.proximal(toy.w)))
    one = HeadSOL(0.5, toy.tau, scale).gradient(toy.oracle, toy.w, toy.view)
    two = SOL(Distill(tau=toy.tau), 0.5, scale, "head").gradient(toy.oracle, toy.w, toy.view)
    torch.testing.assert_close(one, expected)
    torch.testing.assert_close(two, expected)
    assert (one - toy.local(toy.w)).abs().max() > 1e-3


def test_the_head_of_a_client_that_has_not_moved_is_not_displaced() -> None:
    toy = Distilled()
    for scale in (None, "column"):
        direction = HeadSOL(0.5, toy.tau, scale).gradient(toy.oracle, toy.anchor, toy.view)
        torch.testing.assert_close(direction, toy.local(toy.anchor))


def test_eps_keeps_the_displacement_of_a_head_small_where_its_gradient_is() -> None:
    toy = Distilled()
    moved = [
        HeadSOL(0.5, scale=None, eps=eps).gradient(toy.oracle, toy.w, toy.view) - toy.local(toy.w)
        for eps in (1e3, 2e3)
    ]
    torch.testing.assert_close(moved[0], 2 * moved[1], rtol=1e-2, atol=1e-9)


def test_strength_is_the_movement_over_the_norm_of_a_parameter_or_of_its_columns() -> None:
    moved = torch.tensor([[3.0, -3.0, 0.0], [4.0, 0.0, 0.0]], dtype=torch.float64)
    close(relative_move(moved, "tensor").flatten(), *(x / 34**0.5 for x in (3, 3, 0, 4, 0, 0)))
    close(relative_move(moved, "column").flatten(), 0.6, 1, 0, 0.8, 0, 0)
    close(relative_move(vec(3, -4), "column"), 0.6, 0.8)
    assert [relative_move(vec(-3)[0], per) for per in ("tensor", "column")] == [1, 1]
