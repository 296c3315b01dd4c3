"""Optimizer wrappers that step with a transformed gradient: SAM, ASAM, LESAM, and any transform of your own.

They belong to any PyTorch project: plain loops, `LightningModule`s under automatic optimization, Fabric. The federated
simulator takes its local steps with the same class. A wrapper shares the param groups and the state of the optimizer
that it wraps, so schedulers, gradient clipping and checkpoints see one optimizer.

Example::

    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=0.05)

    def closure():
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.oracle import Evaluations, Loss, Oracle
from fl_lightning.terms.perturb import ASAM as ASAMTerm
from fl_lightning.terms.perturb import SAM as SAMTerm

Transform = Callable[[Oracle, Tensor], Tensor]
"""From the gradient oracle and the flat weights `w` to the direction to step along."""


class GradientTransform(Optimizer):
    """Drive any optimizer with a transformed gradient.

    Everything happens in `step(closure)`. The closure zeroes the gradients, computes the loss, runs backward and
    returns the loss; it is called once for each gradient that the transform asks for, at whatever weights it asks for
    them. Then the weights return to where they were, bit by bit, and the wrapped optimizer steps with the direction.

    Args:
        base: The optimizer that takes the steps: an object, of any class.
        transform: `transform(oracle, w)`, where `oracle(w)` is the flat gradient at the flat weights `w`.
        buffers: Tensors that the first evaluation of a step may change and later ones may not: `model.buffers()` keeps
            BatchNorm's running statistics from moving twice.

    Raises:
        ValueError: By `step`, without a closure; by the oracle, for a loss other than the closure's own.
    """

    def __init__(self, base: Optimizer, transform: Transform, buffers: Iterable[Tensor] = ()):
        super().__init__(base.param_groups, base.defaults)
        self.base, self.transform, self.buffers = base, transform, list(buffers)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state, self.defaults = self.base.param_groups, self.base.state, self.base.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer."""
        if hasattr(self, "base"):
            self.base.add_param_group(param_group)
        else:  # called by Optimizer.__init__: only registers what the base holds already
            self.param_groups.append(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the wrapped optimizer."""
        self.base.load_state_dict(state_dict)
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        own = {"base": self.base, "transform": self.transform, "buffers": self.buffers}
        return {**super().__getstate__(), **own}

    @torch.no_grad()
    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Zeroes the gradients, computes the loss, runs backward, returns the loss.

        Returns:
            The loss of the first evaluation.
        """
        if closure is None:
            raise ValueError(
                f"{type(self).__name__}.step needs a closure that computes the loss and runs backward, since it "
                "evaluates the gradient itself. A GradScaler (fp16, '16-mixed') cannot pass one on: use '32-true' or "
                "'bf16-mixed'."
            )
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        sizes = [p.numel() for p in params]
        before = [b.clone() for b in self.buffers]
        after: list[Tensor] = []
        losses: list[Any] = []

        def put(w: Tensor) -> None:
            for p, part in zip(params, w.split(sizes), strict=True):
                p.copy_(part.view_as(p))

        def evaluate(w: Tensor, extra: tuple[Loss, ...], taps: tuple[str, ...]) -> Tensor:
            if losses:
                _copy(self.buffers, before)
            put(w)
            with torch.enable_grad():
                losses.append(_ask(closure, extra, taps) if extra else closure())
            if len(losses) == 1:
                after[:] = [b.clone() for b in self.buffers]
            return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in params])

        w = torch.cat([p.detach().reshape(-1) for p in params])
        direction = self.transform(Evaluations(evaluate), w)
        put(w)
        _copy(self.buffers, after or before)
        for p, part in zip(params, direction.split(sizes), strict=True):
            p.grad = part.view_as(p)
        self.base.step()
        return losses[0] if losses else None


class SAM(GradientTransform):
    """Sharpness-aware minimization (Foret et al., ICLR 2021): the gradient at `w + rho g/||g||`, two passes a step.

    Args:
        base: The optimizer that takes the steps.
        rho: Radius of the perturbation.
        eps: Added to the norm.
        buffers: See `GradientTransform`.
    """

    def __init__(self, base: Optimizer, rho: float = 0.05, eps: float = 1e-12, buffers: Iterable[Tensor] = ()):
        super().__init__(base, partial(SAMTerm(rho, eps=eps).gradient, v=None), buffers)


class ASAM(GradientTransform):
    """Adaptive SAM (Kwon et al., ICML 2021): the ball is scaled by `|w| + eta` coordinate by coordinate.

    Args:
        base: The optimizer that takes the steps.
        rho: Radius of the perturbation.
        eta: Added to the scale, so that zero weights move too.
        eps: Added to the norm.
        buffers: See `GradientTransform`.
    """

    def __init__(
        self, base: Optimizer, rho: float = 0.5, eta: float = 0.01, eps: float = 1e-12, buffers: Iterable[Tensor] = ()
    ):
        super().__init__(base, partial(ASAMTerm(rho, eta=eta, eps=eps).gradient, v=None), buffers)


class LESAM(GradientTransform):
    """The gradient at `w + rho d/||d||` for a given direction `d`: sharpness-aware steps with one pass each.

    FedLESAM (Fan et al., ICML 2024) takes for `d` how the global model moved; so can anyone who has a cheap estimate of
    the ascent direction, such as an older copy of the weights minus the current ones. `d` is part of `state_dict`.

    Args:
        base: The optimizer that takes the steps.
        direction: One tensor for each parameter of `base`, in its order; zero means no perturbation.
        rho: Radius of the perturbation: the L2 norm over all parameters.
        buffers: See `GradientTransform`.

    Raises:
        ValueError: If the direction does not match the parameters.
    """

    def __init__(self, base: Optimizer, direction: Sequence[Tensor], rho: float = 0.05, buffers: Iterable[Tensor] = ()):
        super().__init__(base, self._ahead, buffers)
        self.toward(direction, rho)

    def toward(self, direction: Sequence[Tensor], rho: float) -> None:
        """Perturb along another direction from now on."""
        params = [p for group in self.param_groups for p in group["params"]]
        shapes, given = [tuple(p.shape) for p in params], [tuple(d.shape) for d in direction]
        if shapes != given:
            raise ValueError(f"the direction must hold one tensor for each parameter, {shapes}, but holds {given}")
        norm = torch.stack([d.norm() for d in direction]).norm()
        ahead = iter([rho * d.detach() / (norm + 1e-12) for d in direction])
        for group in self.param_groups:
            group["perturbation"] = [next(ahead) for _ in group["params"]]

    def _ahead(self, oracle: Oracle, w: Tensor) -> Tensor:
        ahead = [
            e
            for group in self.param_groups
            for e, p in zip(group["perturbation"], group["params"], strict=True)
            if p.requires_grad
        ]
        return oracle(w + torch.cat([e.reshape(-1).to(w) for e in ahead]))


def _ask(closure: Callable[..., Any], losses: tuple[Loss, ...], taps: tuple[str, ...]) -> Any:
    try:
        signature(closure).bind(losses, taps)
    except TypeError:
        raise ValueError(
            "this transform asks for the gradient of a loss of its own, which an ordinary closure cannot give: accept "
            "closure(losses, taps) and add the losses, as fl_lightning.executors.Sequential does"
        ) from None
    return closure(losses, taps)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
