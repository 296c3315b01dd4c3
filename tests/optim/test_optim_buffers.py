"""Weights come back after a step, and buffers move once in it."""

from functools import partial

import pytest
import torch
from optimizers import batches, closure_of, network, same_bits, train, weights, wrappers
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning.optim import SAM


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
    """Replaces its buffer in every forward pass."""

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
