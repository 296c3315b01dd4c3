"""The optimizer and the scheduler of a LightningModule, as a client's; and objects as texts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any, cast

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from fl_lightning.core.algorithm import LocalFactory
from fl_lightning.core.curves import OfRound
from fl_lightning.errors import ModelError, first_sentence
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.optim import GradientTransform

SIMPLE = bool, int, float, str, tuple, type(None)
"""The values of options that are copied and shown."""


@dataclass(eq=False)
class Plateau:
    """The learning rate of the round to come, and the callback that steps a ReduceLROnPlateau.

    A round that does not record the score `monitor` leaves the rate.
    """

    scheduler: ReduceLROnPlateau
    frequency: int
    monitor: str
    strict: bool

    def __call__(self, round: int, rounds: int) -> float:
        """The rate as it is now."""
        return float(self.scheduler.optimizer.param_groups[0]["lr"])

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        """Take a step with the first rank's score, unless a run of more rounds has none here."""
        recorded = metrics.keys() - federation.last_only
        if self.monitor in recorded and federation.round % self.frequency == 0:
            self.scheduler.step(federation.fabric.broadcast(metrics[self.monitor]))

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's, which has the rate."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the scheduler and its rate."""
        self.scheduler.load_state_dict(state)
        self.scheduler.optimizer.param_groups[0]["lr"] = self.scheduler.get_last_lr()[0]


def local_optimizer(module: LightningModule, rounds: int) -> tuple[LocalFactory, OfRound, str]:
    """The client's optimizer that `configure_optimizers` gives, its learning rates, and its text.

    A scheduler is run ahead, one step a round, unless it waits for a score (see `Plateau`). The
    text has the options that are not defaults, such as `SGD(lr=0.1), StepLR(step_size=30)`.

    Raises:
        ModelError: If there is none, or more than one optimizer, group or scheduler; if it does not
            take all trainable parameters, takes others, cannot be made anew, or has rules for
            single layers; or if the scheduler changes more than the rate, or waits for no score.
    """
    name, given = type(module).__name__, cast(Any, module.configure_optimizers())
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
    optimizer = optimizers[0]
    kind, accepted = type(optimizer).__name__, _accepted(type(optimizer))
    if isinstance(optimizer, GradientTransform):
        raise ModelError(
            f"{name}.configure_optimizers returned {kind}, which wraps another optimizer: return "
            'that one, and let the algorithm perturb, as {"name": "fedavg", "perturb": "sam"} does'
        )
    if "lr" not in accepted:
        raise ModelError(
            f"{name}.configure_optimizers returned {kind}, which takes no argument lr, so no "
            "client can make its own: return another one, or give lr="
        )
    if len(optimizer.param_groups) > 1 or len(schedulers) > 1:
        raise ModelError(
            f"{name}.configure_optimizers has several parameter groups or schedulers: a client's "
            "optimizer has one; or give lr="
        )
    taken = {id(p) for p in optimizer.param_groups[0]["params"]}
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
    settings = {k: v for k, v in optimizer.param_groups[0].items() if k in optimizer.defaults}
    group = optimizer.param_groups[0]
    settings["lr"] = group.get("initial_lr", group["lr"])  # which a scheduler has multiplied
    settings = {k: v for k, v in settings.items() if k in accepted}
    local = partial(type(optimizer), **settings)
    kept = _attributes(optimizer, local)
    local = partial(_with, local, kept) if kept else local
    _check_one_vector(name, kind, local)
    options = _options(name, schedulers or [LambdaLR(optimizer, lambda _: 1.0)], monitor)
    one, frequency = options["scheduler"], options["frequency"]
    texts = [call_text(type(optimizer), settings | kept)]
    texts += [call_text(type(one), group | _public(one))] if schedulers else []  # has max_lr there
    texts += [f"frequency={frequency}"] if frequency != 1 else []
    if isinstance(one, ReduceLROnPlateau):
        texts += [f"monitor={options['monitor']!r}"]
        plateau = Plateau(one, frequency, options["monitor"], options["strict"])
        return local, plateau, ", ".join(texts)
    lrs = _rates(name, optimizer, options, rounds)
    return local, lambda t, _: lrs[min(t, rounds - 1)], ", ".join(texts)


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


