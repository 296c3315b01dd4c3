"""Checks of what a term's author has written: messages name the term, the hook and the fix."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, fields, is_dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from inspect import isroutine, signature
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fl_lightning.core.losses import one_number
from fl_lightning.core.oracle import BatchOracle, ForwardPass, Loss, Oracle, Request
from fl_lightning.core.randomness import generator_states
from fl_lightning.core.stacked_functions import is_stacked, transforms
from fl_lightning.core.term import OfClients, OfLayout, Term, overrides
from fl_lightning.core.view import DRAWS, FACTS, View, check_like, check_unchanged, unchanged
from fl_lightning.errors import TermError, first_sentence

HOOKS = {
    name: tuple(signature(hook).parameters)[1:]
    for name, hook in vars(Term).items()
    if isroutine(hook) and not name.startswith("_")
}
"""The hooks of a term, and their arguments."""

VISIT = "start", "gradient", "send", "report"
"""The hooks of a client's visit."""

IN_PLACE = "change in place only what is made of w, as torch.zeros_like(w) or w.new_zeros(())"
"""The fix for changes in place of a tensor that all clients share under `vmap`."""

SHARED = (
    "but all clients share the term: declare what changes as a state, such as "
    "local = {'g': zeros}, and assign v.g"
)
"""The fix for a term that changes itself."""

IN_PARALLEL = {
    "randomness": "draw by v.uniform or v.normal, in `update` by torch",
    "Batching rule": "use other functions of torch",
    "have storage": "use functions of torch, not of numpy",
    "saved tensor hooks": "leave out torch.utils.checkpoint",
    "functorch transform": "take gradients by the oracle or torch.func.grad",
    "does not require grad": "take gradients by the oracle or torch.func.grad",
    "inference tensor": "use torch.no_grad",
    "more elements than `self`": IN_PLACE,
    "broadcast shape": IN_PLACE,
    "vmap": "replace `if`, int() and .item() by torch.where or (v.round < 3) * a + (v.round >= 3) "
    "* b, boolean indexing by a mask, F.one_hot by a comparison with torch.arange",
}
"""PyTorch's words for code that cannot run for several clients in parallel, and the fix."""


def check_declaration(term: Term) -> None:
    """Raise a `TermError` for mistakes that show before a hook runs."""
    name = type(term).__name__
    if is_dataclass(term) and not type(term).__dataclass_params__.frozen:
        raise TermError(
            f"{name} is a mutable dataclass, whose changes all clients would share: "
            "write @dataclass(frozen=True), and keep changing values in states"
        )
    for tags in ("roles", "logs", "diagnostics"):
        if isinstance(declared := getattr(term, tags), str):
            raise TermError(f"{name} declares {tags} = {declared!r}: write ({declared!r},)")
    for hook, arguments in HOOKS.items():
        given = ", ".join(arguments)
        try:
            signature(getattr(term, hook)).bind(*arguments)
        except TypeError:
            raise TermError(
                f"{name}.{hook} cannot be called with ({given}): write def {hook}(self, {given})"
            ) from None
    coefficients = {field.name for field in fields(term)} if is_dataclass(term) else set[str]()
    others = sorted(set(dir(type(term))) - set(dir(Term)) - coefficients)
    for own in (name for name in others if not name.startswith("_")):
        near = get_close_matches(own, HOOKS, n=1, cutoff=0.8)
        if near and isroutine(getattr(type(term), own)):
            raise TermError(
                f"{name} has a method {own!r}, which is never called: the hook is {near[0]!r}; "
                f"name another method _{own}"
            )
    for lifetime in ("client", "server", "local"):
        declared = getattr(term, lifetime)
        if not isinstance(declared, Mapping) or not all(
            callable(make) or isinstance(make, OfLayout | OfClients) for make in declared.values()
        ):
            raise TermError(
                f"{name} declares {lifetime} = {declared!r}: map each state to its initializer, as "
                f"in {lifetime} = {{'c_i': zeros}} (or scalar, initial, received)"
            )
    names = [*term.client, *term.server, *term.local]
    for state in names:
        if state in {*FACTS, *DRAWS, "log"} or state.startswith("_") or names.count(state) > 1:
            raise TermError(
                f"{name} declares a state {state!r}, but v.{state} would be ambiguous: rename it, "
                f"without leading underscore and not as one of {', '.join(sorted(FACTS))}"
            )


