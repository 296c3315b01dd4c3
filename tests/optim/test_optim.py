"""SAM, ASAM, LESAM and user-defined transforms, in plain PyTorch."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from optimizers import (
    EXACT,
    Gradients,
    assert_equal,
    bases,
    batches,
    closure_of,
    gradients,
    network,
    same_bits,
    train,
    weights,
    wrappers,
)
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from fl_lightning import terms
from fl_lightning.core.oracle import Oracle
from fl_lightning.optim import ASAM, GSAM, LESAM, SAM, GradientTransform


def sam_by_hand(model: nn.Module, g: Gradients, rho: float) -> Gradients:
    norm = sum(gi.square().sum() for gi in g).sqrt()
    return [rho * gi / norm for gi in g]


def asam_by_hand(model: nn.Module, g: Gradients, rho: float) -> Gradients:
    scales = [p.detach().abs() + 0.01 for p in model.parameters()]
    norm = sum((T * gi).square().sum() for T, gi in zip(scales, g, strict=True)).sqrt()
    return [rho * T**2 * gi / norm for T, gi in zip(scales, g, strict=True)]


@bases
@pytest.mark.parametrize(("wrap", "by_hand"), [(SAM, sam_by_hand), (ASAM, asam_by_hand)])
def test_ten_steps_equal_the_method_written_by_hand(wrap, by_hand, base):
    model, other = network(), network()
    train(model, wrap(base(model.parameters()), rho=0.2), batches(10))

    optimizer = base(other.parameters())
    for x, y in batches(10):
        before = weights(other)
        perturbation = by_hand(other, gradients(other, x, y), rho=0.2)
        with torch.no_grad():
            for p, e in zip(other.parameters(), perturbation, strict=True):
                p.add_(e)
        g = gradients(other, x, y)
        with torch.no_grad():
            for p, w, gi in zip(other.parameters(), before, g, strict=True):
                p.copy_(w)
                p.grad = gi
        optimizer.step()

    assert_equal(model, other, **EXACT)


@pytest.mark.parametrize(
    ("wrap", "term", "option"),
    [
        (SAM, terms.SAM, {"eps": 0.5}),
        (ASAM, terms.ASAM, {"eps": 0.5}),
        (ASAM, terms.ASAM, {"eta": 0.5}),
        (GSAM, terms.GSAM, {"alpha": 0.5}),
    ],
)
def test_every_coefficient_is_the_terms(wrap, term, option):
    transform = partial(term(0.2, **option).gradient, v=None)
    wrapped, plain = partial(wrap, rho=0.2, **option), partial(wrap, rho=0.2)
    makers = wrapped, partial(GradientTransform, transform=transform), plain
    models = [network() for _ in makers]
    for model, make in zip(models, makers, strict=True):
        train(model, make(SGD(model.parameters(), lr=0.1)), batches(3))
    assert_equal(models[0], models[1])
    assert not same_bits(weights(models[0]), weights(models[2]))


def lesam_with_zero_direction(base: Optimizer) -> LESAM:
    return LESAM(base, map(torch.zeros_like, base.param_groups[0]["params"]))


@bases
@pytest.mark.parametrize(
    "wrap",
    [partial(SAM, rho=0.0), partial(ASAM, rho=0.0), lesam_with_zero_direction],
    ids=["sam", "asam", "lesam"],
)
def test_no_perturbation_is_the_base_optimizer_bit_for_bit(wrap, base):
    model, other = network(torch.float32), network(torch.float32)
    data = batches(5, torch.float32)
    train(model, wrap(base(model.parameters())), data)
    train(other, base(other.parameters()), data)
    assert_equal(model, other)


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_fused_optimizer_steps_weights_of_any_order_in_memory(kind):
    model = network()
    model[0].weight = nn.Parameter(model[0].weight.detach().T.contiguous().T)
    other = copy.deepcopy(model)
    train(model, SAM(kind(model.parameters(), lr=0.1, fused=True), rho=0.0), batches(3))
    train(other, kind(other.parameters(), lr=0.1), batches(3))
    assert_equal(model, other, **EXACT)


def test_a_closure_may_use_the_memory_of_a_gradient_again():
    """As DDP does, with gradient_as_bucket_view."""

    def closure_into(memory: Tensor | None, model: nn.Module) -> None:
        (g,) = gradients(model, *batches(1)[0])
        model.weight.grad = g if memory is None else memory.copy_(g)

    model, other = nn.Linear(4, 3, bias=False).double(), nn.Linear(4, 3, bias=False).double()
    other.load_state_dict(model.state_dict())
    for linear, memory in ((model, None), (other, torch.empty_like(model.weight))):
        optimizer = GSAM(SGD(linear.parameters(), lr=0.1), rho=0.5)
        optimizer.step(partial(closure_into, memory, linear))
    assert_equal(model, other)


def test_lesam_takes_one_pass_at_the_weights_plus_rho_times_the_unit_direction():
    model = network()
    direction = weights(network(seed=1))
    optimizer = LESAM(SGD(model.parameters(), lr=0.1), direction, rho=0.3)
    norm = torch.cat([d.reshape(-1) for d in direction]).norm()
    w, ((x, y),) = weights(model), batches(1)
    seen: list[list[Tensor]] = []
    compute = closure_of(model, optimizer, x, y)

    def closure() -> Tensor:
        seen.append(weights(model))
        return compute()

    optimizer.step(closure)
    (at,) = seen
    expected = [p + 0.3 * d / norm for p, d in zip(w, direction, strict=True)]
    torch.testing.assert_close(at, expected, **EXACT)


def test_a_user_defined_transform_sees_gradient_and_weights():
    """A proximal pull to zero is weight decay."""
    model, other = network(), network()
    base = SGD(model.parameters(), lr=0.1)
    train(model, GradientTransform(base, lambda oracle, w: oracle(w) + 0.2 * w), batches(3))
    train(other, SGD(other.parameters(), lr=0.1, weight_decay=0.2), batches(3))
    assert_equal(model, other, **EXACT)


def test_a_transform_may_move_the_vector_that_it_gives():
    def in_place(oracle: Oracle, w: Tensor) -> Tensor:
        point = w.clone()
        point.add_(oracle(point))
        return oracle(point)

    model, other = network(), network()
    train(model, GradientTransform(SGD(model.parameters(), lr=0.1), in_place), batches(2))
    base = SGD(other.parameters(), lr=0.1)
    train(other, GradientTransform(base, lambda oracle, w: oracle(w + oracle(w))), batches(2))
    assert_equal(model, other)


def test_a_hook_that_changes_gradients_in_place_leaves_what_a_transform_keeps():
    """As the guide clips the gradient that the optimizer steps with."""
    model, other, kept = network(), network(), list[Tensor]()

    def keep(oracle: Oracle, w: Tensor) -> Tensor:
        kept.append(oracle(w))
        return kept[-1]

    def clip(base: Optimizer, *_: object) -> None:
        nn.utils.clip_grad_value_(base.param_groups[0]["params"], 1e-3)

    optimizer = GradientTransform(SGD(model.parameters(), lr=0.1), keep)
    optimizer.base.register_step_pre_hook(clip)
    train(model, optimizer, batches(1))
    expected = torch.cat([g.flatten() for g in gradients(other, *batches(1)[0])])
    torch.testing.assert_close(kept, [expected], **EXACT)


def test_a_transform_need_not_ask_for_a_gradient():
    model = network()
    w = weights(model)
    optimizer = GradientTransform(SGD(model.parameters(), lr=0.5), lambda oracle, w: w)
    assert optimizer.step(lambda: pytest.fail("nobody asked")) is None
    torch.testing.assert_close(weights(model), [0.5 * p for p in w])


@wrappers
def test_only_the_first_call_of_the_closure_in_a_step_is_the_first_pass(wrap):
    model, seen = network(), []
    optimizer = wrap(SGD(model.parameters(), lr=0.1))
    compute = closure_of(model, optimizer, *batches(1)[0])

    def closure() -> Tensor:
        seen.append(optimizer.first_pass)
        return compute()

    for _ in range(2):
        optimizer.step(closure)
    assert seen == ([True] if isinstance(optimizer, LESAM) else [True, False]) * 2
    assert optimizer.first_pass


def test_step_returns_the_loss_at_the_unperturbed_weights():
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1), rho=1.0)
    ((x, y),) = batches(1)
    expected = F.cross_entropy(model(x), y).item()
    assert optimizer.step(closure_of(model, optimizer, x, y)).item() == expected


def test_frozen_parameters_stay_and_do_not_count_in_the_norm():
    model = network()
    model[0].requires_grad_(False)
    frozen, head = weights(model[0]), copy.deepcopy(model[2])
    with torch.no_grad():
        features = [(model[:2](x), y) for x, y in batches(3)]
    train(model, SAM(SGD(model.parameters(), lr=0.1, weight_decay=0.1), rho=0.2), batches(3))
    train(head, SAM(SGD(head.parameters(), lr=0.1, weight_decay=0.1), rho=0.2), features)
    assert same_bits(model[0].parameters(), frozen)
    assert_equal(model[2], head, **EXACT)


def test_lesam_leaves_frozen_parameters_where_they_are():
    model = network()
    optimizer = LESAM(SGD(model.parameters(), lr=0.1), weights(model), rho=1.0)
    model[0].requires_grad_(False)
    frozen, compute, seen = weights(model[0]), closure_of(model, optimizer, *batches(1)[0]), []
    optimizer.step(lambda: (seen.append(weights(model[0])), compute())[1])
    torch.testing.assert_close(seen, [frozen], rtol=0, atol=0)


def test_parameters_outside_the_loss_are_skipped_as_the_base_skips_them():
    model = network()
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    train(model, SAM(SGD(model.parameters(), lr=0.1, weight_decay=0.1)), batches(2))
    assert torch.equal(model.unused, torch.ones(2, dtype=torch.float64))
    assert model.unused.grad is None


@wrappers
def test_parameters_of_different_number_types_train_together(wrap):
    class Mixed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[1](self[0](x.float()).tanh().double())

    model = Mixed(nn.Linear(4, 8), nn.Linear(8, 3, dtype=torch.float64))
    before = weights(model)
    train(model, wrap(SGD(model.parameters(), lr=0.0)), batches(1))
    assert same_bits(model.parameters(), before)
    train(model, wrap(SGD(model.parameters(), lr=0.1, momentum=0.9)), batches(3))
    assert [p.dtype for p in model.parameters()] == [torch.float32] * 2 + [torch.float64] * 2
    assert not any(torch.equal(p, w) for p, w in zip(model.parameters(), before, strict=True))
