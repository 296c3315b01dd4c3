"""What a federation needs to go on later, as plain tensors and numbers; the rows of its client store lie on disk."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fl_lightning.federation.federation import Federation


def snapshot(federation: "Federation") -> dict[str, Any]:
    """Everything that `restore` needs, except the rows of the client store.

    Raises:
        ValueError: If later rounds would write over these rows.
    """
    if not federation.store.is_retained(federation.store.slot):
        raise ValueError(
            "later rounds would write over the clients' states that this state_dict refers to: call "
            "federation.store.pin() before it, on every rank"
        )
    return _everything(federation)


def _everything(federation: "Federation") -> dict[str, Any]:
    return {
        "terms": _terms(federation),
        "data": federation.clients.digest,
        "precision": federation.fabric.strategy.precision.precision,
        "round": federation.round,
        "rounds": federation.rounds,
        "w": federation.w.detach(),
        "first": federation.first,
        "frozen": _frozen(federation),
        "buffers": federation.buffers,
        "shared": federation.shared,
        "optimizer": federation.optimizer.state_dict(),
        "slot": federation.store.slot,
        "retained": dict(federation.store.retained),
    }


def restore(federation: "Federation", state: dict[str, Any]) -> None:
    """Go on from a snapshot.

    Raises:
        ValueError: If it is of another model, number of clients, algorithm, data, precision, or of
            a later round, or clients' states are not there any more.
    """
    _check(federation, state)
    federation.store.restore(state["slot"], state["retained"])
    device = federation.w.device
    with torch.no_grad():
        federation.w.copy_(state["w"])
        for name, parameter in _frozen(federation).items():
            parameter.copy_(state["frozen"][name])
    federation.first = state["first"].to(device)
    federation.buffers = {k: b.to(device) for k, b in state["buffers"].items()}
    federation.shared = [{k: t.to(device) for k, t in s.items()} for s in state["shared"]]
    federation.optimizer.load_state_dict(state["optimizer"])
    federation.round = state["round"]


def _check(federation: "Federation", state: dict[str, Any]) -> None:
    if missing := sorted(_everything(federation).keys() - state.keys()):
        raise ValueError(
            f"the checkpoint, of another version of this package, lacks {missing}: start the run anew"
        )
    theirs = state["w"].numel(), len(state["slot"]), state["terms"]
    mine = federation.w.numel(), federation.clients.num_clients, _terms(federation)
    if theirs != mine:
        raise ValueError(
            "this run has another model, number of clients or algorithm than the checkpoint, which holds {} "
            "parameters, {} clients and terms {}; this run has {}, {} and {}".format(*theirs, *mine)
        )
    there, here = (
        _untrained(state["frozen"], state["buffers"]),
        _untrained(_frozen(federation), federation.buffers),
    )
    if there != here:
        raise ValueError(
            f"this run has another model than the checkpoint: {min(there ^ here)[0]}, which is not trained, is not in "
            "both with one shape"
        )
    data, precision = federation.clients.digest, federation.fabric.strategy.precision.precision
    if state["data"] != data or state["precision"] != precision:
        raise ValueError(
            f"the checkpoint is of data {state['data']} at precision {state['precision']}, this run has data "
            f"{data} at {precision}: resume with the same data, partition and precision"
        )
    if federation.cost.has_horizon and state["rounds"] != federation.rounds:
        raise ValueError(
            f"the checkpoint is of a run of {state['rounds']} rounds, this one has {federation.rounds}, and "
            f"{federation.algorithm} depends on that number: resume with as many"
        )
    if state["round"] > federation.rounds:
        raise ValueError(
            f"the checkpoint is of round {state['round']}, this run ends with {federation.rounds}: name more"
        )


def _frozen(federation: "Federation") -> dict[str, Tensor]:
    """The model's parameters that are not in `w`."""
    trained = set(federation.layout.names)
    return {
        name: p.detach() for name, p in federation.module.named_parameters() if name not in trained
    }


def _untrained(
    frozen: dict[str, Tensor], buffers: dict[str, Tensor]
) -> set[tuple[str, tuple[int, ...]]]:
    """Names and shapes."""
    return {(name, tuple(tensor.shape)) for name, tensor in [*frozen.items(), *buffers.items()]}


def _terms(federation: "Federation") -> list[str]:
    """The terms and their states' names: in what a checkpoint of another algorithm differs."""
    return [
        f"{type(t).__name__}({', '.join([*t.client, *t.server])})"
        for t in federation.algorithm.terms
    ]
