"""Optimizer wrappers that step with a transformed gradient: SAM, ASAM, LESAM, and any transform of your own.

For any PyTorch project: plain loops, `LightningModule`s under automatic optimization, Fabric. A wrapper shares param
groups and state with the optimizer that it wraps, so schedulers, gradient clipping and checkpoints see one optimizer.

Example::

    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)

    def closure():
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)

Precision is 32 bits or bf16. fp16 with a GradScaler ('16-mixed') does not work: PyTorch's scaler takes no closure.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from inspect import signature
from itertools import zip_longest
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.core.oracle import TASK_LOSS, BatchOracle, Oracle, Request
from fl_lightning.core.term import check_shape
from fl_lightning.core.vector import cloned, copy, unit
from fl_lightning.terms.lesam import LESAM as LESAMTerm
from fl_lightning.terms.perturb import ASAM as ASAMTerm
from fl_lightning.terms.perturb import SAM as SAMTerm

Init = TypeVar("Init", bound=Callable[..., None])
Transform = Callable[[Oracle, Tensor], Tensor]
"""From the gradient oracle and the flat weights `w`, not to be changed in place, to the direction to step along."""


def _shared(name: str) -> Any:
    """An attribute that is the base's own, whoever replaces it there, as `load_state_dict` does."""
    return property(
        lambda self: getattr(self.base, name), lambda self, value: setattr(self.base, name, value)
    )


def _base_first(init: Init) -> Init:
    """Look at `base` before Python looks at the other arguments, which elsewhere are `SAM(parameters, SGD, lr=0.1)`."""

    @wraps(init)
    def checked(self: Any, base: Any = None, *others: Any, **named: Any) -> None:
        init(self, _wrappable(base), *others, **named)

    return cast(Init, checked)


