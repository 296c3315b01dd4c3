"""Checks of settings, ranks and optimizers."""

from collections.abc import Sequence
from inspect import signature
from numbers import Integral
from textwrap import shorten
from typing import get_args

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.guarded_term import check_declaration
from fl_lightning.core.losses import (
    LabelsLoss,
    TaskLoss,
    cross_entropy,
    is_mean_cross_entropy,
    own_loss,
)
from fl_lightning.core.network import class_name
from fl_lightning.core.term import Term
from fl_lightning.core.vector import Layout, Part
from fl_lightning.data import ClientData
from fl_lightning.distributed.collectives import ranks_where
from fl_lightning.errors import ModelError, UserError
from fl_lightning.federation.divergence import OnDivergence
from fl_lightning.federation.sampling import ClientSampler
from fl_lightning.optim import check_minimizes

PRECISIONS = "32-true", "bf16-mixed"
"""Fabric's precisions that keep weights, duals and averages in the module's dtype."""


def freeze_others(module: nn.Module, trained: Part | None) -> list[str]:
    """Freeze the parameters that are not of the part that is trained, if there is one.

    Returns their names; a ModelError if nothing would be left to train.
    """
    if trained is None:
        return []
    layout = Layout(module)
    others = [name for name in layout.names if not layout.has(trained, name)]
    if len(others) == len(layout.names):
        why = "is all head" if trained == "body" else f"has no parameter of the part {trained!r}"
        raise ModelError(
            f"{class_name(module)} {why}, and the algorithm trains the part {trained!r} alone: "
            "choose another model, or another algorithm"
        )
    for name in others:
        module.get_parameter(name).requires_grad_(False)
    return others


def check_personal_part(term: Term, layout: Layout) -> None:
    """Raise a UserError unless clients keep some parameters, and share others if a term sends."""
    own = [term.keeps is not None and layout.has(term.keeps, name) for name in layout.names]
    sends = type(term).send is not Term.send
    if term.keeps is None or (any(own) and not (sends and all(own))):
        return
    held = "all parameters are" if any(own) else "the model has no parameter"
    raise UserError(
        f"{held} of the part {term.keeps!r} that each client keeps for itself: choose another "
        "part, or another model"
    )


def check_lora(term: Term, layout: Layout) -> None:
    """Raise a UserError if a term needs LoRA layers, and the model has none, or other adapters."""
    trained = all({layer.A, layer.B} <= {*layout.names} for layer in layout.lora)
    if term.needs_lora and not (layout.lora and trained):
        lacks = "has LoRA layers that do not train" if layout.lora else "has no LoRA layers"
        raise UserError(
            f"{type(term).__name__} averages LoRA layers, and the model {lacks}: choose one with "
            "peft's, such as --model huggingface --model.lora_rank 8"
        )
    known = {name.rpartition(".")[0] for layer in layout.lora for name in (layer.A, layer.B)}
    others = [n for n in layout.names if "lora_" in n and n.rpartition(".")[0] not in known]
    if term.needs_lora and others:
        raise UserError(
            f"{type(term).__name__} averages LoRA layers, and {others[0]} is of another kind: "
            "adapt linear layers and ungrouped convolutions alone, without DoRA"
        )


def check_loss(term: Term, loss: TaskLoss) -> None:
    """Raise a UserError if a term needs the cross entropy, and the task has another loss."""
    own = loss is own_loss or isinstance(loss, LabelsLoss)  # which only its module knows
    if term.needs_cross_entropy and not (own or is_mean_cross_entropy(loss)):
        raise UserError(
            f"{type(term).__name__} changes the scores in a cross entropy without weights or "
            f"smoothing, and the loss is {getattr(loss, '__name__', type(loss).__name__)}: give "
            "loss='cross_entropy', or choose another method"
        )


def check_terms(algorithm: Algorithm, layout: Layout, loss: TaskLoss = cross_entropy) -> None:
    """Raise a UserError for a term that is declared wrongly, or does not fit model and loss."""
    for term in algorithm.terms:
        check_declaration(term)
        check_personal_part(term, layout)
        check_lora(term, layout)
        check_loss(term, loss)


def check_settings(fabric: Fabric, on_divergence: str, sampler: ClientSampler) -> None:
    """Raise a UserError unless a federation can be made of these."""
    if on_divergence not in get_args(OnDivergence):
        choices = ", ".join(get_args(OnDivergence))
        raise UserError(f"on_divergence is one of {choices}, not {on_divergence!r}")
    precision = fabric.strategy.precision.precision
    if precision not in PRECISIONS:
        raise UserError(
            f"precision {precision} is not supported: choose {' or '.join(PRECISIONS)}, and "
            "module.double() for 64 bits"
        )
    parameters = signature(sampler)
    given = {"federation": None} if "federation" in parameters.parameters else {}
    try:
        parameters.bind(1, 0, 0, **given)
    except TypeError as error:
        raise UserError(
            f"the sampler {getattr(sampler, '__qualname__', sampler)}{parameters} cannot be called "
            f"({error}): it gets (num_clients, seed, round), and `federation` if it has that"
        ) from None


def check_optimizers(algorithm: Algorithm, w: Tensor) -> None:
    """Raise an error unless both optimizers minimize, and step on a vector like `w` in place."""
    for make in (algorithm.local, algorithm.server):
        vector = nn.Parameter(w.clone())
        vector.grad, optimizer, place = torch.ones_like(w), make([vector]), vector.data_ptr()
        optimizer.step()
        check_minimizes(optimizer)
        if vector.data_ptr() != place:
            raise UserError(
                f"{type(optimizer).__name__} replaces the data of its parameter: "
                "change it in place, as p.sub_(...) under torch.no_grad()"
            )


def check_one_rate(algorithm: Algorithm, w: Tensor) -> None:
    """Raise a UserError if a constant gradient moves the weights of a vector differently."""
    optimizer = algorithm.local([nn.Parameter(w.clone())])
    if option := getattr(optimizer, "uneven", ""):
        raise UserError(
            f"the algorithm counts on one learning rate of all weights, but parameter groups of "
            f"the clients' optimizer differ in {option}: let them differ in weight_decay alone, "
            "choose a method such as fedavg, or give lr="
        )


def sync_ranks(fabric: Fabric, module: nn.Module, clients: ClientData) -> None:
    """Broadcast the first rank's model, and raise a UserError if a rank has other data."""
    for rank in ranks_where(fabric, clients.digest != fabric.broadcast(clients.digest)):
        raise UserError(
            f"rank {rank} has other data, or another partition, than the first rank: seed every "
            "generator that loads or splits data, equally on all ranks"
        )
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            # From the CPU, or every rank would allocate on the first GPU.
            tensor.copy_(fabric.broadcast(tensor.detach().cpu()))


def check_cohort(
    cohort: Sequence[int], clients: ClientData, sampler: ClientSampler, position: str
) -> None:
    """Raise a UserError unless a cohort of this sampler has each client once, ascending."""
    last = clients.num_clients - 1
    # a tensor would name other draws than an int
    whole = isinstance(cohort, Sequence) and all(isinstance(i, Integral) for i in cohort)
    each_once = whole and [*cohort] == sorted({*cohort})
    there = each_once and all(0 <= client <= last for client in cohort)
    if not there or not (cohort or getattr(sampler, "may_be_empty", False)):
        name = getattr(sampler, "__qualname__", sampler)
        raise UserError(
            f"{position}: {name} gave the cohort {shorten(repr(cohort), 60)}: return a list of "
            f"at least one whole number of 0 to {last}, each once, ascending"
        )
