"""Errors of the wrappers name what is wrong, and leave the weights."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from optimizers import assert_equal, batches, network, same_bits, train, weights, wrappers
from torch import nn
from torch.optim import LBFGS, SGD, AdamW

from fl_lightning.optim import ASAM, LESAM, SAM, GradientTransform


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_gives_no_closure_which_a_step_needs(fused: bool):
    model = network(torch.float32)
    optimizer, scaler = SAM(AdamW(model.parameters(), fused=fused)), torch.amp.GradScaler("cpu")
    ((x, y),) = batches(1, torch.float32)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    with pytest.raises(ValueError, match=r"SAM\.step needs a closure.*GradScaler .* 'bf16-mixed'"):
        scaler.step(optimizer)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    "model", [network(), nn.Linear(4, 3, bias=False).double()], ids=["network", "one tensor"]
)
def test_a_closure_that_does_not_zero_the_gradients_is_refused(model, steps):
    """From the first step on, or after some steps."""
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    train(model, optimizer, batches(steps))
    optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"must zero the gradients.*accumulate_grad_batches=1"):
        train(model, optimizer, batches(1))


@pytest.mark.parametrize(("steps", "loss"), [(0, None), (0, torch.ones(())), (1, None)])
def test_a_closure_without_backward_is_not_taken_for_one_that_does_not_zero(steps, loss):
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    train(model, optimizer, batches(steps))
    with pytest.raises(ValueError, match=r"computed no gradient.*optimizer\.step\(closure\)"):
        optimizer.step(lambda: loss)


def test_gradients_that_are_not_numbers_are_not_taken_for_accumulation():
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1))

    def closure() -> None:
        optimizer.zero_grad(set_to_none=False)
        (model(torch.ones(1, 4).double()).sum() * torch.nan).backward()

    optimizer.step(closure)
    assert all(p.isnan().all() for p in model[2].parameters())


def test_a_parameter_without_elements_is_not_taken_for_accumulation():
    model = network()
    model.register_parameter("empty", nn.Parameter(torch.empty(0, 3, dtype=torch.float64)))
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    optimizer.zero_grad = partial(optimizer.zero_grad, set_to_none=False)  # type: ignore[method-assign]
    other = network()
    train(model, optimizer, batches(2))
    train(other, SAM(SGD(other.parameters(), lr=0.1)), batches(2))
    assert same_bits([p for p in model.parameters() if p.numel()], other.parameters())


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda oracle, w: oracle.of(lambda b: b.loss)(w), r"pass closure\(request\)"),
        (lambda oracle, w: oracle.part(0, 2)(w), r"pass closure\(request\)"),
        (lambda oracle, w: w[:2], r"must return a vector of shape \(67,\)"),
        (lambda oracle, w: w.mul_(2), r"changed w in place.*w = w \+ e"),
    ],
    ids=["a loss", "a part of the batch", "another shape", "in place"],
)
def test_what_a_transform_cannot_do_is_refused(transform, said):
    """A closure that takes the request could answer for another loss or a part of the batch."""
    model = network()
    optimizer = GradientTransform(SGD(model.parameters(), lr=0.1), transform)
    with pytest.raises(ValueError, match=said):
        train(model, optimizer, batches(1))


@pytest.mark.parametrize(
    ("direction", "said"),
    [
        ([torch.zeros(3)], r"\[0\] .* \(8, 4\), but has \(3,\)"),
        (list(network().parameters())[:3], r"\[3\] .* \(3,\), but has None"),
        ([*network().parameters(), torch.zeros(1)], r"\[4\] .* None, but has \(1,\)"),
        (network().state_dict(), r"\[0\] .* \(8, 4\), but has None"),
    ],
    ids=["another shape", "too few", "too many", "names"],
)
def test_a_direction_must_match_the_parameters(direction, said):
    with pytest.raises(ValueError, match=rf"direction{said}"):
        LESAM(SGD(network().parameters(), lr=0.1), direction)


def test_a_group_added_to_lesam_needs_a_direction():
    model = network()
    optimizer = LESAM(SGD(model[0].parameters(), lr=0.1), weights(model[0]))
    optimizer.add_param_group({"params": list(model[2].parameters())})
    with pytest.raises(ValueError, match=r"no direction.*toward"):
        train(model, optimizer, batches(1))
    optimizer.toward(weights(model), rho=0.1)
    train(model, optimizer, batches(1))


@wrappers
def test_a_closure_that_changes_a_weight_is_refused(wrap):
    model = nn.Embedding(10, 3, max_norm=0.1)
    optimizer = wrap(SGD(model.parameters(), lr=0.1))

    def closure() -> None:
        optimizer.zero_grad()
        model(torch.arange(10)).sum().backward()

    with pytest.raises(ValueError, match=r"changed a weight.*max_norm"):
        optimizer.step(closure)


@pytest.mark.parametrize("wrap", [SAM, ASAM, LESAM, GradientTransform])
def test_the_signature_of_other_packages_gets_our_error(wrap):
    with pytest.raises(TypeError, match=r"an optimizer object, as in SAM\(SGD\(model"):
        wrap(network().parameters(), SGD, rho=0.05, lr=0.1)


@pytest.mark.parametrize(
    "base", [LBFGS, lambda params: SAM(SGD(params, lr=0.1))], ids=["LBFGS", "SAM"]
)
def test_the_base_must_step_without_a_closure(base):
    with pytest.raises(TypeError, match=r"(LBFGS|SAM) cannot be wrapped"):
        SAM(base(network().parameters()))


@wrappers
def test_an_optimizer_that_maximizes_is_refused_and_the_weights_stay(wrap):
    model = network()
    with pytest.raises(ValueError, match=r"maximize=True: negate the loss"):
        train(model, wrap(SGD(model.parameters(), lr=0.1, maximize=True)), batches(1))
    assert_equal(model, network())


def test_sparse_gradients_are_refused_and_the_weights_stay():
    model = nn.Embedding(10, 3, sparse=True)
    optimizer, before = SAM(SGD(model.parameters(), lr=0.1)), model.weight.detach().clone()

    def closure() -> None:
        optimizer.zero_grad()
        model(torch.tensor([1, 2])).square().sum().backward()

    with pytest.raises(ValueError, match=r"a gradient is sparse.*sparse=False"):
        optimizer.step(closure)
    assert torch.equal(model.weight, before)