class GradientTransform(Optimizer):
    """Drive any optimizer with a transformed gradient.

    Everything happens in `step(closure)`. The closure zeroes the gradients, computes the loss, runs
    backward and returns the loss; it is called once for each gradient that the transform asks for,
    at whatever weights it asks for them. Then the weights return to where they were, bit by bit,
    and the wrapped optimizer steps with the direction. It skips parameters to which backward gave
    no gradient, as ever. Gradients must be dense.

    Each evaluation draws new dropout masks, as in the best-known PyTorch code (davda54/sam); the
    SAM paper's own code draws them once a step. For that, let the closure set the seed.

    Args:
        base: The optimizer that takes the steps: an object, of any class whose `step` needs no
            closure.
        transform: `transform(oracle, w)`, where `oracle(w)` is the flat gradient at the flat
            weights `w`.
        buffers: Tensors that the first evaluation of a step may change and later ones may not. Pass
            `model.buffers()`, taken where the model is trained (moving it makes new ones): an
            optimizer knows parameters only, and without it BatchNorm's running statistics move at
            every evaluation.

    Raises:
        TypeError: If the base is no such object.
        ValueError: By `step`, for no closure, one that does not zero the gradients, as in gradient
            accumulation, or sparse gradients; by `oracle.of` in most closures.
    """

    param_groups, state, defaults = _shared("param_groups"), _shared("state"), _shared("defaults")
    _probed = False  # whether the closure is known to zero the gradients; else every step looks
    _began = False  # whether a closure has ever computed gradients

    @_base_first
    def __init__(self, base: Optimizer, transform: Transform, buffers: Iterable[Tensor] = ()):
        self.base, self.transform, self.buffers = base, transform, list(buffers)
        self.__setstate__(
            {}
        )  # all that Optimizer.__init__ does, but for param groups and a state of its own

    def __getstate__(self) -> dict[str, Any]:
        return {"base": self.base, "transform": self.transform, "buffers": self.buffers}

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
                f"{type(self).__name__}.step needs a closure that zeroes the gradients, computes the loss and runs "
                "backward; a GradScaler (fp16, '16-mixed') cannot pass one on: use '32-true' or 'bf16-mixed'"
            )
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if not params:
            raise ValueError(
                "no parameter of the optimizer requires a gradient: unfreeze what is to be trained"
            )
        before, after, losses = cloned(self.buffers), list[Tensor](), list[Any]()
        w = self._read(params)
        held: Tensor | None = w

        def hold(vector: Tensor) -> None:
            nonlocal held
            if vector is not held:  # a method without perturbation never moves the weights
                held = None  # unknown while they move: an interrupted move must be undone
                self._move(params, vector)
                held = vector

        def evaluate(w: Tensor, question: Request) -> Tensor:
            if losses:
                after[:] = after or cloned(self.buffers)
                copy(self.buffers, before)
            hold(w)
            if question.loss_only:
                loss: Tensor = _ask(closure, question)
                copy(self.buffers, before)
                return loss
            for p in params:
                p.grad = None  # so that what this evaluation returns is nobody else's
            asked = closure if question == TASK_LOSS else partial(_ask, closure, question)
            with torch.enable_grad():
                losses.append(asked() if losses or self._probed else self._probe(asked, params))
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            if any(g.is_sparse for g in gradients):
                raise ValueError(
                    "a gradient is sparse, but must be dense here: nn.Embedding(..., sparse=False)"
                )
            return gradients[0].detach().reshape(-1) if len(params) == 1 else _flat(gradients)

        try:
            direction = self.transform(BatchOracle(evaluate), w)
        finally:  # also when interrupted: who saves the model then must not save the perturbed one
            hold(w)
            if after or not losses:  # else they are as the one evaluation left them
                copy(self.buffers, after or before)
        check_shape(direction, w.shape, "the transform returned", "it must return a vector like w")
        for p, part in zip(params, _split(direction, params), strict=True):
            if p.grad is not None or not losses:  # or the transform asked for no gradient at all
                p.grad = part.to(p)
        self.base.step()
        return losses[0] if losses else None

    def _probe(self, closure: Callable[[], Any], params: Sequence[Tensor]) -> Any:
        """Call the closure, and notice if it adds to earlier gradients: the step would be wrong without a word."""
        probe = min(params, key=Tensor.numel)
        probe.grad = trap = torch.full_like(probe, torch.inf)  # not nan, which may be the gradient
        version, loss = trap._version, closure()
        if probe.grad is trap:  # not so after zero_grad(), and nothing waits for the device
            if trap._version == version and all(p.grad is None for p in params if p is not probe):
                if (
                    loss is None or not self._began
                ):  # None: Lightning's empty closure, in manual optimization
                    raise ValueError(
                        "the closure computed no gradient: pass one to step, as optimizer.step(closure)"
                    )
                probe.grad = (
                    None  # Lightning's StochasticWeightAveraging ends with forward passes alone
                )
            elif trap.isinf().all():
                raise ValueError(
                    "the closure must zero the gradients each time that it is called: call optimizer.zero_grad() in "
                    "it, and do not accumulate gradients over batches (accumulate_grad_batches=1)"
                )
        self._began = True
        return loss

    def _read(self, params: Sequence[Tensor]) -> Tensor:
        """The weights as one vector, which stays as it is when they move."""
        return _flat(params)

    def _move(self, params: Sequence[Tensor], vector: Tensor) -> None:
        """Move the weights to where a gradient is asked for, and back."""
        copy(params, _split(vector, params))


class SAM(GradientTransform):
    """Sharpness-aware minimization (Foret et al., ICLR 2021): the gradient at `w + rho g/||g||`, two passes a step.

    Each pass draws its own dropout masks, see `GradientTransform`.

    Args:
        base: The optimizer that takes the steps.
        rho: Radius of the perturbation.
        eps: Added to the norm.
        buffers: `model.buffers()` of a model with BatchNorm, see `GradientTransform`.
    """

    @_base_first
    def __init__(
        self, base: Optimizer, rho: float = 0.05, eps: float = 1e-12, buffers: Iterable[Tensor] = ()
    ):
        super().__init__(base, partial(SAMTerm(rho, eps=eps).gradient, v=None), buffers)