class GuardedTerm(Term):
    """A term whose hooks are checked as they run; `views` gets the view of each call."""

    def __init__(self, term: Term, index: int, views: list["StrictView"]):
        self.term, self.index, self.views = term, index, views
        for hook in HOOKS:
            if hook != "combine" or overrides(term, hook):  # by which one knows who combines
                setattr(self, hook, partial(self._call, hook))

    def _call(self, hook: str, *arguments: Any) -> Any:
        *given, v = arguments
        view = StrictView(self.term, self.index, hook, v)
        self.views.append(view)
        calls, kept = len(self.views), {**vars(self.term)}
        w: Tensor = next(x for x in given if isinstance(x, Tensor))
        if hook == "gradient":
            given[1] = w = w.detach()  # another tensor than every fact
            given[0] = _strict(given[0], view, w)
        if hook == "combine":
            w = w[0]
        drawn = generator_states(w.device) if is_stacked() else ()
        with _blame(view._where, [*tree_leaves(given), *vars(v).values()]):
            try:
                value = getattr(self.term, hook)(*given, view)
                if drawn and generator_states(w.device) != drawn:
                    raise RuntimeError("randomness of numpy or Python is drawn once for all")
            except (TypeError, IndexError, ValueError, AttributeError) as error:
                if isinstance(error, TermError) or hook != "update" or tree_leaves(given[1]):
                    raise
                raise TermError(
                    f"{view._where} failed ({type(error).__name__}: {first_sentence(error)}); its "
                    "mean is empty, because clients report nothing: let `report` return what it "
                    "needs"
                ) from error
        for name, own in vars(self.term).items():
            cached = isinstance(getattr(type(self.term), name, None), cached_property)
            if kept.get(name) is not own and not cached:
                raise TermError(f"{view._where} assigns self.{name}, {SHARED}")
        for inner in self.views[calls:]:  # a gradient that was asked for may be a state there
            check_unchanged(view._where, inner._kept)
        if hook != "report":
            check_like(value, w, f"{view._where} returned", "return a vector like the model")
        for leaf in tree_leaves(value):
            rule = "return tensors such as x.to(w), or () for no message"
            check_like(leaf, w, f"the message of {view._where} has", rule, ("dtype", "device"))
        vars(v).update(view._states())
        vars(view)["_passes_on"] = value is given[0]
        vars(view)["_kept"] = [(state, state._version) for state in view._states().values()]
        return value


class StrictView(View):
    """A view that explains what it refuses, and notes the names that a hook reads and assigns.

    It logs nothing.
    """

    _hook: str
    _in_loss: bool
    _read: set[str]
    _assigned: set[str]
    _passes_on: bool = False
    _kept: Sequence[tuple[Tensor, int]] = ()

    def __init__(self, term: Term, index: int, hook: str, view: View):
        in_visit = hook in VISIT
        loggable = (*term.logs, *term.diagnostics) if in_visit else ()
        where = f"{type(term).__name__}.{hook}"
        vars(self).update(vars(view), _term=index, _hook=hook, _where=where, _loggable=loggable)
        vars(self).update(_in_loss=False, _read=set(), _assigned=set())

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name[0] != "_":
            self._read.add(name)
        return value

    def __setattr__(self, name: str, value: Tensor) -> None:
        if self._in_loss:
            raise TermError(
                f"{self._where}'s loss assigns v.{name}, but a loss may only read: assign it in "
                f"{self._where}, as in v.{name} = v.{name} + oracle.loss(w)"
            )
        super().__setattr__(name, value)
        self._assigned.add(name)

    def log(
        self,
        name: str,
        value: float | Tensor | Callable[[], Tensor],
        weight: float | Tensor = 1.0,
    ) -> None:
        """Check what a hook logs."""
        if name not in self._loggable or self._in_loss:
            raise TermError(
                f"{self._where} logs {name!r}, but can log {', '.join(self._loggable) or 'nothing'}"
                f": declare logs = ({name!r},), and log in a hook of a visit, not in a loss"
            )
        if isinstance(value, Tensor) and value.ndim:
            shape = tuple(value.shape)
            raise TermError(f"{self._where} logs {name!r} of shape {shape}: it is one number")


