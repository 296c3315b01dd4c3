"""A wrapper and its base are one optimizer; errors name what is wrong."""

import copy
import pickle
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from optimizers import (
    assert_equal,
    bases,
    batches,
    network,
    restored,
    same_bits,
    train,
    weights,
    wrappers,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import LBFGS, SGD, Adam, AdamW

from fl_lightning.optim import ASAM, LESAM, SAM, GradientTransform


@wrappers
@bases
def test_resuming_from_the_state_dict_equals_never_stopping(wrap, base):
    model, data = network(), batches(6)
    optimizer = wrap(base(model.parameters()))
    train(model, optimizer, data[:3])
    saved = restored({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(model, optimizer, data[3:])

    resumed = network(seed=7)
    optimizer = wrap(base(resumed.parameters()))
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert_equal(train(resumed, optimizer, data[3:]), model)


@wrappers
@pytest.mark.parametrize("base", [SGD, Adam])
def test_distributed_checkpoints_hold_the_state_and_leave_the_weights(wrap, base):
    model, data = network(), batches(4)
    optimizer = wrap(base(model.parameters(), lr=0.1))
    train(model, optimizer, data[:2])
    optimizer.zero_grad()
    before = weights(model)
    saved = copy.deepcopy(get_state_dict(model, optimizer))
    assert same_bits(model.parameters(), before)
    train(model, optimizer, data[2:])

    resumed = network(seed=7)
    optimizer = wrap(base(resumed.parameters(), lr=0.2))
    set_state_dict(resumed, optimizer, model_state_dict=saved[0], optim_state_dict=saved[1])
    assert_equal(train(resumed, optimizer, data[2:]), model)


def test_groups_state_and_defaults_are_those_of_the_base_also_after_loading():
    model = network()
    base = Adam(model.parameters())
    optimizer = SAM(base)
    train(model, optimizer, batches(1))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert optimizer.param_groups is base.param_groups
    assert len(base.param_groups) == 2
    assert optimizer.state is base.state
    assert optimizer.defaults is base.defaults
    assert restored(optimizer.state_dict())["state"].keys() == base.state_dict()["state"].keys()


clones = pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"]
)


@clones
@pytest.mark.parametrize("form", [lambda model: model, nn.Module.buffers])
def test_a_copy_has_the_buffers_of_the_copied_model(form, clone):
    model = nn.Sequential(network(), nn.BatchNorm1d(3, dtype=torch.float64))
    optimizer = SAM(SGD(model.parameters(), lr=0.1), buffers=form(model))
    other, copied = clone((model, optimizer))
    train(other, copied, batches(2))
    assert (other[1].num_batches_tracked, model[1].num_batches_tracked) == (2, 0)


@wrappers
@clones
def test_a_copy_with_its_model_continues_identically_and_separately(wrap, clone):
    model, data = network(), batches(4)
    optimizer = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    train(model, optimizer, data[:2])
    other, copied = clone((model, optimizer))
    train(model, optimizer, data[2:])
    train(other, copied, data[2:])
    assert copied.param_groups is copied.base.param_groups is not optimizer.param_groups
    assert_equal(model, other)


def test_step_hooks_run_once_a_step():
    model = network()
    optimizer, calls = SAM(SGD(model.parameters(), lr=0.1)), []
    optimizer.register_step_post_hook(lambda *_: calls.append("wrapper"))
    optimizer.base.register_step_post_hook(lambda *_: calls.append("base"))
    train(model, optimizer, batches(2))
    assert calls == ["base", "wrapper"] * 2


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


def test_zeroing_in_place_is_as_good_as_setting_to_none():
    model, other = network(), network()
    data = batches(3)
    train(other, SAM(SGD(other.parameters(), lr=0.1)), data)
    optimizer = SAM(SGD(model.parameters(), lr=0.1))
    optimizer.zero_grad = partial(optimizer.zero_grad, set_to_none=False)  # type: ignore[method-assign]
    train(model, optimizer, data)
    assert_equal(model, other)


@pytest.mark.parametrize(
    "asks",
    [lambda oracle, w: oracle.of(lambda b: b.loss)(w), lambda oracle, w: oracle.part(0, 2)(w)],
    ids=["loss", "part"],
)
def test_another_loss_or_a_part_of_the_batch_needs_a_closure_that_takes_the_request(asks):
    model = network()
    optimizer = GradientTransform(SGD(model.parameters(), lr=0.1), asks)
    with pytest.raises(ValueError, match=r"pass closure\(request\)"):
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


@pytest.mark.parametrize("rho", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "wrap", [SAM, ASAM, lambda base, rho: LESAM(base, network().parameters(), rho)]
)
def test_a_radius_is_a_finite_number_of_at_least_zero(wrap, rho: float):
    with pytest.raises(ValueError, match=r"rho of .*SAM is a finite number of at least 0"):
        wrap(SGD(network().parameters(), lr=0.1), rho=rho)


def test_a_group_added_to_lesam_needs_a_direction():
    model = network()
    optimizer = LESAM(SGD(model[0].parameters(), lr=0.1), weights(model[0]))
    optimizer.add_param_group({"params": list(model[2].parameters())})
    with pytest.raises(ValueError, match=r"no direction.*toward"):
        train(model, optimizer, batches(1))
    optimizer.toward(weights(model), rho=0.1)
    train(model, optimizer, batches(1))


def test_a_transform_must_return_a_vector_like_the_weights():
    model = network()
    optimizer = GradientTransform(SGD(model.parameters(), lr=0.1), lambda oracle, w: w[:2])
    with pytest.raises(ValueError, match=r"must return a vector of shape \(67,\)"):
        train(model, optimizer, batches(1))


def test_a_transform_must_leave_the_given_weights():
    model = network()
    optimizer = GradientTransform(SGD(model.parameters(), lr=0.1), lambda oracle, w: w.mul_(2))
    with pytest.raises(ValueError, match=r"changed w in place.*w = w \+ e"):
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


def test_with_all_parameters_frozen_a_step_returns_the_loss_and_does_nothing():
    model = network()
    before, optimizer = weights(model), SAM(SGD(model.parameters(), lr=0.1))
    model.requires_grad_(False)
    assert optimizer.step(lambda: torch.tensor(2.0)) == 2.0
    assert all(map(torch.equal, weights(model), before))


@clones
def test_hooks_of_state_dict_are_called(clone):
    called, optimizer = list[str](), clone(SAM(SGD(network().parameters(), lr=0.1)))
    for kind in (
        "state_dict_pre",
        "state_dict_post",
        "load_state_dict_pre",
        "load_state_dict_post",
    ):
        register = getattr(optimizer, f"register_{kind}_hook")
        register(lambda *_, kind=kind: called.append(kind))
    optimizer.load_state_dict(optimizer.state_dict())
    assert sorted(called) == [
        "load_state_dict_post",
        "load_state_dict_pre",
        "state_dict_post",
        "state_dict_pre",
    ]


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_compiled_steps_of_two_optimizers_train_as_plain_ones():
    """PyTorch's graph of the second one's step failed, of one parameter."""

    def trained(compiled: bool) -> nn.Module:
        model = nn.Linear(4, 3, bias=False).double()
        nn.init.ones_(model.weight)
        optimizer = ASAM(SGD(model.parameters(), lr=0.01), rho=0.01)
        if compiled:
            optimizer.step = torch.compile(optimizer.step, backend="eager")
        return train(model, optimizer, batches(3))

    for _ in range(2):
        assert_equal(trained(compiled=True), trained(compiled=False))
