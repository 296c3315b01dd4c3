"""Parameter groups of an optimizer, on the one vector that a client steps."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer


class Group(NamedTuple):
    """A parameter group.

    Attributes:
        text: Its options as a text, by which groups are distinguished.
        options: They themselves.
        spans: The parts of the vector that it steps.
    """

    text: str
    options: dict[str, Any]
    spans: list[slice]

    @property
    def size(self) -> int:
        """The number of its weights."""
        return sum(span.stop - span.start for span in self.spans)


def groups_of(
    module: nn.Module,
    texts: Sequence[str],
    options: Sequence[dict[str, Any]],
    parameters: Sequence[Sequence[Tensor]],
) -> list[Group]:
    """The groups that differ and have trainable parameters, the largest learning rate first."""
    text_of = {p: text for text, own in zip(texts, parameters, strict=True) for p in own}
    trained = [p for p in module.parameters() if p.requires_grad and not is_lazy(p) and p.numel()]
    spans, end = dict[str, list[slice]](), 0
    for text, together in groupby(trained, text_of.__getitem__):
        begin, end = end, end + sum(p.numel() for p in together)
        spans.setdefault(text, []).append(slice(begin, end))
    spans = spans or {texts[0]: []}  # of a model with nothing to train, which is refused later
    groups = [Group(text, options[texts.index(text)], own) for text, own in spans.items()]
    return sorted(groups, key=lambda group: -group.options["lr"])


class ByGroup(Optimizer):
    """Steps the parts of vectors with the options of their groups.

    Its own group has the options of the first one, whose learning rate scales all others, and the
    largest weight decay, of which 0 is 0 for all.

    Args:
        params: The vectors. Of a shorter one the last parts are empty.
        local: Makes the optimizer that steps the parts.
        groups: The groups.

    Attributes:
        inner: That optimizer.
        uneven: An option besides the weight decay in which groups differ, so that a constant
            gradient moves their weights differently; empty if there is none.
    """

    def __init__(
        self, params: Iterable[Tensor], local: Callable[..., Optimizer], groups: Sequence[Group]
    ):
        vectors, self.groups = [*params], groups
        self._parts = [
            [(nn.Parameter(v.detach().flatten()[s]), v, s) for v in vectors for s in group.spans]
            for group in groups
        ]
        self.inner = local(
            {"params": [part for part, *_ in parts], **group.options}
            for parts, group in zip(self._parts, groups, strict=True)
        )
        first = groups[0].options
        differ = (k for k in sorted(first) if any(g.options[k] != first[k] for g in groups))
        self.uneven = next((k for k in differ if k != "weight_decay"), "")
        decay = max(group.options.get("weight_decay", 0.0) for group in groups)
        super().__init__(vectors, {**first, "weight_decay": decay})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step along the gradients of the vectors."""
        (own,), first = self.param_groups, self.groups[0].options["lr"]
        for parts, (_, options, _), group in zip(
            self._parts, self.groups, self.inner.param_groups, strict=True
        ):
            group["lr"] = own["lr"] * (options["lr"] / first if first else 1)
            group["weight_decay"] = own["weight_decay"] and options.get("weight_decay", 0.0)
            for part, vector, span in parts:
                part.grad = None if vector.grad is None else vector.grad.flatten()[span]
        self.inner.step()