class ASAM(GradientTransform):
    """Adaptive SAM (Kwon et al., ICML 2021): SAM in a ball scaled by `|w| + eta` coordinate by coordinate.

    Args:
        base: The optimizer that takes the steps.
        rho: Radius of the perturbation.
        eta: Added to the scale, so that zero weights move too.
        eps: Added to the norm.
        buffers: `model.buffers()` of a model with BatchNorm, see `GradientTransform`.
    """

    @_base_first
    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.5,
        eta: float = 0.01,
        eps: float = 1e-12,
        buffers: Iterable[Tensor] = (),
    ):
        super().__init__(base, partial(ASAMTerm(rho, eta=eta, eps=eps).gradient, v=None), buffers)


class LESAM(GradientTransform):
    """The gradient at `w + rho d/||d||` for a given direction `d`: sharpness-aware steps with one pass each.

    FedLESAM (Fan et al., ICML 2024) takes for `d` how the global model moved; so can anyone who has
    a cheap estimate of the ascent direction, such as an older copy of the weights minus the current
    ones. `d` is part of `state_dict`.

    Args:
        base: The optimizer that takes the steps.
        direction: One tensor for each parameter of `base`, in its order and shape; zero means no
            perturbation.
        rho: Radius of the perturbation: the L2 norm over all parameters.
        buffers: See `GradientTransform`.
    """

    @_base_first
    def __init__(
        self,
        base: Optimizer,
        direction: Iterable[Tensor],
        rho: float = 0.05,
        buffers: Iterable[Tensor] = (),
    ):
        super().__init__(base, self._ahead, buffers)
        self.toward(direction, rho)

    @torch.no_grad()
    def toward(self, direction: Iterable[Tensor], rho: float) -> None:
        """Perturb along another direction from now on; it must match the parameters in number and shapes."""
        LESAMTerm(rho)  # refuses what is no radius
        params, direction = (
            [p for group in self.param_groups for p in group["params"]],
            list(direction),
        )
        for i, pair in enumerate(zip_longest(params, direction)):
            shape, given = (tuple(it.shape) if isinstance(it, Tensor) else None for it in pair)
            if shape != given:
                raise ValueError(
                    f"the direction must match the parameters, but for number {i}, {shape}, holds {given}"
                )
        ahead = iter(_split(rho * unit(_flat(direction)), params))
        for group in (
            self.param_groups
        ):  # not in `state`, which Adam and others take for theirs once it holds anything
            group["perturbation"] = [next(ahead).to(p, copy=True) for p in group["params"]]

    def _ahead(self, oracle: Oracle, w: Tensor) -> Tensor:
        if any("perturbation" not in group for group in self.param_groups):
            raise ValueError(
                "a param group came without a direction: give all of them one by toward(direction, rho)"
            )
        pairs = [
            pair
            for g in self.param_groups
            for pair in zip(g["params"], g["perturbation"], strict=True)
        ]
        return oracle(
            w + _flat([e for p, e in pairs if p.requires_grad]).to(w)
        )  # to: a checkpoint's may lie elsewhere


def _wrappable(base: Any) -> Optimizer:
    if not isinstance(base, Optimizer):
        ours = "SAM(SGD(model.parameters(), lr=0.1), rho=0.05)"
        raise TypeError(f"base must be an optimizer object, as in {ours}, but is {base!r:.60}")
    if isinstance(base, GradientTransform) or not _takes(base.step):
        raise TypeError(
            f"{type(base).__name__} cannot be wrapped: its step needs a closure of its own"
        )
    return base


def _takes(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _ask(closure: Callable[..., Any], question: Request) -> Any:
    if not _takes(closure, question):
        raise ValueError(
            "the transform asks for a loss of its own, a loss's value or a part of the batch: pass closure(question), "
            "as executors.Sequential does"
        )
    return closure(question)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """One vector, on the first one's device, in a dtype that holds them all exactly."""
    return torch.cat([t.detach().reshape(-1).to(tensors[0].device) for t in tensors])


def _split(w: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    return [
        part.view_as(p) for part, p in zip(w.split([p.numel() for p in like]), like, strict=True)
    ]
