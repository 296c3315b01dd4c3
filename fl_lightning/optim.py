"""Optimizer wrappers that step with a transformed gradient: SAM, ASAM, LESAM, user-defined ones.

For any PyTorch project: plain loops, `LightningModule`s under automatic optimization, Fabric. A
wrapper shares param groups and state with the optimizer that it wraps, so schedulers, gradient
clipping and checkpoints see one optimizer.

Example:
    >>> import torch
    >>> from fl_lightning.optim import SAM
    >>> model = torch.nn.Linear(4, 3)
    >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
    >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = torch.nn.functional.cross_entropy(model(x), y)
    ...     loss.backward()
    ...     return loss
    >>> losses = [optimizer.step(closure).item() for _ in range(5)]
    >>> losses[-1] < losses[0]
    True

Precision is 32 bits or bf16. fp16 with a GradScaler ('16-mixed') does not work: PyTorch's scaler
takes no closure.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from inspect import signature
from itertools import zip_longest
from typing import Any, TypeVar, cast
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning.core.oracle import TASK_LOSS, BatchOracle, Oracle, Request
from fl_lightning.core.vector import cloned, copy, unit
from fl_lightning.core.view import check_shape
from fl_lightning.terms.lesam import LESAM as LESAMTerm
from fl_lightning.terms.perturb import ASAM as ASAMTerm
from fl_lightning.terms.perturb import SAM as SAMTerm

Init = TypeVar("Init", bound=Callable[..., None])
Transform = Callable[[Oracle, Tensor], Tensor]
"""From the gradient oracle and the flat weights `w`, which stay unchanged, to the direction."""
BufferSource = nn.Module | Callable[[], Iterable[Tensor]] | Iterable[Tensor]
"""A module, a function that returns buffers, or the buffers themselves."""


def _shared(name: str) -> Any:
    """An attribute of the base, also after the base replaces it, as `load_state_dict` does."""

    def write(self: Any, value: Any) -> None:
        setattr(self.base, name, value)

    return property(lambda self: getattr(self.base, name), write)


def _base_first(init: Init) -> Init:
    """Check `base` first: other packages' `SAM(parameters, SGD, lr=0.1)` then gets our error."""

    @wraps(init)
    def checked(self: Any, base: Any = None, *others: Any, **named: Any) -> None:
        init(self, _wrappable(base), *others, **named)

    return cast(Init, checked)


