"""FedSOL: where it takes gradients, when it is another method, where it rests."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from oracles import view
from problems import (
    Recorder,
    assert_same_unless,
    classification,
    classifier,
    close,
    distances,
    federation,
    hard,
    layout,
    rows,
    server,
    trained,
    vec,
)
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import Algorithm, SequentialExecutor, StackedExecutor, Term, algorithms, by_size
from fl_lightning.core.oracle import Oracle
from fl_lightning.terms import (
    SAM,
    SOL,
    ControlVariate,
    Distill,
    HeadSOL,
    Proximal,
    ReleasedControlVariate,
)
from fl_lightning.terms import sol as orthogonal
from fl_lightning.terms.sol import MoveScale, by_column, by_tensor

C = algorithms
AVG, UNIFORM = C.fedavg(), C.fedavg(weighting="uniform")
STACKED = partial(StackedExecutor, width=3)


@dataclass(frozen=True)
class Again(Term):
    """The task's loss as a proximal one."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: b.loss + F.cross_entropy(b.out, b.y))(w)


SAME = {
    **{
        f"FedSOL of {scope}, {strength}, without radius is FedAvg": (
            C.fedsol(rho=0.0, scope=scope, strength=strength),
            AVG,
            C.fedsol(scope=scope, strength=strength),
        )
        for scope in ("head", "body", "all")
        for strength in ("adaptive", "fixed")
    },
    "FedSOL along SCAFFOLD without radius is FedAvg": (
        C.fedsol(rho=0.0, scope="all", proximal="scaffold"),
        AVG,
        C.fedsol(scope="all", proximal="scaffold"),
    ),
    "FedSOL along FedNova without radius is FedNova": (
        C.fedsol(rho=0.0, scope="all", proximal="fednova"),
        C.fednova(),
        C.fedsol(scope="all", proximal="fednova"),
    ),
    "FedSOL along FedDyn without radius is FedDyn without its multiplier": (
        C.fedsol(rho=0.0, scope="all", proximal="feddyn"),
        C.feddyn(alpha=0.0, weighting="by_size"),
        C.fedsol(scope="all", proximal="feddyn"),
    ),
    "FedSOL along MOON without radius is FedAvg": (
        C.fedsol(rho=0.0, scope="all", proximal="moon"),
        AVG,
        C.fedsol(scope="all", proximal="moon"),
    ),
    "FedSOL along FedNTD without radius is FedAvg": (
        C.fedsol(rho=0.0, scope="all", proximal="ntd"),
        AVG,
        C.fedsol(scope="all", proximal="ntd"),
    ),
    "FedSOL along the task itself is SAM": (
        Algorithm(SOL(Again(), 0.3, None, still=False)),
        Algorithm(SAM(0.3)),
        Algorithm(SOL(Again(), 0.3, None)),
    ),
    "FedSOL along the distance does not know how steep it is": (
        Algorithm(SOL(Proximal(7.0), 0.3)),
        Algorithm(SOL(Proximal(1.0), 0.3)),
        Algorithm(SOL(Proximal(1.0), 0.4)),
    ),
    "FedSOL does not know how strong distillation is": (
        Algorithm(SOL(Distill(beta=7.0), 0.3)),
        Algorithm(SOL(Distill(), 0.3)),
        Algorithm(SOL(Distill(), 0.4)),
    ),
    "row A0 of the ablation is FedAvg": (C.fedsol_ablation("a0"), AVG, C.fedsol_ablation("a1")),
    "row A1 is FedSOL": (
        C.fedsol_ablation("a1", scope="all", strength="fixed"),
        C.fedsol(scope="all", strength="fixed"),
        C.fedsol_ablation("a1", scope="all"),
    ),
    "row A4 is SAM of the sum": (
        C.fedsol_ablation("a4", rho=0.3),
        Algorithm(Distill(), SAM(0.3), weight=by_size),
        C.fedsol_ablation("a5"),
    ),
    "row A5 is distillation": (C.fedsol_ablation("a5"), Algorithm(Distill(), weight=by_size), AVG),
    "row A5 without distillation is FedAvg": (
        C.fedsol_ablation("a5", beta=0.0),
        AVG,
        C.fedsol_ablation("a5"),
    ),
    **{
        f"row {row.upper()} without radius is distillation": (
            C.fedsol_ablation(row, rho=0.0),
            C.fedsol_ablation("a5"),
            C.fedsol_ablation(row),
        )
        for row in ("a2", "a3", "a6")
    },
}


@pytest.mark.parametrize("claim", SAME)
def test_identity(claim: str) -> None:
    # The third algorithm is the first one with the coefficient that the second lacks: it
    # differs.
    assert_same_unless(*SAME[claim], tolerance=1e-10)


