"""Methods that leave something out: the head, the other half of the batch, everybody else."""

from typing import Any

import torch
from executors import on_eager_executors
from problems import SIZES, classifier, hard, rows, trained

from fl_lightning import Algorithm, algorithms

C = algorithms
UNIFORM = Algorithm()


@on_eager_executors
def test_fedbabu_keeps_the_head_as_it_was_drawn_under_decay_and_momentum(executor: Any) -> None:
    module = classifier()
    drawn = {name: p.detach().clone() for name, p in module.named_parameters()}
    run = trained(hard(C.fedbabu()), module=module, executor=executor)
    after = dict(run.load_global().named_parameters())
    assert all(after[name].equal(drawn[name]) == name.startswith("outer.") for name in drawn)
    assert run.layout.names == ["inner.weight", "inner.bias", "norm.weight", "norm.bias"]
    assert run.w.numel() == run.layout.size == 99 - 27


@on_eager_executors
def test_of_local_only_clients_the_global_model_never_moves_and_each_is_as_if_alone(
    executor: Any,
) -> None:
    run = trained(
        hard(C.local_only()), sampler=lambda n, seed, round: list(range(n)), executor=executor
    )
    assert run.w.equal(run.server.initial_w)
    for client in range(len(SIZES)):
        alone = trained(hard(UNIFORM), sampler=lambda n, seed, round, client=client: [client])
        torch.testing.assert_close(rows(run, "w_i")[client], alone.w.detach(), rtol=0, atol=1e-12)