class GradientTransform(Optimizer):
    """Drives any optimizer with a transformed gradient.

    `step(closure)` calls the closure once for each gradient that the transform asks for, at the
    weights where it asks for it. Then it restores the weights bit by bit, and the wrapped optimizer
    steps with the direction. As usual, it skips parameters to which backward gave no gradient.

    Each evaluation draws new dropout masks, as in the widely used davda54/sam. The SAM paper's code
    draws them once a step; to get that, set the seed in the closure.

    Lightning's Trainer runs `training_step` and hooks such as `on_after_backward` in each pass and
    keeps the loss of the last one, that of the perturbed model. Log and update metrics there only
    if `self.optimizers().first_pass`; with Fabric and in plain loops log the loss that `step`
    returns. The Trainer clips in each pass too: clipping by norm keeps the ascent direction,
    clipping by value changes it.

    Args:
        base: The optimizer that takes the steps, of any class whose `step` needs no closure.
        transform: `transform(oracle, w)`, where `oracle(w)` is the flat gradient at the flat
            weights `w`.
        buffers: The model, whose buffers only the first evaluation of a step may change. Without it
            BatchNorm's running statistics move at every evaluation. A function that returns the
            buffers works too, and `model.buffers()` as long as the model keeps the same tensors.

    Attributes:
        first_pass: False in the closure's second and later calls in a step, otherwise True.

    Raises:
        TypeError: If the base is no such object.
        ValueError: By `step`, without a closure, for one that does not zero the gradients (gradient
            accumulation), for sparse gradients, maximize=True, shards of FSDP1 or uneven ones of
            FSDP2, or if the model has replaced the given buffers; by `oracle.of` in most closures.
    """

    param_groups, state, defaults = _shared("param_groups"), _shared("state"), _shared("defaults")
    _probed = False  # whether the closure is known to zero the gradients; else every step checks
    _began = False  # whether a closure has computed gradients before

    @_base_first
    def __init__(self, base: Optimizer, transform: Transform, buffers: BufferSource = ()):
        self.base, self.transform, self.first_pass = base, transform, True
        source = buffers.buffers if isinstance(buffers, nn.Module) else buffers
        weights = (p for group in base.param_groups for p in group["params"])
        self.buffers: Callable[[], Iterable[Tensor | None]] = (
            source if callable(source) else _Given(source, next(weights, torch.empty(0)))
        )
        self.__setstate__({})  # as Optimizer.__init__, without new param groups and state

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

    @torch.no_grad()
    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """Take one step and return the loss of its first evaluation.

        Args:
            closure: Zeroes the gradients, computes the loss, runs backward, returns the loss.
        """
        if closure is None:
            raise ValueError(
                f"{type(self).__name__}.step needs a closure that zeroes gradients and runs "
                "backward; a GradScaler ('16-mixed') passes none: use '32-true' or 'bf16-mixed'"
            )
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if not params:
            raise ValueError("no parameter of the optimizer requires a gradient: unfreeze some")
        check_minimizes(self)
        _check_shards(params)
        before, after, losses = self._buffer_values(), list[Tensor](), list[Any]()
        w = self._read(params)
        held: Tensor | None = w
        forward_only = False

        def hold(vector: Tensor) -> None:
            nonlocal held
            if vector is not held:  # so without perturbation the weights never move
                held = None  # unknown during the move: an interrupted one must be undone
                self._move(params, vector)
                held = vector

        def evaluate(w: Tensor, request: Request) -> Tensor:
            nonlocal forward_only
            if forward_only:
                return torch.zeros_like(w)
            if losses:
                after[:] = after or self._buffer_values()
                self._set_buffers(before)
            hold(w)
            if request.loss_only:
                loss: Tensor = _ask(closure, request)
                self.first_pass = False
                self._set_buffers(before)
                return loss
            for p in params:
                p.grad = None  # or an earlier result would share memory with this one
            asked = closure if request == TASK_LOSS else partial(_ask, closure, request)
            with torch.enable_grad():
                losses.append(asked() if losses or self._probed else self._probe(asked, params))
            self.first_pass = False
            # As at the end of Lightning's StochasticWeightAveraging: no weight will move.
            forward_only = request == TASK_LOSS and all(p.grad is None for p in params)
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            if any(g.is_sparse for g in gradients):
                raise ValueError("a gradient is sparse: use nn.Embedding(..., sparse=False)")
            return gradients[0].detach().reshape(-1) if len(params) == 1 else _flat(gradients)

        try:
            direction = self.transform(BatchOracle(evaluate), w)
        finally:  # also when interrupted, or a later checkpoint would hold the perturbed model
            self.first_pass = True
            hold(w)
            if after or not losses:  # after one evaluation they are as it left them
                self._set_buffers(after or before)
        check_shape(direction, w.shape, "the transform returned", "it must return a vector like w")
        for p, part in zip(params, _split(direction, params), strict=True):
            if p.grad is not None or not losses:  # not losses: the transform took no gradient
                p.grad = part.to(p)
        self.base.step()
        return losses[0] if losses else None

    def _probe(self, closure: Callable[[], Any], params: Sequence[Tensor]) -> Any:
        """Call the closure, and check that it does not add to earlier gradients."""
        probe = min(params, key=Tensor.numel)
        probe.grad = trap = torch.full_like(probe, torch.inf)  # not nan, which may be the gradient
        version, loss = trap._version, closure()
        if probe.grad is trap:  # never after zero_grad(), so nothing waits for the device
            if trap._version == version and all(p.grad is None for p in params if p is not probe):
                # loss is None: Lightning's empty closure, in manual optimization
                if loss is None or not self._began:
                    raise ValueError(
                        "the closure computed no gradient: pass one, as optimizer.step(closure)"
                    )
                probe.grad = None
            elif trap.isinf().all():
                raise ValueError(
                    "the closure must zero the gradients: call optimizer.zero_grad() in it, and "
                    "do not accumulate over batches (accumulate_grad_batches=1)"
                )
        self._began = True
        return loss

    def _buffer_values(self) -> list[Tensor]:
        return cloned([b for b in self.buffers() if b is not None])

    def _set_buffers(self, values: Sequence[Tensor]) -> None:
        buffers = list(self.buffers())
        present = [b for b in buffers if b is not None]
        if not len(buffers) == len(present) == len(values):
            raise ValueError(
                f"the model has replaced buffers since {type(self).__name__} got them: give "
                "buffers=model instead of model.buffers()"
            )
        copy(present, values)

    def _read(self, params: Sequence[Tensor]) -> Tensor:
        """The weights as one vector, which does not change when they move."""
        return _flat(params)

    def _move(self, params: Sequence[Tensor], vector: Tensor) -> None:
        """Set the weights to a vector."""
        copy(params, _split(vector, params))


