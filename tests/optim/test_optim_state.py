"""A wrapper and its base are one optimizer; weights come back, and buffers move once in a step."""

import copy
import pickle
from functools import partial

import pytest
import torch
from optimizers import (
    assert_equal,
    bases,
    batches,
    closure_of,
    network,
    restored,
    same_bits,
    train,
    weights,
    wrappers,
)
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import SGD, Adam

from fl_lightning.optim import ASAM, SAM


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


def test_with_all_parameters_frozen_a_step_returns_the_loss_and_does_nothing():
    model = network()
    before, optimizer = weights(model), SAM(SGD(model.parameters(), lr=0.1))
    model.requires_grad_(False)
    assert optimizer.step(lambda: torch.tensor(2.0)) == 2.0
    assert all(map(torch.equal, weights(model), before))


@clones
def test_hooks_of_state_dict_are_called(clone):
    called, optimizer = list[str](), clone(SAM(SGD(network().parameters(), lr=0.1)))
    kinds = [f"{of}state_dict_{when}" for of in ("", "load_") for when in ("pre", "post")]
    for kind in kinds:
        register = getattr(optimizer, f"register_{kind}_hook")
        register(lambda *_, kind=kind: called.append(kind))
    optimizer.load_state_dict(optimizer.state_dict())
    assert sorted(called) == sorted(kinds)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@wrappers
def test_weights_come_back_bit_by_bit(wrap, dtype):
    model = network(dtype)
    before = weights(model)
    train(model, wrap(SGD(model.parameters(), lr=0.0)), batches(1, dtype))
    assert same_bits(model.parameters(), before)


def test_weights_and_buffers_come_back_when_the_second_pass_fails():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    optimizer = SAM(SGD(model.parameters(), lr=0.1), buffers=model)
    ((x, y),) = batches(1)
    passes = [closure_of(model, optimizer, x, y), partial(pytest.fail, "out of memory")]
    before = weights(model)
    with pytest.raises(pytest.fail.Exception, match="out of memory"):
        optimizer.step(lambda: passes.pop(0)())
    assert optimizer.first_pass
    assert same_bits(model.parameters(), before)
    assert model[1].num_batches_tracked == 1


def test_every_pass_of_a_step_sees_the_buffers_as_the_step_found_them():
    count, seen = torch.zeros(()), []
    model = network()
    optimizer = SAM(SGD(model.parameters(), lr=0.1), buffers=[count])
    compute = closure_of(model, optimizer, *batches(1)[0])

    def closure() -> Tensor:
        seen.append(count.item())
        count.add_(1)
        return compute()

    for _ in range(2):
        optimizer.step(closure)
    assert seen == [0, 0, 1, 1]
    assert count == 2


class Centered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes = self.passes + 1
        return self.linear(x)


def test_buffers_that_the_forward_pass_replaces_move_once_a_step():
    model = Centered()
    train(model, SAM(SGD(model.parameters(), lr=0.1), buffers=model), batches(3))
    assert model.passes == 3
