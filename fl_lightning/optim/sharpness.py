"""SAM, ASAM, GSAM and LESAM around any optimizer.

`base` and `buffers` are those of `GradientTransform`.
"""

from collections.abc import Iterable
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning import terms
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.vector import unit
from fl_lightning.errors import UserError
from fl_lightning.optim.transform import BufferSource, GradientTransform, flat, split


class SAM(GradientTransform):
    """Sharpness-aware minimization: the gradient at `w + rho g/||g||`, two passes a step.

    Foret et al., ICLR 2021, https://arxiv.org/abs/2010.01412. Each pass draws its own dropout
    masks, see `GradientTransform`.

    Args:
        rho: Radius of the perturbation.
        eps: Added to the norm.
    """

    def __init__(
        self, base: Optimizer, rho: float = 0.05, eps: float = 1e-12, buffers: BufferSource = ()
    ):
        super().__init__(base, partial(terms.SAM(rho, eps=eps).gradient, v=None), buffers)


class ASAM(GradientTransform):
    """Adaptive SAM: SAM in a ball scaled by `|w| + eta` coordinate by coordinate.

    Kwon et al., ICML 2021, https://arxiv.org/abs/2102.11600.

    Args:
        rho: Radius of the perturbation.
        eta: Added to the scale, so that zero weights move too.
        eps: Added to the norm.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.5,
        eta: float = 0.01,
        eps: float = 1e-12,
        buffers: BufferSource = (),
    ):
        super().__init__(base, partial(terms.ASAM(rho, eta=eta, eps=eps).gradient, v=None), buffers)


class GSAM(GradientTransform):
    """SAM that also lowers the surrogate gap: how far the loss rises under the perturbation.

    Zhuang et al., ICLR 2022, https://arxiv.org/abs/2203.08065.

    Args:
        rho: Radius of the perturbation.
        alpha: Weight of the gap; 0 is SAM.
        eps: Added to norms.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        alpha: float = 0.2,
        eps: float = 1e-12,
        buffers: BufferSource = (),
    ):
        term = terms.GSAM(rho, alpha=alpha, eps=eps)
        super().__init__(base, partial(term.gradient, v=None), buffers)


class LESAM(GradientTransform):
    """The gradient at `w + rho d/||d||` for a given direction `d`: one pass a step.

    FedLESAM (Fan et al., ICML 2024, https://arxiv.org/abs/2405.18890) takes for `d` an older global
    model minus the current one. Any cheap estimate of the ascent direction works. The perturbation
    `rho d/||d||` is part of `state_dict`, so that loading restores direction and radius.

    Args:
        direction: One tensor for each parameter of `base`, in its order and shape; zero means no
            perturbation.
        rho: Radius of the perturbation: the L2 norm over all parameters.
    """

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
        terms.LESAM(rho)  # checks the radius
        params = [p for group in self.param_groups for p in group["params"]]
        direction = list(direction)
        for i, pair in enumerate(zip_longest(params, direction)):
            shape, given = (tuple(it.shape) if isinstance(it, Tensor) else None for it in pair)
            if shape != given:
                raise UserError(
                    f"direction[{i}] must match the parameter of shape {shape}, but has {given}"
                )
        ahead = iter(split(rho * unit(flat(direction)), params))
        for group in self.param_groups:  # not in `state`, which the base takes for its own
            group["perturbation"] = [next(ahead).to(p, copy=True) for p in group["params"]]

    def _ahead(self, oracle: Oracle, w: Tensor) -> Tensor:
        if any("perturbation" not in group for group in self.param_groups):
            raise UserError("a param group has no direction: call toward(direction, rho) for all")
        ahead = [
            e
            for group in self.param_groups
            for p, e in zip(group["params"], group["perturbation"], strict=True)
            if p.requires_grad
        ]
        return oracle(w + flat(ahead).to(w))  # to: that of a checkpoint may be on another device
