"""What a checkpoint holds of a federation, and the checkpoints that a run refuses."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.network import check_base
from fl_lightning.errors import UserError
from fl_lightning.federation.local_training import LocalTraining

State = dict[str, Any]


def state_of(training: LocalTraining) -> State:
    """Everything that `restore` needs but the clients' rows, as plain tensors and numbers.

    Raises:
        UserError: If clients keep states and their rows are not retained.
    """
    if not training.store.is_retained(training.store.slot):
        raise UserError(
            "later rounds would write over the clients' states of this state_dict: call "
            "federation.store.retain() before it, on every rank"
        )
    return _content(training)


def _content(training: LocalTraining) -> State:
    server, store = training.server, training.store
    terms = server.algorithm.terms
    return {
        "terms": [f"{type(t).__name__}({', '.join([*t.client, *t.server])})" for t in terms],
        "round": server.round,
        "w": server.w.detach(),
        "initial_w": server.initial_w,
        "frozen": {name: p for name, p in server.frozen.items() if name in server.saved},
        "base": server.base(),
        "buffers": server.buffers,
        "states": server.states,
        "optimizer": server.optimizer.state_dict(),
        "num_clients": training.clients.num_clients,
        "data": training.clients.digest,
        "precision": training.fabric.strategy.precision.precision,
        "slot": store.slot,
        "retained": dict(store.retained),
        "rounds": server.rounds,
    }


def restore(training: LocalTraining, state: State) -> None:
    """Continue from what `state_of` returned.

    Raises:
        UserError: If it is of another run, or the clients' rows are gone.
    """
    _check(state, _content(training), training)
    training.store.restore(state["slot"], state["retained"])
    server, device = training.server, training.server.w.device
    with torch.no_grad():
        server.w.copy_(state["w"])
        for name, values in state["frozen"].items():
            server.frozen[name].copy_(values)
    server.saved |= state["frozen"].keys()
    server.initial_w = state["initial_w"].to(device)
    server.buffers = {k: b.to(device) for k, b in state["buffers"].items()}
    server.states = [{k: t.to(device) for k, t in s.items()} for s in state["states"]]
    server.optimizer.load_state_dict(state["optimizer"])
    server.round = state["round"]


def _check(state: State, ours: State, training: LocalTraining) -> None:
    """Raise a UserError if a state is of another version, model, algorithm or setting."""
    if missing := sorted(ours.keys() - state.keys()):
        raise UserError(f"the checkpoint is of another version, it lacks {missing}: start anew")
    if state["w"].numel() != ours["w"].numel() or state["terms"] != ours["terms"]:
        raise UserError(
            f"the checkpoint has {state['w'].numel()} parameters and terms {state['terms']}, this "
            f"run has {ours['w'].numel()} and {ours['terms']}: resume with the same model, "
            "algorithm and evaluate_models"
        )
    held = {name: p for name, p in training.server.frozen.items() if name not in state["base"]}
    there, here = _shapes(state["frozen"], state["buffers"]), _shapes(held, ours["buffers"])
    if there != here:
        raise UserError(
            f"{min(there ^ here)[0]} has another shape, or is missing, in the checkpoint: "
            "resume with the same model"
        )
    check_base(ours["base"], state["base"])
    horizon = ("rounds",) if training.rehearsal.cost.has_horizon else ()
    for name in (*horizon, "num_clients", "data", "precision"):
        if state[name] != ours[name]:
            raise UserError(
                f"the checkpoint has {name} {state[name]}, this run {ours[name]}: "
                f"resume with equal {name}"
            )
    if state["round"] > ours["rounds"]:
        raise UserError(
            f"the checkpoint is of round {state['round']}, this run ends with {ours['rounds']}: "
            "give more"
        )


def _shapes(*tensors: Mapping[str, Tensor]) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, tuple(t.shape)) for group in tensors for name, t in group.items()}