def _strict(oracle: Oracle, view: StrictView, at: Tensor) -> Oracle:
    """The oracle that a term receives `at` a point: it checks the term's losses."""
    around = transforms()

    def checked(loss: Loss, b: ForwardPass) -> Tensor:
        vars(view)["_in_loss"] = True
        followed = () if is_stacked() else (at.requires_grad_(),)
        try:
            with _blame(f"{view._where}'s loss"):
                value: Any = loss(b)
            number = one_number(value, f"{view._where}'s loss", TermError)
            if number.requires_grad and any(_depends(number, w) for w in followed):
                raise TermError(
                    f"{view._where} has a loss that depends on w, which has no gradient there: "
                    "add a penalty's gradient, as oracle.of(loss)(w) + self.mu * w, or compute "
                    "what is constant before the loss"
                )
        finally:
            vars(view)["_in_loss"] = False
            for w in followed:
                w.requires_grad_(False)
        if b.out.requires_grad and not (number.requires_grad or is_stacked()):
            raise TermError(
                f"{view._where}'s loss has no gradient: compute it of b.out or b.activations, "
                "without detach, item() and no_grad; a constant is 0 * b.out.sum()"
            )
        return number

    def evaluate(w: Tensor, request: Request) -> Tensor:
        if view._in_loss:
            raise TermError(
                f"{view._where}'s loss asks for oracle(w) or oracle.loss(w), but a loss reads its "
                "own pass only: b.at(w) is the batch at other weights, b.at(w).loss its loss"
            )
        if len(transforms()) > len(around):
            raise TermError(
                f"{view._where} transforms the oracle by torch.func, which cannot be done: call it "
                "at each point; (oracle(w + e * u) - oracle(w)) / e is the Hessian times u"
            )
        what = f"{view._where} asks for the gradient or the loss at"
        check_like(w, vars(view)["anchor"], what, "ask at a vector like the model")
        asked = oracle.part(request.index, request.count)
        for loss in request.losses:
            asked = asked.of(partial(checked, loss), *request.layers)
        return asked.loss(w) if request.loss_only else asked(w)

    return BatchOracle(evaluate)


def _depends(number: Tensor, w: Tensor) -> bool:
    """Whether a number was computed from a tensor that autograd follows."""
    (g,) = torch.autograd.grad(number, w, retain_graph=True, allow_unused=True)
    return g is not None


@contextmanager
def _blame(where: str, given: Sequence[Any] = ()) -> Iterator[None]:
    """A context that adds the term, and the fix where it is known, to an exception in a hook.

    It also refuses in-place changes of the tensors `given`.
    """
    try:
        with unchanged(where, given):
            yield
    except TermError:
        raise
    except Exception as error:
        if "does not require grad" in str(error):
            raise TermError(
                f"{where} asks autograd for a gradient, which records nothing there: take it by "
                "the oracle or torch.func.grad"
            ) from error
        if isinstance(error, FrozenInstanceError):
            raise TermError(f"{where} assigns to self ({error}), {SHARED}") from error
        fix = next((fix for said, fix in IN_PARALLEL.items() if said in str(error)), None)
        if fix and is_stacked() and isinstance(error, RuntimeError):
            raise TermError(
                f"{where} cannot run for several clients in parallel ({first_sentence(error)}): "
                f"{fix}; or train with the sequential executor and without --compile"
            ) from error
        if not hasattr(error, "__notes__"):  # of an inner term, or of a loss
            error.add_note(f"raised in {where}")
        raise
