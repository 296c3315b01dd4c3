"""FedSOL and the projection against numbers worked out by hand."""

from typing import Any

import pytest
import torch
from oracles import autograd, direction_of, oracle_of, view
from problems import classifier, close, line, vec, without_addresses
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fl_lightning import algorithms
from fl_lightning.algorithms.modifiers import perturb
from fl_lightning.core.algorithm import dummy_facts
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
from fl_lightning.terms.sol import (
    Taskless,
    ahead,
    body,
    both_ahead,
    by_column,
    by_tensor,
    everywhere,
    head,
    proximal_ahead,
    proximal_here,
)


def seen(module: nn.Module | None = None, **known: Any) -> Any:
    # At w = (3, 2) this client has moved by (3, 4), which is also where the distance rises
    # most.
    return view(anchor=vec(0, -2), layout=Layout(module or line()), **known)


def test_strength_is_the_movement_over_the_norm_of_a_parameter_or_of_its_columns() -> None:
    moved = torch.tensor([[3.0, -3.0, 0.0], [4.0, 0.0, 0.0]], dtype=torch.float64)
    close(by_tensor(moved).flatten(), *(x / 34**0.5 for x in (3, 3, 0, 4, 0, 0)))
    close(by_column(moved).flatten(), 0.6, 1, 0, 0.8, 0, 0)
    close(by_column(vec(3, -4)), 0.6, 0.8)
    assert by_column(vec(-3)[0]) == by_tensor(vec(-3)[0]) == 1


def test_the_strength_of_every_moved_parameter_has_norm_one() -> None:
    layout = Layout(classifier())
    moved = torch.randn(layout.size, dtype=torch.float64) * layout.where(
        lambda name: name != "norm.weight", vec(1)
    )
    norms = [float(part.norm()) for part in layout.split(layout.map(by_tensor, moved))]
    assert norms == pytest.approx([1, 1, 0, 1, 1, 1])
    norms = [float(part.square().sum()) for part in layout.split(layout.map(by_column, moved))]
    assert norms == pytest.approx([6, 1, 0, 1, 8, 1])  # one for each column


COLUMN = nn.Linear(1, 2, bias=False)


@pytest.mark.parametrize(
    "term",
    [
        *algorithms.fedsol().terms,
        *algorithms.fedsol(scope="all").terms,
        *algorithms.fedsol_ft().terms,
        *algorithms.fedsol_ablation().terms,
        *perturb.sol().to(algorithms.fedavg()).terms,
        SOL(Distill()),
        HeadSOL(),
    ],
    ids=without_addresses,
)
def test_the_strength_is_that_of_the_paper_by_default(term: Any) -> None:
    assert term.scale is by_tensor


@pytest.mark.parametrize(
    ("module", "scale", "e"),
    [
        (line(), None, (0.3, 0.4)),
        (line(), by_tensor, (0.3 * 0.6, 0.4 * 0.8)),
        (line(), by_column, (0.3, 0.4)),  # a row of two columns
        (COLUMN, by_column, (0.3 * 0.6, 0.4 * 0.8)),
    ],
)
def test_the_gradient_is_taken_where_the_proximal_objective_rises(
    module: nn.Module, scale: Any, e: tuple[float, float]
) -> None:
    direction = direction_of(SOL(Proximal(1.0), 0.5, scale), seen(module))
    close(direction, 3 + e[0], 2 * (2 + e[1]))


@pytest.mark.parametrize(
    ("scope", "e"), [(everywhere, (0.3, 0.4)), (body, (0.5, 0)), (head, (0, 0.5))]
)
def test_only_the_scope_moves_and_its_norm_alone_counts(scope: Any, e: tuple[float, float]) -> None:
    two = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    direction = direction_of(SOL(Proximal(1.0), 0.5, None, scope), seen(two))
    close(direction, 3 + e[0], 2 * (2 + e[1]))


