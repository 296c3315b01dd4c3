"""Perturbations against numbers worked out by hand."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from oracles import Asked, direction_of, view
from problems import (
    Recorder,
    classification,
    classifier,
    close,
    federation,
    round_after_round,
    term,
    trained,
    vec,
)
from regressions import layout, regression
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import Algorithm, Term, TermError, algorithms
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.vector import Layout
from fl_lightning.terms import (
    ASAM,
    GSAM,
    LESAM,
    MSAM,
    SAM,
    SMOO,
    TOGA,
    LastRound,
    Neighbor,
    Proximal,
    VaSSO,
)


def test_sam_mixes_the_plain_gradient_in() -> None:
    close(direction_of(SAM(rho=0.5, mix=0.25)), 3 + 0.25 * 0.3, 4 + 0.25 * 0.8)


def test_sams_raw_ascent_is_as_long_as_the_gradient() -> None:
    close(direction_of(SAM(rho=0.5, ascent="raw")), 3 + 0.5 * 3, 2 * (2 + 0.5 * 4))


def test_asam_scales_only_the_parameters_that_are_named() -> None:
    """T is |w| + 1 = 4 of the weight and 1 of the bias, T g = (12, 4); e = 2 T^2 g / sqrt 160."""
    v = view(layout=Layout(nn.Linear(1, 1)))
    length = 2 / 160**0.5
    expected = 3 + length * 16 * 3, 2 * (2 + length * 4)
    close(direction_of(ASAM(rho=2.0, eta=1.0, scaled="weight"), v), *expected)


def test_sam_of_a_part_moves_that_part_alone() -> None:
    """The gradient (3, 4) is (0, 4) for the bias; e = (0, 0.5)."""
    v = view(layout=Layout(nn.Linear(1, 1)))
    close(direction_of(SAM(rho=0.5, part="bias"), v), 3, 2 * 2.5)
    close(direction_of(SAM(rho=0.5, part="weight"), v), 3.5, 4)


@pytest.mark.parametrize("carry", [False, True])
def test_vassos_average_lasts_for_a_visit_or_is_carried(carry: bool) -> None:
    """Client 2 alone, whose gradients turn: at the weights of each step, averaged by hand."""
    log: list[tuple[Tensor, Tensor]] = []
    algorithm = Algorithm(Recorder(log), VaSSO(rho=0.3, theta=0.4, carry=carry))
    run = regression(algorithm, steps=2, sampler=lambda *_: [2])
    run.prepare()
    log.clear()
    round_after_round(run, 2)
    d = torch.zeros(2).double()
    for step in range(4):
        (w, g), (ahead, _) = log[2 * step : 2 * step + 2]
        first = step == 0 or (step == 2 and not carry)
        d = g if first else 0.6 * d + 0.4 * g
        close(ahead - w, *(0.3 * d / d.norm()).tolist())


def test_gsam_subtracts_the_orthogonal_part_of_the_plain_gradient() -> None:
    """At w + e the gradient is (3.3, 4.8); g . (3.3, 4.8) = 29.1, and its square is 33.93."""
    share = 29.1 / 33.93
    expected = 3.3 - 0.5 * (3 - 3.3 * share), 4.8 - 0.5 * (4 - 4.8 * share)
    close(direction_of(GSAM(rho=0.5, alpha=0.5)), *expected)


class Halves:
    """The gradient w of a batch is the mean of those of its two halves, (2 w_1, 0), (0, 2 w_2)."""

    def part(self, index: int, count: int) -> Any:
        assert count == 2
        return lambda w: 2 * w * vec(1 - index, index)


def test_msam_perturbs_each_part_along_its_own_gradient() -> None:
    """By (0.5, 0) and by (0, 0.5)."""
    direction = MSAM(rho=0.5, parts=2).gradient(Halves(), vec(3, 2), view())  # type: ignore[arg-type]
    close(direction, 3.5, 2.5)


def test_msam_of_one_part_is_sam_bit_for_bit() -> None:
    one, sam = (trained(Algorithm(term), rounds=1) for term in (MSAM(0.2, parts=1), SAM(0.2)))
    assert one.w.equal(sam.w)


@pytest.mark.parametrize(("per", "divisor"), [("steps", 4), ("epochs", 2), ("lr_sum", 0.5)])
def test_togas_trend_is_the_movement_over_steps_epochs_or_length(per: Any, divisor: float) -> None:
    v = view(origin=vec(3, 2), steps=vec(4), epochs=vec(2), lr_sum=vec(0.5), Delta=vec(0, 0))
    message = TOGA(per=per).report(vec(1, 3), v)
    close(message, 2 / divisor, -1 / divisor)
    close(TOGA().update(vec(7, 7), message, v), 7, 7)
    assert v.Delta is message


@pytest.mark.parametrize(
    ("delta", "noted"),
    [("steps", "0.08 to 0.0075"), ("epochs", "0.8 to 0.075"), ("gradient", "0.8")],
)
@pytest.mark.parametrize("perturbation", ["local", "neighbor"])
def test_togas_effective_momentum_is_noted(delta: Any, noted: str, perturbation: Any) -> None:
    """Its 50 steps of 5 epochs move by a unit gradient's 5 at first, and 0.47 at last."""
    facts = ({"steps": 50, "epochs": 5, "lr_sum": lr_sum} for lr_sum in (5.0, 0.47))
    toga = algorithms.fedtoga(beta=0.8, delta=delta, perturbation=perturbation)
    (note,) = toga.summary_lines(*facts)
    assert note.endswith(f"momentum: {noted}")


