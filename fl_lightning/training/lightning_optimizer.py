"""The optimizer of a LightningModule, as a client's."""

from functools import partial
from inspect import Parameter, signature
from typing import Any, cast

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fl_lightning.core.algorithm import LocalFactory
from fl_lightning.core.curves import OfRound
from fl_lightning.errors import ModelError, first_sentence
from fl_lightning.optim import GradientTransform
from fl_lightning.training.call_texts import SIMPLE, call_text
from fl_lightning.training.lightning_scheduler import schedule
from fl_lightning.training.parameter_groups import ByGroup, groups_of


def local_optimizer(module: LightningModule, rounds: int) -> tuple[LocalFactory, OfRound, str]:
    """The client's optimizer that `configure_optimizers` gives, its learning rates, and its text.

    The text has the options that are not defaults, such as `SGD(lr=0.1), StepLR(step_size=30)`.

    Raises:
        ModelError: If there is none, or more than one optimizer or scheduler; if the optimizer does
            not take all trainable parameters, takes others, cannot be made anew, or has rules for
            single layers; or for a scheduler that does not fit (see `schedule`).
    """
    name = type(module).__name__
    optimizer, scheduler = _configured(name, cast(Any, module.configure_optimizers()))
    groups, kind = optimizer.param_groups, type(optimizer)
    _check_taken(module, [p for group in groups for p in group["params"]])
    options = [_options(optimizer, group) for group in groups]
    kept = _attributes(optimizer, partial(kind, **options[0]))
    texts = [call_text(kind, own | kept) for own in options]
    first, *further = differ = groups_of(module, texts, options, [g["params"] for g in groups])
    local: LocalFactory = partial(kind, **first.options)
    local = partial(_with, local, kept) if kept else local
    _check_one_vector(name, kind.__name__, local)
    text = first.text
    if further:
        local = partial(ByGroup, local=local, groups=differ)
        text = ", ".join(f"{group.text} of {group.size} numbers" for group in differ)
    number = texts.index(first.text)
    if not scheduler:
        rate = float(groups[number]["lr"])
        return local, lambda *_: rate, text
    lr, of_scheduler = schedule(name, optimizer, number, scheduler, rounds)
    return local, lr, f"{text}, {of_scheduler}"


def is_plain_sgd(local: LocalFactory) -> bool:
    """Whether an optimizer moves by the learning rate times the direction."""
    made = local([nn.Parameter(torch.zeros(1))])
    options = made.param_groups[0]
    return isinstance(made, SGD) and not (options["momentum"] or options["weight_decay"])


def _configured(name: str, given: Any) -> tuple[Optimizer, dict[str, Any]]:
    """What `configure_optimizers` gave: an optimizer, and Lightning's options of its scheduler."""
    if len(listed := _listed(given)) == 1:
        (given,) = listed
    monitor = given.get("monitor") if isinstance(given, dict) else None
    if isinstance(given, dict):
        given = [given["optimizer"]], given.get("lr_scheduler") or []
    pair = (
        isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], list | tuple)
    )
    optimizers, schedulers = map(_listed, given if pair else (given, []))
    if not (len(optimizers) == 1 and isinstance(optimizers[0], Optimizer)):
        found = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
        raise ModelError(
            f"{name}.configure_optimizers returned {found}: return one optimizer, or give lr="
        )
    kind = type(optimizers[0]).__name__
    if isinstance(optimizers[0], GradientTransform):
        raise ModelError(
            f"{name}.configure_optimizers returned {kind}, which wraps another optimizer: return "
            'that one, and let the algorithm perturb, as {"name": "fedavg", "perturb": "sam"} does'
        )
    if "lr" not in _accepted(type(optimizers[0])):
        raise ModelError(
            f"{name}.configure_optimizers returned {kind}, which takes no argument lr, so no "
            "client can make its own: return another one, or give lr="
        )
    if len(schedulers) > 1:
        raise ModelError(
            f"{name}.configure_optimizers has several schedulers: return one, or give lr="
        )
    (one,) = schedulers or [{}]
    one = one if isinstance(one, dict) else {"scheduler": one}
    return optimizers[0], {"monitor": monitor} | one if one else {}


