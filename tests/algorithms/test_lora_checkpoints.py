"""Checkpoints of methods for adapters: what they hold of the base, and what they refuse."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import adapted, adapted_federation, frozen_weights
from every_algorithm import LORA
from problems import hard
from torch import Tensor

from fl_lightning import Algorithm, Term, UserError


@pytest.mark.parametrize("name", ["fedex_lora", "flora", "ffa_lora"])
def test_a_resumed_run_has_the_base_that_the_server_moved(name: str, tmp_path: Path) -> None:
    def begun(folder: Path, *, other: bool = False) -> Any:
        module = adapted()
        for p in filter(lambda p: other and p.requires_grad, module.parameters()):
            p.data += 1.0
        return adapted_federation(hard(LORA[name]), module=module, state_dir=folder)

    never, first = begun(tmp_path / "a"), begun(tmp_path / "b")
    never.fit()
    first.train_round()
    first.store.retain()
    torch.save(first.state_dict(), tmp_path / "last.ckpt")
    again = begun(tmp_path / "b", other=True)
    again.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True))
    again.fit()
    assert again.w.equal(never.w)
    assert all(map(torch.equal, frozen_weights(again), frozen_weights(never)))


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("fedit", ()),
        ("ffa_lora", ("lora_A.default.weight",)),
        ("fedex_lora", ("base_layer.weight",)),
        ("flora", ("base_layer.weight",)),
    ],
)
def test_a_checkpoint_holds_digests_of_what_stays_as_it_was(
    name: str, saved: tuple[str, ...]
) -> None:
    state = adapted_federation(LORA[name]).state_dict()
    assert {*state["frozen"]} == {f"{layer}.{s}" for layer in ("inner", "outer") for s in saved}
    others = {k for k, p in adapted().named_parameters() if "base_layer" in k} - {*state["frozen"]}
    assert {*state["base"]} == others
    assert all(len(content) == 64 for content in state["base"].values())


@pytest.mark.parametrize("name", ["fedit", "fedex_lora"])
def test_a_run_is_not_resumed_with_another_base(name: str) -> None:
    state, other = adapted_federation(LORA[name]).state_dict(), adapted()
    other.get_parameter("outer.base_layer.bias").data[1] += 1e-12
    with pytest.raises(UserError, match=r"outer\.base_layer\.bias is frozen and has other values"):
        adapted_federation(LORA[name], module=other).load_state_dict(state)


def test_a_state_before_the_base_moved_is_refused_where_the_rehearsal_could_not_know() -> None:
    """A term that moves a weight in one round only, after a state that has its digest."""

    class Once(Term):
        def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
            if v.round == 1:
                v.move("inner.base_layer.weight", torch.ones(8, 6))
            return delta

    run = adapted_federation(Algorithm(Once()), rounds=3)
    first = deepcopy(run.state_dict())
    run.train_round()
    run.train_round()
    moved = deepcopy(run.state_dict())
    assert {*moved["frozen"]} == {*first["base"]} - {*moved["base"]} == {"inner.base_layer.weight"}
    with pytest.raises(UserError, match=r"inner\.base_layer\.weight is frozen"):
        run.load_state_dict(first)
    again = adapted_federation(Algorithm(Once()), rounds=3)
    again.load_state_dict(moved)
    assert all(map(torch.equal, frozen_weights(again), frozen_weights(run)))