def test_without_beta_toga_has_no_momentum_to_note() -> None:
    facts = {"steps": 50, "epochs": 5, "lr_sum": 5.0}
    assert algorithms.fedtoga(beta=0.0).summary_lines(facts, facts) == []


@pytest.mark.parametrize(("per", "m"), [("steps", 0.08), ("lr_sum", 0.8)])
def test_beta_delta_repeats_the_last_move_by_the_effective_momentum(per: Any, m: float) -> None:
    """In a second round without a gradient."""

    def gradient(self: Term, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return (v.round == 0) * torch.ones_like(w)

    trend = TOGA(rho=0.0, kappa=0.0, beta=0.8, per=per)
    run = regression(Algorithm(term(gradient=gradient), trend), steps=50, lr=0.1, rounds=2)
    run.train_round()
    first = run.w.detach().clone()
    run.train_round()
    close((run.w.detach() - first) / first, m, m)


def test_any_term_that_ascends_can_have_a_neighbor() -> None:
    oracle = Asked()
    v = view(R=vec(3, 4), mu_i=vec(0, -1), s=vec(0, 1), e=vec(0, 0), layout=layout())
    Neighbor(SAM(rho=0.5)).gradient(oracle, vec(1, 1), v)
    close(v.R, 1.3, 2 * 1.4)
    v.R = vec(3, 4)
    Neighbor(SMOO(rho=0.5, eps=0.0)).gradient(oracle, vec(1, 1), v)  # again R - mu_i - s = (3, 4)
    v.R = vec(3, 4)
    Neighbor(ASAM(rho=0.5, eta=0.0)).gradient(oracle, vec(1, 1), v)  # at |w| = 1 the ball is round
    assert len(oracle.at) == 3
    for at in oracle.at:
        close(at, 1.3, 1.4)


PERTURBATIONS = [SAM, LESAM, LastRound, TOGA, SMOO]


def displacement(term: Any, anchor: Tensor, w: Tensor) -> float:
    """How far from `w` the last gradient is taken by a client that has only seen zeros before."""
    asked, nowhere = Asked(), vec(0, 0)
    begun = dict.fromkeys(("o_i", "last", "e", "Delta", "mu_i", "s"), nowhere)
    v = view(**begun, anchor=anchor, layout=layout())
    term.start(anchor, v)
    term.gradient(asked, w, v)
    return float((asked.at[-1] - w).norm())


@pytest.mark.parametrize("term", PERTURBATIONS)
def test_a_perturbation_is_rho_long_and_a_zero_direction_perturbs_by_zero(term: Any) -> None:
    for anchor, w, length in [(vec(1, 1), vec(3, 2), 0.5), (vec(0, 0), vec(0, 0), 0.0)]:
        assert displacement(term(0.5), anchor, w) == pytest.approx(length, abs=1e-6)


@pytest.mark.parametrize("term", [*PERTURBATIONS, ASAM])
def test_eps_is_added_to_the_norm_that_a_perturbation_is_divided_by(term: Any) -> None:
    short = [displacement(term(0.5, eps=eps), vec(1, 1), vec(3, 2)) for eps in (1e6, 2e6)]
    assert short[0] / short[1] == pytest.approx(2, rel=1e-3)


def test_sam_on_moves_normalization_layers_alone() -> None:
    """As PyTorch computes it; a model without them is refused before the first round."""
    module = classifier(dropout=0.0)
    given = {"clients": classification([5], steps=1), "sampler": lambda *_: [0], "decays": False}
    run = federation(Algorithm(SAM(rho=0.3, part="norm")), module=module, **given)
    x, y = run.clients.visit(0, 0)[0]
    by_hand = deepcopy(module).train()
    own = dict(by_hand.named_parameters())

    def gradients() -> dict[str, Tensor]:
        g = torch.autograd.grad(F.cross_entropy(by_hand(x), y), [*own.values()])
        return dict(zip(own, g, strict=True))

    up = {name: g for name, g in gradients().items() if name.startswith("norm.")}
    assert sorted(up) == ["norm.bias", "norm.weight"]
    length = torch.cat([g.flatten() for g in up.values()]).norm()
    with torch.no_grad():
        for name, g in up.items():
            own[name] += 0.3 * g / length
    direction = torch.cat([g.flatten() for g in gradients().values()])
    before = run.w.detach().clone()
    run.train_round()
    torch.testing.assert_close(run.w.detach(), before - 0.1 * direction, rtol=0, atol=1e-12)
    with pytest.raises(TermError, match="normalization layer"):
        federation(Algorithm(SAM(part="norm")), module=classifier(norm=False))


@pytest.mark.parametrize(
    "inner", [LESAM(), Proximal(), Neighbor(SAM())], ids=lambda term: type(term).__name__
)
def test_a_term_that_does_not_ascend_along_the_gradient_has_no_neighbor(inner: Term) -> None:
    v = view(R=vec(0, 0), e=vec(0, 0), anchor=vec(0, 0))
    with pytest.raises(TermError, match=rf"{type(inner).__name__} has no ascent.*such as SAM"):
        direction_of(Neighbor(inner), v)
