"""Losses that look at outputs and features, against numbers worked out by hand on tiny batches."""

from math import exp, log
from typing import Any

import pytest
import torch
from oracles import loss_of, oracle_of, view
from problems import vec
from torch import Tensor, nn

from fl_lightning import Term
from fl_lightning.core.vector import Layout
from fl_lightning.errors import TermError
from fl_lightning.terms import (
    Contrastive,
    Distill,
    NotTrueDistillation,
    RelaxedContrastive,
    TrajectoryTeacher,
)
from fl_lightning.terms.sol import ProximalOnly


def rows(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def exactly(value: float) -> Any:
    return pytest.approx(value, abs=1e-12)


def softplus(x: float) -> float:
    return log(1 + exp(x))


def test_of_two_classes_nothing_is_not_true() -> None:
    received = view(out=rows([-5, 3]))
    b = view(loss=vec(10)[0], out=rows([9, 7]), y=torch.tensor([1]), at=lambda w: received)
    assert loss_of(NotTrueDistillation(), view(anchor="w^t"), b) == 10


@pytest.mark.parametrize(
    ("out", "y"),
    [
        ({"scores": torch.ones(2, 3)}, torch.zeros(2, dtype=torch.int64)),
        (None, torch.zeros(2)),
        (torch.ones(2, 1), torch.zeros(2)),
        (torch.ones(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)),  # classes are second
    ],
    ids=["dictionary", "none", "one number", "pixels"],
)
@pytest.mark.parametrize("term", [Distill(), NotTrueDistillation(), TrajectoryTeacher()])
def test_outputs_that_are_no_scores_of_classes_are_refused(term: Term, out: Any, y: Tensor) -> None:
    b = view(loss=vec(10)[0], out=out, y=y, at=lambda w: view(out=out))
    with pytest.raises(TermError, match="scores of classes"):
        loss_of(term, view(anchor=vec(0), e=vec(0)), b)


def test_a_client_whose_last_model_is_the_received_one_has_no_contrast() -> None:
    """Exactly none: FedSOL would scale rounding noise up."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
    layout, oracle = Layout(module), oracle_of(module, torch.randn(8, 20), torch.arange(8) % 3)
    received = layout.read(module)
    w, last = (received + 0.1 * torch.randn_like(received) for _ in range(2))
    for w_i, idle in ((received, True), (last, False)):
        v = view(layout=layout, anchor=received, w_i=w_i)
        assert Contrastive().gradient(ProximalOnly(oracle), w, v).any() != idle


# relaxed contrast

Z = rows([2, 0], [0.6, 0.8], [0, 5])
"""Features with similarities 0.6 (samples 0 and 1), 0 (0 and 2) and 0.8 (1 and 2)."""
Y = torch.tensor([4, 4, 7])
ATTRACTION = softplus(0.0 - 0.6) + softplus(0.8 - 0.6) + log(exp(1) + exp(0.8) + exp(0.0)) - 1
# The farthest classmate (oneself for sample 2) against the nearest two of other classes, as far
# as there are two.


def contrast(term: RelaxedContrastive, *levels: Any, y: Tensor = Y) -> float:
    activations = {str(i): (None, z) for i, z in enumerate(levels)}
    b = view(loss=vec(10)[0], y=y, activations=activations)
    return loss_of(term, view(layout=view(body_blocks=lambda: [*activations])), b) - 10


def test_classmates_attract_and_the_nearest_others_repel() -> None:
    term = RelaxedContrastive(tau=1.0, attraction=2.0, penalty=0.0)
    assert contrast(term, Z) == exactly(2 * ATTRACTION / 3)
    nearest = softplus(0.0 - 0.6) + softplus(0.8 - 0.6) + softplus(0.8 - 1)
    one = RelaxedContrastive(tau=1.0, negatives=1, penalty=0.0)
    assert contrast(one, Z) == exactly(nearest / 3)


@pytest.mark.parametrize(("threshold", "mate"), [(0.5, 0.6), (0.7, -1.0)])
def test_too_similar_classmates_are_pushed_away_again(threshold: float, mate: float) -> None:
    """Sample 2 has no classmate, which counts -1 as one that is not too similar does."""
    term = RelaxedContrastive(tau=0.5, threshold=threshold, attraction=0.0, penalty=3.0)
    penalties = 2 * softplus((mate - 1) / 0.5) + softplus(-2 / 0.5)
    assert contrast(term, Z) == exactly(3 * penalties / 3)


def test_the_levels_are_averaged_and_images_of_features_pooled() -> None:
    term = RelaxedContrastive(tau=1.0, penalty=0.0)
    image = torch.stack([Z - 3, Z + 3], -1)[..., None, :]  # whose mean over space is Z
    assert contrast(term, image) == exactly(ATTRACTION / 3)
    of_gru = Z[:, None], Z[None, -1]  # the features of each token, and of the last one
    assert contrast(term, of_gru) == exactly(ATTRACTION / 3)
    alone = Y.new_tensor([0, 1, 2])  # everybody against the other two
    of_all = [log(exp(1) + exp(a) + exp(b)) - 1 for a, b in [(0.6, 0), (0.6, 0.8), (0, 0.8)]]
    assert contrast(term, Z, y=alone) == exactly(sum(of_all) / 3)
    same, second = Z[[0, 0, 0]], RelaxedContrastive(("1",), tau=1.0, penalty=0.0)
    assert contrast(term, Z, same, y=alone) == exactly((sum(of_all) / 3 + log(3)) / 2)
    assert contrast(second, Z, same, y=alone) == exactly(log(3))


def test_contrast_is_in_float32_under_autocast() -> None:
    """A temperature of 0.05 makes 20 of 1, and bf16 rounds 20 to its eighth part."""
    term, z = RelaxedContrastive(), torch.randn(8, 5, dtype=torch.bfloat16)
    y = torch.arange(8) % 3
    with torch.autocast("cpu", torch.bfloat16):
        rounded = contrast(term, z, y=y)
    assert rounded == pytest.approx(contrast(term, z.double(), y=y), rel=1e-5)


def extra_gradient(term: Term, y: list[int]) -> Tensor:
    """What a term adds to the gradient of the cross-entropy on as many samples."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    x = torch.randn(len(y), 2, dtype=torch.float64)
    layout, oracle = Layout(module), oracle_of(module, x, torch.tensor(y))
    w = layout.read(module)
    added: Tensor = term.gradient(oracle, w, view(layout=layout, anchor=w)) - oracle(w)
    return added


ATTRACT = RelaxedContrastive(penalty=0.0)
PENALISE = RelaxedContrastive(attraction=0.0, threshold=-1.0)


@pytest.mark.parametrize(
    ("term", "y", "idle"),
    [
        (ATTRACT, [1, 1, 1], True),
        (ATTRACT, [1], True),
        (ATTRACT, [0, 1, 1], False),
        (PENALISE, [0, 1, 2], True),
        (PENALISE, [1], True),
        (PENALISE, [0, 1, 1], False),
        (NotTrueDistillation(), [1], True),  # at the received model
        (Distill(), [1], True),
    ],
    ids=str,
)
def test_a_batch_without_what_a_loss_compares_has_no_gradient_from_it(
    term: Term, y: list[int], idle: bool
) -> None:
    added = extra_gradient(term, y).abs().max()
    assert added <= 1e-12 if idle else added > 1e-3
