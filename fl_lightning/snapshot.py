"""What a federation needs to go on later, as plain tensors and numbers; the rows of its client store lie on disk."""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fl_lightning.federation import Federation


def snapshot(federation: "Federation") -> dict[str, Any]:
    """Everything that `restore` needs, except the rows of the client store."""
    return {
        "terms": _terms(federation),
        "data": federation.clients.digest,
        "precision": federation.fabric.strategy.precision.precision,
        "round": federation.round,
        "rounds": federation.rounds,
        "w": federation.w.detach(),
        "first": federation.first,
        "buffers": federation.buffers,
        "shared": federation.shared,
        "optimizer": federation.optimizer.state_dict(),
        "place": federation.store.place,
    }


def restore(federation: "Federation", state: dict[str, Any]) -> None:
    """Go on from a snapshot.

    Raises:
        ValueError: If it is of another model, number of clients, algorithm, data, precision, or of a later round.
    """
    _check(federation, state)
    device = federation.w.device
    with torch.no_grad():
        federation.w.copy_(state["w"])
    federation.first = state["first"].to(device)
    federation.buffers = {k: b.to(device) for k, b in state["buffers"].items()}
    federation.shared = [{k: t.to(device) for k, t in s.items()} for s in state["shared"]]
    federation.optimizer.load_state_dict(state["optimizer"])
    federation.store.restore(state["place"])
    federation.round = state["round"]


def _check(federation: "Federation", state: dict[str, Any]) -> None:
    theirs = state["w"].numel(), len(state["place"]), state["terms"]
    mine = federation.w.numel(), federation.clients.num_clients, _terms(federation)
    if theirs != mine:
        raise ValueError(
            "this run has another model, number of clients or algorithm than the checkpoint, which holds {} "
            "parameters, {} clients and terms {}; this run has {}, {} and {}".format(*theirs, *mine)
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


def _terms(federation: "Federation") -> list[str]:
    """The terms and their states' names: in what a checkpoint of another algorithm differs."""
    return [f"{type(t).__name__}({', '.join([*t.client, *t.server])})" for t in federation.algorithm.terms]