@pytest.mark.parametrize(
    ("use", "direction"),
    [  # at w: task (3, 4), proximal (6, 8); at w + e = (3.3, 2.4): (3.3, 4.8) and (6.6, 8.8)
        (ahead, (3.3, 4.8)),
        (proximal_ahead, (3 + 6.6, 4 + 8.8)),
        (both_ahead, (3.3 + 6.6, 4.8 + 8.8)),
        (proximal_here, (3.3 + 6, 4.8 + 8)),
    ],
)
def test_the_gradients_that_are_used(use: Any, direction: tuple[float, float]) -> None:
    close(direction_of(SOL(Proximal(2.0), 0.5, None, use=use), seen()), *direction)


@pytest.mark.parametrize(
    ("scale", "still", "e"),
    [(None, True, 0), (None, False, 0.5), (by_tensor, True, 0), (by_tensor, False, 0)],
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
        v = view(h_i=vec(1, -1), h=vec(0.5, 0.5), anchor=vec(1, 4), share=0.25)
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

X, Y = (
    torch.randn(5, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64),
    torch.tensor([0, 1, 2, 1, 0]),
)


class Distilled:
    # A small network away from the received one; the two objectives and their gradients
    # written out.

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
            return (
                (received * (received.log() - (self.out(w) / self.tau).log_softmax(1)))
                .sum(1)
                .mean()
            )

        return self.beta * autograd(w, kl)


def test_what_a_term_adds_alone_is_its_gradient_without_the_task() -> None:
    toy = Distilled()
    alone = Distill(toy.beta, toy.tau).gradient(Taskless(toy.oracle), toy.w, toy.view)
    torch.testing.assert_close(alone, toy.proximal(toy.w))
    half = Distill(toy.beta, toy.tau).gradient(Taskless(toy.oracle).part(1, 2), toy.w, toy.view)
    full = Distill(toy.beta, toy.tau).gradient(
        toy.oracle.part(1, 2), toy.w, toy.view
    ) - toy.oracle.part(1, 2)(toy.w)
    torch.testing.assert_close(half, full)


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
    algorithm = algorithms.fedsol_ablation(
        row, rho, "fixed", scope="all", beta=toy.beta, tau=toy.tau
    )
    none = [{} for _ in algorithm.terms]
    direction, _ = algorithm.gradient(toy.oracle, w, toy.facts, none, none)
    torch.testing.assert_close(direction, expected[row])


@pytest.mark.parametrize(
    ("scale", "tau"), [(None, 3.0), (by_column, 3.0), (by_tensor, 3.0), (None, 1.0)]
)
def test_the_head_displaced_in_one_pass_is_the_head_displaced_in_two(
    scale: Any, tau: float
) -> None:
    toy = Distilled(tau=tau)
    mask = toy.layout.mask("2.", toy.w)
    strength = 1.0 if scale is None else toy.layout.map(scale, toy.w - toy.anchor)
    expected = toy.local(toy.w + 0.5 * strength * unit(mask * toy.proximal(toy.w)))
    one = HeadSOL(0.5, toy.tau, scale).gradient(toy.oracle, toy.w, toy.view)
    two = SOL(Distill(tau=toy.tau), 0.5, scale, head).gradient(toy.oracle, toy.w, toy.view)
    torch.testing.assert_close(one, expected)
    torch.testing.assert_close(two, expected)
    assert (one - toy.local(toy.w)).abs().max() > 1e-3


def test_the_head_of_a_client_that_has_not_moved_is_not_displaced() -> None:
    toy = Distilled()
    for scale in (None, by_column):
        direction = HeadSOL(0.5, toy.tau, scale).gradient(toy.oracle, toy.anchor, toy.view)
        torch.testing.assert_close(direction, toy.local(toy.anchor))


def test_eps_keeps_the_displacement_of_a_head_small_where_its_gradient_is() -> None:
    toy = Distilled()
    moved = [
        HeadSOL(0.5, scale=None, eps=eps).gradient(toy.oracle, toy.w, toy.view) - toy.local(toy.w)
        for eps in (1e3, 2e3)
    ]
    torch.testing.assert_close(moved[0], 2 * moved[1], rtol=1e-2, atol=1e-9)
