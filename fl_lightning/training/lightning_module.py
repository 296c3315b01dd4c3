"""A LightningModule as the model of a federation: its `training_step` is the loss."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from math import nan
from typing import Any, Literal

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from fl_lightning.callbacks.metrics import computed
from fl_lightning.core.losses import StepOutput, one_number
from fl_lightning.data.libraries import defines
from fl_lightning.errors import ModelError, first_sentence
from fl_lightning.training.lightning_hooks import check_hooks, is_lightning
from fl_lightning.training.stand_in import Logged, StandIn, distinct, logged, total

Part = Literal["validation", "test"]


class StepModel(nn.Module):
    """A LightningModule whose `forward` is its `training_step`.

    It shares the module's dictionaries of parameters, buffers and children, so that names are the
    module's, and `functional_call` reaches it. It returns a `StepOutput`.

    Attributes:
        lightning_module: The module, which optimizes automatically.
        logs: The names of the numbers that each training step logs; None before the first one.
        still: The parts that are in evaluation mode while the module trains, as they were given.
        rests: Whether a training step has called a metric, which is not updated there.
        logs_loss: Whether it has logged train/loss, which is the federation's own number.
        anew: A metric that a Trainer lets count on over epochs, but is reset here; empty if none.
        metrics_by_name: The metrics that steps of evaluation have logged.

    Raises:
        ModelError: If it overrides a hook that no federation calls, has no `training_step`, or
            optimizes by hand.
    """

    lightning_module: LightningModule

    def __init__(self, module: LightningModule):
        super().__init__()
        check_hooks(module)
        name = type(module).__name__
        if not defines(module, "training_step"):
            raise ModelError(f"{name} has no training_step: write one that returns the loss")
        if not module.automatic_optimization:
            raise ModelError(f"{name} optimizes by hand: leave automatic_optimization at True")
        for shared in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
            self.__dict__[shared] = getattr(module, shared)
        self.__dict__["lightning_module"] = module
        self.logged = dict[str, Logged]()
        self.logs: Sequence[str] | None = None
        self.rests, self.metrics_by_name = False, dict[str, Metric]()
        self.anew, self.logs_loss = "", False
        self.stand_in = StandIn(module)
        parts = module.modules() if module.training else ()  # else it was only scored before
        self.still = [part for part in parts if not part.training]

    @property
    def head(self) -> str | None:
        """The name of the module's head, if it gives one (see `Layout`)."""
        return getattr(self.lightning_module, "head", None)

    def train(self, mode: bool = True) -> "StepModel":
        """Set the mode of the module, but for parts that stay in evaluation as in a Trainer."""
        self.lightning_module.train(mode)
        for part in self.still:
            part.training = False
        self.training = mode
        return self

    def receive_facts(self, facts: Mapping[str, Any]) -> None:
        """Let `self.current_epoch` be the round of these facts of a visit."""
        self.stand_in.current_epoch = facts["round"]

    def forward(self, batch: Any) -> StepOutput:
        """The loss of a batch, the output of the module's own `forward`, and what it logs."""
        module, self.logged = self.lightning_module, {}
        self.stand_in.enter("training")
        with (
            _metrics_at_rest(module) as of_metrics,
            _heard(module) as seen,
            nullcontext() if self.training else _in_evaluation(type(module).__name__),
        ):
            result = _step(module.training_step, self._transferred(batch), 0)
        if self.stand_in.should_stop:
            raise ModelError(
                f"{type(module).__name__}.training_step sets self.trainer.should_stop, but no "
                "client ends a run: set it in a step or hook of validation"
            )
        returned = result.get("loss") if isinstance(result, dict) else result
        if isinstance(returned, Tensor) and returned.numel() == 1:
            returned = returned.reshape(())  # which is backward()'s own rule
        loss = one_number(returned, f"{type(module).__name__}.training_step", ModelError)
        numbers = {
            name: torch.as_tensor(of.value)
            for name, of in self.logged.items()
            if not any(of.value is one for one in of_metrics)
        }
        for name in numbers:
            if (reduction := self.logged[name].reduction) != "mean":
                raise ModelError(
                    f"{type(module).__name__}.training_step logs {name!r} with reduce_fx="
                    f"{reduction!r}, but of a client's steps there is a mean: leave it out"
                )
        self.logged = {}  # values have graphs, which a copy of the module must not
        logs = {k: v.detach().to(loss).reshape(()) for k, v in numbers.items()}
        self.rests = self.rests or bool(of_metrics)
        if self.training:  # not in a reference pass, whose numbers nobody takes
            self.logs = distinct(logs) if self.logs is None else self.logs
            if changed := logs.keys() ^ {*self.logs}:
                raise ModelError(
                    f"{type(module).__name__}.training_step logs {min(changed)!r} in some steps "
                    "alone, but of a client there is a mean over all its steps: log it in each"
                )
            logs = {name: logs[name] for name in self.logs}
        return StepOutput(loss, seen[-1] if seen else None, logs)

    def has(self, part: Part) -> bool:
        """Whether the module has the step of this part."""
        return defines(self.lightning_module, f"{part}_step")

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[int, Any]], part: Part) -> dict[str, float]:
        """Run the step of a part on pairs of size and batch; returns what it logs.

        Numbers are averaged by size, or reduced as `self.log` asks; metrics are computed at the
        end. The hooks of an epoch and of its batches are called as in a Trainer.
        """
        self.eval()
        self.stand_in.enter(part)
        module, totals = self.lightning_module, dict[tuple[str, str], list[tuple[float, int]]]()
        found, metrics, self.logged = dict[str, float](), dict[str, Metric](), {}
        for metric in _metrics(module):
            metric.distributed_available_fn = bool  # False: every rank sees all batches
            metric.reset()

        def call(moment: str, *given: Any) -> None:
            getattr(module, f"on_{part}_{moment}")(*given)

        call("start")
        call("epoch_start")
        for k, (size, given) in enumerate(batches):
            batch = self._transferred(given)
            call("batch_start", batch, k)
            result = _step(getattr(module, f"{part}_step"), batch, k)
            call("batch_end", result, batch, k)
            found |= dict.fromkeys(self.logged, nan)  # in the order of the step: the first counts
            for name, one in self.logged.items():
                if isinstance(one.value, Metric):
                    metrics[name] = one.value
                else:
                    weight = size if one.size is None else one.size
                    of_batch = float(one.value), weight
                    totals.setdefault((name, one.reduction), []).append(of_batch)
            self.logged = {}
        call("epoch_end")
        call("end")
        ends = {name: of.value for name, of in self.logged.items()}
        found |= {name: total(reduction, of) for (name, reduction), of in totals.items()}
        self.metrics_by_name |= metrics | {k: v for k, v in ends.items() if isinstance(v, Metric)}
        for name, value in (metrics | ends).items():
            found[name] = computed(value) if isinstance(value, Metric) else float(value)
        of_trainer = [one for one in (metrics | ends).values() if isinstance(one, Metric)]
        reset = {part for one in of_trainer for part in one.modules()}
        for name, one in module.named_modules():
            if isinstance(one, Metric) and one._computed is not None and one not in reset:
                self.anew = self.anew or name
        for metric in _metrics(module):
            metric.reset()
        return found

    def _transferred(self, batch: Any) -> Any:
        """A batch as the module's hooks of its transfer to the device make it."""
        module = self.lightning_module
        return module.on_after_batch_transfer(module.on_before_batch_transfer(batch, 0), 0)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Stand in for the module's Trainer: its logs come here, `current_epoch` is the round."""
        inner, ours = self.lightning_module, {"log": self._log, "log_dict": self._log_dict}
        # a callback may score the module while it trains: then these are of the fit around
        before = {name: vars(inner)[name] for name in ("_trainer", *ours) if name in vars(inner)}
        inner.__dict__ |= ours
        inner._trainer = self.stand_in  # type: ignore[assignment]
        try:
            yield
        finally:
            del inner.__dict__["log"], inner.__dict__["log_dict"]
            inner.__dict__ |= before
            self.logged = {}

    def _log(self, name: str, value: Any, *given: Any, **options: Any) -> None:
        kind, own = type(self.lightning_module).__name__, _metrics(self.lightning_module)
        if isinstance(value, Metric) and not any(value is metric for metric in own):
            raise ModelError(
                f"{kind} logs {name!r}, a metric that is no part of it, so nobody resets it: make "
                "it an attribute, or an entry of an nn.ModuleDict"
            )
        if self.stand_in.training and isinstance(value, Metric):
            return  # it rests
        if self.stand_in.training and name == "train/loss":
            self.logs_loss = True
            return
        self.logged[name] = logged(kind, name, value, *given, **options)

    def _log_dict(self, values: Mapping[str, Any], *given: Any, **options: Any) -> None:
        for name, value in values.items():
            self._log(name, value, *given, **options)