def _check_taken(module: LightningModule, parameters: list[Tensor]) -> None:
    """Raise a ModelError unless they are all trainable ones of the module, and no others'."""
    name, taken = type(module).__name__, {*map(id, parameters)}
    if taken - {*map(id, module.parameters())}:
        raise ModelError(
            f"{name}.configure_optimizers takes a parameter that is no part of {name}, so that no "
            "client would train it: put its module into an nn.ModuleList"
        )
    left = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in taken]
    if left:
        raise ModelError(
            f"{name}.configure_optimizers leaves out {left[0]}, but a client trains all that is "
            "trainable: freeze it by requires_grad_(False), or give lr="
        )


def _options(optimizer: Optimizer, group: dict[str, Any]) -> dict[str, Any]:
    """The options of a group that the optimizer's class takes."""
    options = {k: group[k] for k in optimizer.defaults}
    options["lr"] = group.get("initial_lr", group["lr"])  # which a scheduler has multiplied
    accepted = _accepted(type(optimizer))
    return {k: v for k, v in options.items() if k in accepted}


def _listed(given: Any) -> list[Any]:
    """One or several, as Lightning takes optimizers and schedulers, in a list."""
    return [*given] if isinstance(given, list | tuple) else [given]


def _accepted(kind: type[Optimizer]) -> set[str]:
    """The names of the arguments of a class, also of those that it passes on."""
    names = set[str]()
    for base in kind.__mro__:
        parameters = signature(base).parameters
        names |= parameters.keys()
        if Parameter.VAR_KEYWORD not in {p.kind for p in parameters.values()}:
            break
    return names


def _attributes(optimizer: Optimizer, local: LocalFactory) -> dict[str, Any]:
    """Options that an optimizer keeps as attributes of its own, where a new one has others."""
    fresh = vars(local(optimizer.param_groups[0]["params"]))
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name in fresh and isinstance(value, SIMPLE) and value != fresh[name]
    }


def _with(local: LocalFactory, attributes: dict[str, Any], parameters: Any) -> Optimizer:
    made = local(parameters)
    vars(made).update(attributes)
    return made


def _check_one_vector(name: str, kind: str, local: LocalFactory) -> None:
    """Raise a ModelError unless the optimizer steps one vector as it steps its parts.

    Clients' weights are one vector. Adafactor, LARS, Muon and other rules for single layers would
    take it for one layer.
    """
    instead = "use an elementwise one such as AdamW, a method such as local_muon, or give lr="
    g = torch.Generator().manual_seed(0)
    shapes = (3, 4), (2, 2, 3, 3), (5,)
    parts = [1e-2 * torch.randn(shape, generator=g) for shape in shapes]
    gradients = [[10.0**-k * torch.randn(shape, generator=g) for shape in shapes] for k in range(3)]

    def after(seed: int, whole: bool) -> Tensor:
        def given(tensors: list[Tensor]) -> list[Tensor]:
            return [torch.cat([t.flatten() for t in tensors])] if whole else tensors

        parameters = [nn.Parameter(t.clone()) for t in given(parts)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            optimizer = local(parameters)
            for step in gradients:
                for p, gradient in zip(parameters, given(step), strict=True):
                    p.grad = gradient.clone()
                optimizer.step()
        return torch.cat([p.detach().flatten() for p in parameters])

    try:
        vector = after(0, whole=True)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(
            f"{kind} of {name} cannot step a client's weights, which are one vector "
            f"({first_sentence(error)}): {instead}"
        ) from error
    if not vector.equal(after(1, whole=True)):
        return  # it draws random numbers
    moved = (vector - torch.cat([t.flatten() for t in parts])).abs().max()
    if (vector - after(0, whole=False)).abs().max() > 0.01 * moved + 1e-8:
        raise ModelError(
            f"{kind} of {name} steps each layer by its shape, but a client's weights are one "
            f"vector: {instead}"
        )