def _options(name: str, schedulers: Sequence[Any], monitor: Any) -> dict[str, Any]:
    """The scheduler with Lightning's options for it."""
    (one,) = schedulers
    options = {"interval": "epoch", "frequency": 1, "monitor": monitor, "strict": True}
    options |= one if isinstance(one, dict) else {"scheduler": one}
    if options["interval"] != "epoch":
        raise ModelError(
            f"the scheduler of {name} has another interval than one epoch: a federation takes one "
            "step a round; leave out interval"
        )
    if isinstance(options["scheduler"], ReduceLROnPlateau) and options["monitor"] is None:
        raise ModelError(
            f"the ReduceLROnPlateau of {name} has no monitor: return {{'optimizer': optimizer, "
            "'lr_scheduler': scheduler, 'monitor': 'val_loss'}, with a name that a step logs"
        )
    return options


def _rates(name: str, optimizer: Optimizer, options: dict[str, Any], rounds: int) -> list[float]:
    optimizer.zero_grad(set_to_none=True)  # or steps would move the module's weights
    (group,), rates = optimizer.param_groups, list[float]()
    before = {k: v for k, v in group.items() if k not in ("params", "lr")}
    for round in range(1, rounds + 1):
        rates.append(float(group["lr"]))
        if changed := [k for k, v in before.items() if group[k] != v]:
            raise ModelError(
                f"the scheduler of {name} changes {changed[0]} too, but a federation takes the "
                "learning rate of it alone: leave that out, as by cycle_momentum=False"
            )
        try:
            optimizer.step()
            if round % options["frequency"] == 0:
                options["scheduler"].step()
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"optimizer or scheduler of {name} cannot take {rounds} steps ahead "
                f"({first_sentence(error)}): use others, or give lr="
            ) from error
    return rates


def call_text(kind: Any, options: Mapping[str, Any]) -> str:
    """A call of a class or function with those options that are no defaults.

    Example:
        >>> import torch
        >>> call_text(torch.optim.SGD, {"lr": 0.1, "momentum": 0})
        'SGD(lr=0.1)'
    """
    defaults = {p.name: _plain(p.default) for p in signature(kind).parameters.values()}
    given = {name: _plain(value) for name, value in options.items()}
    shown = [
        f"{k}={v!r}"
        for k, v in given.items()
        if k in defaults and k != "last_epoch" and isinstance(v, SIMPLE)
        if v not in (defaults[k], (defaults[k],))  # of the one group
    ]
    return f"{kind.__name__}({', '.join(shown)})"


def _plain(value: Any) -> Any:
    """A tensor as a number, or as a tuple of its numbers; functions and schedulers as texts."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else tuple(value.flatten().tolist())
    if isinstance(value, Counter):  # the milestones of MultiStepLR
        value = sorted(value.elements())
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if callable(value):
        return loss_text(value)
    return call_text(type(value), _public(value)) if isinstance(value, LRScheduler) else value


def _public(scheduler: Any) -> dict[str, Any]:
    """The attributes of a scheduler by the names of its arguments, such as max_lr of max_lrs."""
    own = {name.lstrip("_"): value for name, value in vars(scheduler).items()}
    return own | {name.removesuffix("s"): value for name, value in own.items()}


def loss_text(loss: Any) -> str:
    """The name of a loss, with its options if it is a module or a partial function.

    Example:
        >>> loss_text(nn.CrossEntropyLoss(label_smoothing=0.1))
        'CrossEntropyLoss(label_smoothing=0.1)'
    """
    if isinstance(loss, nn.Module):
        return call_text(type(loss), vars(loss) | dict(loss.named_buffers()))
    if isinstance(loss, partial) and hasattr(loss.func, "__name__"):
        return call_text(loss.func, loss.keywords)
    return getattr(loss, "__name__", type(loss).__name__)