class _Given:
    """Buffers as a model had them, each None once the model may have replaced it.

    `fabric.setup` replaces buffers when it moves or converts the model.
    """

    def __init__(self, buffers: Iterable[Tensor], weight: Tensor):
        self.buffers, self.weight = [ref(b) for b in buffers], weight
        self.kind = weight.dtype, weight.device

    def __call__(self) -> list[Tensor | None]:
        converted = self.kind != (self.weight.dtype, self.weight.device)
        return [None if converted else buffer() for buffer in self.buffers]

    def __reduce__(self) -> tuple[Any, ...]:
        buffers = [torch.empty(0) if b is None else b for b in self()]  # empty ones die in the copy
        return _Given, (buffers, self.weight)


class SAM(GradientTransform):
    """Sharpness-aware minimization: the gradient at `w + rho g/||g||`, two passes a step.

    Foret et al., ICLR 2021, https://arxiv.org/abs/2010.01412. Each pass draws its own dropout
    masks, see `GradientTransform`.

    Args:
        base: The optimizer that takes the steps.
        rho: Radius of the perturbation.
        eps: Added to the norm.
        buffers: The model, if it has BatchNorm, see `GradientTransform`.
    """

    @_base_first
    def __init__(
        self, base: Optimizer, rho: float = 0.05, eps: float = 1e-12, buffers: BufferSource = ()
    ):
        super().__init__(base, partial(SAMTerm(rho, eps=eps).gradient, v=None), buffers)


class ASAM(GradientTransform):
    """Adaptive SAM: SAM in a ball scaled by `|w| + eta` coordinate by coordinate.

    Kwon et al., ICML 2021, https://arxiv.org/abs/2102.11600.

    Args:
        base: The optimizer that takes the steps.
        rho: Radius of the perturbation.
        eta: Added to the scale, so that zero weights move too.
        eps: Added to the norm.
        buffers: The model, if it has BatchNorm, see `GradientTransform`.
    """

    @_base_first
    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.5,
        eta: float = 0.01,
        eps: float = 1e-12,
        buffers: BufferSource = (),
    ):
        super().__init__(base, partial(ASAMTerm(rho, eta=eta, eps=eps).gradient, v=None), buffers)