def _step(step: Callable[..., Any], batch: Any, index: int) -> Any:
    """Call a step, which may leave out the index of the batch."""
    function = getattr(step, "__func__", step)  # without the module, which a cache would keep
    return step(batch, index) if _takes_index(function) else step(batch)


_takes_index = lru_cache(partial(is_param_in_hook_signature, param="batch_idx", min_args=2))


@contextmanager
def _in_evaluation(kind: str) -> Iterator[None]:
    """Say of an error that the step has run in evaluation mode, as in no Trainer."""
    try:
        yield
    except (torch.OutOfMemoryError, ModelError):
        raise
    except Exception as error:
        raise ModelError(
            f"{kind}.training_step fails in evaluation mode, in which this method or a callback "
            f"runs it ({type(error).__name__}: {first_sentence(error)}): choose another"
        ) from error


def _metrics(module: nn.Module) -> list[Metric]:
    return [m for m in module.modules() if isinstance(m, Metric)]


@contextmanager
def _heard(module: nn.Module) -> Iterator[list[Any]]:
    """Give what `forward` returns, which a forward hook does not hear of `self.forward(x)`."""
    own, forward, seen = vars(module), module.forward, list[Any]()
    before = {name: own[name] for name in ("forward",) if name in own}

    def heard(*given: Any, **named: Any) -> Any:
        seen.append(forward(*given, **named))
        return seen[-1]

    own["forward"] = heard
    try:
        yield seen
    finally:
        del own["forward"]
        own |= before


@contextmanager
def _metrics_at_rest(module: nn.Module) -> Iterator[list[Tensor]]:
    """Do not update metrics, whose sums outside of the step parallel clients cannot keep.

    Gives what they return instead of values.
    """
    collections = [m for m in module.modules() if isinstance(m, MetricCollection)]
    parts, returned = [*_metrics(module), *collections], list[Tensor]()
    before = [vars(part).copy() for part in parts]

    def no_value(*_: Any, **__: Any) -> Tensor:
        returned.append(torch.full((), torch.nan))
        return returned[-1]

    for part in parts:
        vars(part)["update"] = no_value  # a collection takes metrics of equal sums for one
        if isinstance(part, Metric):
            vars(part)["forward"] = vars(part)["compute"] = no_value
    try:
        yield returned
    finally:
        for part, kept in zip(parts, before, strict=True):
            vars(part).clear()
            vars(part).update(kept)


def set_up(module: nn.Module, stage: str = "fit") -> None:
    """Let a LightningModule make its parts, as a Trainer does before training and scoring."""
    if is_lightning(module):
        with StepModel(module).attached():
            module.setup(stage)
            module.configure_model()
            if stage == "fit":
                module.on_fit_start()
                module.on_train_start()
