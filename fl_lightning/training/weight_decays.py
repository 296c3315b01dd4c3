"""Parameter groups that differ in their weight decay, as a client's optimizer has them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning.core.algorithm import LocalFactory
from fl_lightning.errors import ModelError

Spans = Mapping[float, Sequence[slice]]
"""The parts of a vector that have a weight decay, by that decay."""


def by_decay(
    module: nn.Module, local: LocalFactory, groups: Sequence[dict[str, Any]]
) -> tuple[LocalFactory, str]:
    """A client's optimizer with the weight decays of parameter groups, and several as text.

    Raises:
        ModelError: If the groups differ in something else.
    """
    first, *others = groups
    for option in sorted(first.keys() - {"params", "weight_decay"}):
        if any(other[option] != first[option] for other in others):
            raise ModelError(
                f"the parameter groups of {type(module).__name__}.configure_optimizers differ in "
                f"{option}, but clients step one vector, whose parts differ in weight_decay alone: "
                "give all groups the same, or give lr="
            )
    decays = {p: group.get("weight_decay", 0.0) for group in groups for p in group["params"]}
    if len({*decays.values()}) == 1:
        return local, ""
    trained = [p for p in module.parameters() if p.requires_grad and p.numel()]
    spans, end = dict[float, list[slice]](), 0
    for decay, together in groupby(trained, decays.__getitem__):
        begin, end = end, end + sum(p.numel() for p in together)
        spans.setdefault(decay, []).append(slice(begin, end))
    sizes = {decay: sum(span.stop - span.start for span in of) for decay, of in spans.items()}
    text = ", ".join(f"{decay:g} of {size}" for decay, size in sizes.items())
    return partial(DecaysByPart, local=local, spans=spans), f"weight_decay {text} numbers"


class DecaysByPart(Optimizer):
    """Steps vectors in parts that have weight decays of their own.

    Its one group has the options of all parts and the largest decay, of which 0 is 0 for all.

    Args:
        params: The vectors. Of a shorter one the last parts are empty.
        local: Makes the optimizer that steps the parts.
        spans: The parts of each decay.
    """

    def __init__(self, params: Iterable[Tensor], local: Callable[..., Optimizer], spans: Spans):
        vectors, self.spans = [*params], spans
        self._parts = {
            decay: [
                (nn.Parameter(vector.detach().flatten()[span]), vector, span)
                for vector in vectors
                for span in spans[decay]
            ]
            for decay in spans
        }
        self.inner = local([{"params": [part for part, *_ in of]} for of in self._parts.values()])
        shared = {k: v for k, v in self.inner.param_groups[0].items() if k != "params"}
        super().__init__(vectors, {**shared, "weight_decay": max(spans)})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step along the gradients of the vectors."""
        (own,) = self.param_groups
        for (decay, parts), group in zip(self._parts.items(), self.inner.param_groups, strict=True):
            group.update(lr=own["lr"], weight_decay=decay if own["weight_decay"] else 0.0)
            for part, vector, span in parts:
                part.grad = None if vector.grad is None else vector.grad.flatten()[span]
        self.inner.step()