def test_fedsol_along_a_control_variate_moves_it_as_scaffold_does() -> None:
    run = federation(hard(C.fedsol(scope="all", proximal="scaffold", rho=0.5)))
    for _ in range(3):
        run.train_round()
        torch.testing.assert_close(server(run, "c"), rows(run, "c_i").mean(0), rtol=0, atol=1e-12)
    still = trained(hard(Algorithm(SOL(ControlVariate(), rho=0.0))))
    plain = trained(hard(Algorithm(ReleasedControlVariate(k=0.0))))
    torch.testing.assert_close(rows(still, "c_i"), rows(plain, "c_i"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [None, by_column, by_tensor], ids=["fixed", "column", "tensor"])
def test_the_head_in_one_pass_is_the_head_in_two(scale: MoveScale | None) -> None:
    # Through both executors, under BatchNorm, and under dropout, whose mask the passes of one
    # step share.
    one, two = (
        hard(Algorithm(term, weight=by_size))
        for term in (HeadSOL(1.0, scale=scale), SOL(Distill(), 1.0, scale, orthogonal.head))
    )
    runs = [
        trained(algorithm, executor=executor)
        for algorithm in (two, one)
        for executor in (SequentialExecutor, STACKED)
    ]
    for run in runs[1:]:
        unaliased = distances(run, runs[0])
        assert "norm.running_mean" in unaliased
        assert max(unaliased.values()) <= 1e-10
    assert distances(trained(hard(AVG)), runs[0])["model"] > 1e-6


# where the gradient is taken


def displacements(term: Term, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    # Where the last gradient of each step is taken less the model, and how far the model has
    # moved: client 0.
    inside: list[tuple[Tensor, Tensor]] = []
    outside: list[tuple[Tensor, Tensor]] = []
    run = federation(
        Algorithm(Recorder(inside), term, Recorder(outside)),
        module=classifier(dropout=0.0, dtype=dtype),
        clients=classification(dtype=dtype),
        sampler=lambda n, seed, round: [0],
    )
    inside.clear()
    outside.clear()
    run.train_round()
    w, asked = torch.stack([w for w, _ in outside]), len(inside) // len(outside)
    assert len(w) == 6
    return torch.stack([at for at, _ in inside[asked - 1 :: asked]]) - w, w - run.server.initial_w


def test_a_fixed_perturbation_is_rho_long_from_the_second_step_on() -> None:
    for inner in (Distill(), Proximal(1.0)):
        e, _ = displacements(SOL(inner, 0.3, None))
        assert e.norm(dim=1).tolist() == pytest.approx([0] + [0.3] * 5, abs=1e-9)


def test_an_adaptive_perturbation_begins_with_zero_and_follows_the_movement() -> None:
    """Along the distance it is rho |m|_j m_j / |m|, with |m|_j over the norm of its tensor."""
    e, moved = displacements(SOL(Proximal(1.0), 0.3, by_tensor))
    assert e[0].abs().max() == 0
    sizes = [p.numel() for p in classifier().parameters()]
    for displaced, m in zip(e[1:], moved[1:], strict=True):
        Lambda = torch.cat([part.abs() / part.norm().clamp(min=1e-12) for part in m.split(sizes)])
        torch.testing.assert_close(displaced, 0.3 * Lambda * m / m.norm(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scope", ["head", "body"])
def test_what_is_out_of_scope_stays_where_it_is(scope: str) -> None:
    e, _ = displacements(SOL(Distill(), 0.3, None, getattr(orthogonal, scope)))
    body, head = e[:, :72], e[:, 72:]
    moves, stays = (head, body) if scope == "head" else (body, head)
    assert stays.abs().max() == 0
    assert moves.norm(dim=1).tolist() == pytest.approx([0] + [0.3] * 5, abs=1e-9)


def test_as_released_a_fixed_perturbation_begins_along_rounding_noise() -> None:
    """In single precision the divergence of a model from itself has a gradient of about 1e-8."""
    still, noise = (
        displacements(SOL(Distill(), 0.3, None, still=s), torch.float32)[0][0].norm()
        for s in (True, False)
    )
    assert float(still) == 0
    assert float(noise) == pytest.approx(0.3, abs=1e-3)


# the toy of Fig. 12

LOCAL, DELTA = vec(3.0, 4.0), 0.1
"""Where the local loss `(u - 3)^2 / 2 + delta (v - 4)^2 / 2` is least; the received model is 0."""


def valley(w: Tensor) -> Tensor:
    return (w - LOCAL) * vec(1.0, DELTA)


def rest(term: Term) -> Tensor:
    w, v = vec(1.0, -0.5), view(anchor=vec(0, 0), layout=layout())
    for _ in range(500):
        w = w - 0.5 * term.gradient(valley, w, v)
    return w


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_fedprox_bends_towards_the_flat_direction_and_fedsol_only_shortens(mu: float) -> None:
    close(rest(Proximal(mu)), 3 / (1 + mu), DELTA * 4 / (DELTA + mu), tolerance=1e-8)
    close(rest(SOL(Proximal(mu), 2.0, None)), 3 * (1 - 2 / 5), 4 * (1 - 2 / 5), tolerance=1e-8)
    close(rest(SOL(Proximal(mu), 0.0, None)), 3, 4, tolerance=1e-8)