class LESAM(GradientTransform):
    """The gradient at `w + rho d/||d||` for a given direction `d`: one pass a step.

    FedLESAM (Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890) takes the move of the global
    model for `d`. Any cheap estimate of the ascent direction works, such as an older copy of the
    weights minus the current ones. `d` is part of `state_dict`.

    Args:
        base: The optimizer that takes the steps.
        direction: One tensor for each parameter of `base`, in its order and shape; zero means no
            perturbation.
        rho: Radius of the perturbation: the L2 norm over all parameters.
        buffers: The model, if it has BatchNorm, see `GradientTransform`.
    """

    @_base_first
    def __init__(
        self,
        base: Optimizer,
        direction: Iterable[Tensor],
        rho: float = 0.05,
        buffers: BufferSource = (),
    ):
        super().__init__(base, self._ahead, buffers)
        self.toward(direction, rho)

    @torch.no_grad()
    def toward(self, direction: Iterable[Tensor], rho: float) -> None:
        """Perturb along another direction, which must match the parameters in number and shapes."""
        LESAMTerm(rho)  # checks the radius
        params = [p for group in self.param_groups for p in group["params"]]
        direction = list(direction)
        for i, pair in enumerate(zip_longest(params, direction)):
            shape, given = (tuple(it.shape) if isinstance(it, Tensor) else None for it in pair)
            if shape != given:
                raise ValueError(
                    f"direction[{i}] must match the parameter of shape {shape}, but has {given}"
                )
        ahead = iter(_split(rho * unit(_flat(direction)), params))
        for group in self.param_groups:  # not in `state`, which the base takes for its own
            group["perturbation"] = [next(ahead).to(p, copy=True) for p in group["params"]]

    def _ahead(self, oracle: Oracle, w: Tensor) -> Tensor:
        if any("perturbation" not in group for group in self.param_groups):
            raise ValueError("a param group has no direction: call toward(direction, rho) for all")
        ahead = [
            e
            for group in self.param_groups
            for p, e in zip(group["params"], group["perturbation"], strict=True)
            if p.requires_grad
        ]
        return oracle(w + _flat(ahead).to(w))  # to: that of a checkpoint may be on another device


def _wrappable(base: Any) -> Optimizer:
    if not isinstance(base, Optimizer):
        ours = "SAM(SGD(model.parameters(), lr=0.1), rho=0.05)"
        raise TypeError(f"base must be an optimizer object, as in {ours}, but is {base!r:.60}")
    if isinstance(base, GradientTransform) or not _takes(base.step):
        raise TypeError(f"{type(base).__name__} cannot be wrapped: its step needs a closure")
    return base


def check_minimizes(optimizer: Optimizer) -> None:
    """Raise a ValueError if the optimizer ascends: perturbations are made for descent."""
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise ValueError("the optimizer has maximize=True: negate the loss instead")


def _check_shards(params: Iterable[Tensor]) -> None:
    """Raise a ValueError if a norm over the parameters would be that of a part of them."""
    for p in params:
        if getattr(p, "_fsdp_flattened", False):  # set by FSDP1
            raise ValueError(
                "FSDP1 gives each rank the norm of its own shard: use DDP, or FSDP2 "
                "(Lightning's ModelParallelStrategy)"
            )
        for mesh_dim, placement in enumerate(getattr(p, "placements", ())):  # of a DTensor
            ranks = p.device_mesh.size(mesh_dim)  # type: ignore[attr-defined]
            if placement.is_shard() and p.shape[placement.dim] % ranks:
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} cannot be sharded evenly over {ranks} "
                    f"ranks: make dimension {placement.dim} a multiple of {ranks}, or use DDP"
                )


def _takes(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _ask(closure: Callable[..., Any], request: Request) -> Any:
    if not _takes(closure, request):
        raise ValueError(
            "the transform asks for another loss, a loss's value or a part of the batch: pass "
            "closure(request), as SequentialExecutor does"
        )
    return closure(request)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """One vector, on the device of the first tensor, in a dtype that holds all exactly."""
    return torch.cat([t.detach().reshape(-1).to(tensors[0].device) for t in tensors])


def _split(w: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    return [
        part.view_as(p) for part, p in zip(w.split([p.numel() for p in like]), like, strict=True)
    ]
