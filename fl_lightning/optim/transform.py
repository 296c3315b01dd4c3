"""GradientTransform: an optimizer that steps with a function of its gradient oracle."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning.core.oracle import TASK_LOSS, BatchOracle, Oracle, Request
from fl_lightning.core.vector import cloned, copy
from fl_lightning.errors import UserError
from fl_lightning.optim.checks import ask, check_minimizes, check_shards, steps_alone

Transform = Callable[[Oracle, Tensor], Tensor]
"""From the gradient oracle and the flat weights `w`, which stay unchanged, to the direction."""
BufferSource = nn.Module | Callable[[], Iterable[Tensor]] | Iterable[Tensor]
"""A module, a function that returns buffers, or the buffers themselves."""


def _shared(name: str) -> Any:
    """An attribute of the base, also after the base replaces it, as `load_state_dict` does."""

    def write(self: Any, value: Any) -> None:
        setattr(self.base, name, value)

    return property(lambda self: getattr(self.base, name), write)


class GradientTransform(Optimizer):
    """Drives any optimizer with a transformed gradient.

    `step(closure)` calls the closure once for each gradient that the transform asks for, at the
    weights where it asks for it. Then it restores the weights bit by bit, and the wrapped optimizer
    steps with the direction. As usual, it skips parameters to which backward gave no gradient, and
    does nothing if no parameter requires one. Hooks of `state_dict` and `load_state_dict` are those
    of the wrapped optimizer, which they get. `torch.compile` leaves `step` as it is.

    Each evaluation draws new dropout masks, as in the widely used davda54/sam. The SAM paper's code
    draws them once a step; to get that, set the seed in the closure. The closure must leave its
    batch as it is, which layers such as `nn.ReLU(inplace=True)` change if they come first.

    Lightning's Trainer runs `training_step` and hooks such as `on_after_backward` in each pass and
    keeps the loss of the last one, that of the perturbed model. Log and update metrics there only
    if `self.optimizers().first_pass`; with Fabric and in plain loops log the loss that `step`
    returns. The Trainer clips in each pass too: clipping by norm keeps the ascent direction,
    clipping by value changes it.

    Args:
        base: The optimizer that takes the steps, of any class whose `step` needs no closure.
        transform: `transform(oracle, w)`, where `oracle(w)` is the flat gradient at the flat
            weights `w`. It returns the direction, and leaves `w` as it is.
        buffers: The model, whose buffers only the first evaluation of a step may change. Without it
            BatchNorm's running statistics move at every evaluation. A function that returns the
            buffers works too, and `model.buffers()` as long as the model keeps the same tensors.

    Attributes:
        first_pass: False in the closure's second and later calls in a step, otherwise True.

    Raises:
        TypeError: If the base is no such object.
        UserError: By `step`, without a closure, for one that does not zero the gradients (gradient
            accumulation) or changes weights, for sparse gradients, maximize=True, shards of FSDP1
            or uneven ones of FSDP2, if the transform changes `w`, or if the model was converted
            after it gave its buffers; by `oracle.of`, `oracle.loss` and `oracle.part`, unless the
            closure takes the request.
    """

    param_groups, state, defaults = _shared("param_groups"), _shared("state"), _shared("defaults")
    _probed = False  # whether the closure is known to zero the gradients; else every step checks
    _began = False  # whether a closure has computed gradients before

    def __new__(cls, base: Any = None, *_: Any, **__: Any) -> Self:
        """Check `base`: other packages' `SAM(parameters, SGD, lr=0.1)` then gets our error."""
        if not isinstance(base, Optimizer):
            ours = "SAM(SGD(model.parameters(), lr=0.1), rho=0.05)"
            raise TypeError(f"base must be an optimizer object, as in {ours}, but is {base!r:.60}")
        if isinstance(base, GradientTransform) or not steps_alone(type(base).step):
            raise TypeError(f"{type(base).__name__} cannot be wrapped: its step needs a closure")
        return super().__new__(cls)

    def __init__(self, base: Optimizer, transform: Transform, buffers: BufferSource = ()):
        self.base, self.transform, self.first_pass = base, transform, True
        source = buffers.buffers if isinstance(buffers, nn.Module) else buffers
        self.buffers = source if callable(source) else _Given(source, base)
        self.__setstate__({})  # as Optimizer.__init__, without new param groups and state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # or state_dict and load_state_dict of the base would not see the hooks registered here
        hooks = {name: own for name, own in vars(self.base).items() if "state_dict" in name}
        vars(self).update(hooks)

    def __getnewargs__(self) -> tuple[Optimizer]:
        return (self.base,)  # of copies

    def __getstate__(self) -> dict[str, Any]:
        names = "base", "transform", "buffers", "first_pass"
        return {name: getattr(self, name) for name in names}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer."""
        self.base.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The state of the wrapped optimizer."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the wrapped optimizer."""
        self.base.load_state_dict(state_dict)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """Take one step and return the loss of its first evaluation.

        Args:
            closure: Zeroes the gradients, computes the loss, runs backward, returns the loss.
        """
        everything = [p for group in self.param_groups for p in group["params"]]
        if closure is None:
            gradients = [p.grad for p in everything if p.grad is not None]
            if gradients and not any(g.any() for g in gradients):
                return self.base.step()  # as torch.distributed.checkpoint makes the base's state
            raise UserError(
                f"{type(self).__name__}.step needs a closure that zeroes gradients and runs "
                "backward; a GradScaler ('16-mixed') passes none: use '32-true' or 'bf16-mixed'"
            )
        params = [p for p in everything if p.requires_grad and p.numel()]
        if not params:  # the loss is still asked for
            with torch.enable_grad():
                loss = closure()
            self.base.step()
            return loss
        check_minimizes(self)
        check_shards(params)
        before, after, losses = self._buffer_values(), list[Tensor](), list[Any]()
        after_loss = list[Tensor]()  # which counts in a step without gradients
        w = self._read(params)
        version = w._version
        moved = forward_only = False

        def hold(vector: Tensor) -> None:
            nonlocal moved
            if moved or vector is not w:  # so without perturbation the weights never move
                self._move(params, vector)
                torch.clear_autocast_cache()  # or an autocast around the step keeps older weights
                moved = vector is not w

        def evaluate(w: Tensor, request: Request) -> Tensor:
            nonlocal forward_only
            if forward_only:
                return torch.zeros_like(w)
            if losses:
                after[:] = after or self._buffer_values()
                self._set_buffers(before)
            hold(w)
            if request.loss_only:
                loss: Tensor = ask(closure, request)
                self.first_pass = False
                after_loss[:] = after_loss or self._buffer_values()
                self._set_buffers(before)
                return loss
            for p in params:
                p.grad = None  # or an earlier result would share memory with this one
            asked = closure if request == TASK_LOSS else partial(ask, closure, request)
            with torch.enable_grad():
                known = losses or self._probed
                losses.append(asked() if known else self._probe(asked, params, w))
            self.first_pass = False
            # As at the end of Lightning's StochasticWeightAveraging: no weight will move.
            forward_only = request == TASK_LOSS and all(p.grad is None for p in params)
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            if any(g.is_sparse for g in gradients):
                raise UserError("a gradient is sparse: use nn.Embedding(..., sparse=False)")
            return self._joined(gradients)

        try:
            direction = self.transform(BatchOracle(evaluate), w)
        finally:  # also when interrupted, or a later checkpoint would hold the perturbed model
            self.first_pass = True
            hold(w)
            if after or not losses:  # after one evaluation they are as it left them
                self._set_buffers(after or after_loss or before)
        if w._version != version:
            raise UserError("the transform changed w in place: instead of w += e write w = w + e")
        if getattr(direction, "shape", None) != w.shape:
            raise UserError(
                f"the transform must return a vector of shape {tuple(w.shape)}, not "
                f"{direction!r:.60}"
            )
        for p, gradient in zip(params, self._gradients(params, direction), strict=True):
            if p.grad is not None or not losses:  # not losses: the transform took no gradient
                p.grad = gradient
        self.base.step()
        return losses[0] if losses else None

    def _probe(self, closure: Callable[[], Any], params: Sequence[Tensor], w: Tensor) -> Any:
        """Call the closure at `w`; check that it keeps the weights, and adds to no gradient."""
        versions = [p._version for p in params]
        probe = min(params, key=Tensor.numel)
        probe.grad = trap = torch.full_like(probe, torch.inf)  # not nan, which may be the gradient
        version, loss = trap._version, closure()
        if probe.grad is trap:  # never after zero_grad(), so nothing waits for the device
            if trap._version == version and all(p.grad is None for p in params if p is not probe):
                # loss is None: Lightning's empty closure, in manual optimization
                if loss is None or not self._began:
                    raise UserError(
                        "the closure computed no gradient: pass one, as optimizer.step(closure)"
                    )
                probe.grad = None
            elif trap.isinf().all():
                raise UserError(
                    "the closure must zero the gradients: call optimizer.zero_grad() in it, and "
                    "do not accumulate over batches (accumulate_grad_batches=1)"
                )
        self._began = True
        # the values, too: cuDNN moves an LSTM's weights, and leaves them as they are
        if [p._version for p in params] != versions and not flat(params).equal(w):
            raise UserError(
                "the closure changed a weight, as nn.Embedding(max_norm=...) does, and the "
                "step would undo that: change weights after the step"
            )
        return loss

    def _joined(self, gradients: Sequence[Tensor]) -> Tensor:
        """One vector, a copy: DDP writes the next gradients into the memory of these."""
        return flat(gradients)

    def _gradients(self, params: Sequence[Tensor], direction: Tensor) -> Sequence[Tensor]:
        """Copies, which the base's hooks may change, in the memory order that fused bases read."""
        gradients = [torch.empty_like(p) for p in params]
        copy(gradients, split(direction, params))
        return gradients

    def _buffer_values(self) -> list[Tensor]:
        return cloned([*self.buffers()])

    def _set_buffers(self, values: Sequence[Tensor]) -> None:
        copy([*self.buffers()], values)

    def _read(self, params: Sequence[Tensor]) -> Tensor:
        """The weights as one vector, which does not change when they move."""
        return flat(params)

    def _move(self, params: Sequence[Tensor], vector: Tensor) -> None:
        """Set the weights to a vector."""
        copy(params, split(vector, params))


class _Given:
    """Given buffers, which a conversion of the model replaces, as that of `fabric.setup`."""

    def __init__(self, buffers: Iterable[Tensor], base: Optimizer):
        weights = (p for group in base.param_groups for p in group["params"])
        self.buffers, self.weight = list(buffers), next(weights, torch.empty(0))
        self.kind = self.weight.dtype, self.weight.device

    def __call__(self) -> list[Tensor]:
        if self.kind != (self.weight.dtype, self.weight.device):
            raise UserError(
                "the model has replaced buffers since its optimizer got them: give buffers=model "
                "instead of model.buffers()"
            )
        return self.buffers


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """One vector, on the device of the first tensor, in a dtype that holds all exactly."""
    return torch.cat([t.detach().reshape(-1).to(tensors[0].device) for t in tensors])


def split(w: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a vector in the shapes of tensors."""
    parts = zip(w.split([p.numel() for p in like]), like, strict=True)
    return [part.view_as(p) for part, p in parts]
