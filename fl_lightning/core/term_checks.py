"""Checks of a term: messages name the term, the hook and the fix."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from inspect import isroutine, signature
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.term import Term
from fl_lightning.core.view import FACTS, check_kind, check_like
from fl_lightning.errors import ModelError, TermError, first_sentence

HOOKS = {
    name: tuple(signature(hook).parameters)[1:]
    for name, hook in vars(Term).items()
    if isroutine(hook) and not name.startswith("_")
}
"""The hooks of a term, and their arguments."""


def check_term(term: Any) -> None:
    """Raise a `TermError` for mistakes that show before a term runs."""
    if not isinstance(term, Term):
        raise TermError(f"an algorithm consists of terms such as SAM(rho=0.1), not of {term!r}")
    if is_dataclass(term) and not type(term).__dataclass_params__.frozen:
        raise TermError(
            f"{type(term).__name__} is a mutable dataclass, whose changes all clients would share: "
            "write @dataclass(frozen=True), and keep changing values in states"
        )
    _check_hooks(term)
    _check_states(term)


def _check_hooks(term: Term) -> None:
    name = type(term).__name__
    for hook, arguments in HOOKS.items():
        given = ", ".join(arguments)
        try:
            signature(getattr(term, hook)).bind(*arguments)
        except TypeError:
            raise TermError(
                f"{name}.{hook} cannot be called with ({given}): write def {hook}(self, {given})"
            ) from None
    coefficients = {field.name for field in fields(term)} if is_dataclass(term) else set[str]()
    for own in sorted(set(dir(type(term))) - set(dir(Term)) - coefficients):
        near = get_close_matches(own, HOOKS, n=1, cutoff=0.8)
        if near and isroutine(getattr(type(term), own)):
            raise TermError(
                f"{name} has a method {own!r}, which is never called: the hook is {near[0]!r}; "
                f"name another method _{own}"
            )


def _check_states(term: Term) -> None:
    name = type(term).__name__
    for lifetime in ("client", "server", "local"):
        declared = getattr(term, lifetime)
        if not isinstance(declared, Mapping) or not all(map(callable, declared.values())):
            raise TermError(
                f"{name} declares {lifetime} = {declared!r}: map each state to its initializer, as "
                f"in {lifetime} = {{'c_i': zeros}} (or scalar, initial, received)"
            )
    names = [*term.client, *term.server, *term.local]
    for state in names:
        if state in {*FACTS, "log"} or state.startswith("_") or names.count(state) > 1:
            raise TermError(
                f"{name} declares a state {state!r}, but v.{state} would be ambiguous: rename it, "
                f"without leading underscore and not as one of {', '.join(sorted(FACTS))}"
            )


def returned(value: Any, like: Tensor, term: Term, hook: str) -> Tensor:
    """The value that a hook returned; raises a `TermError` unless it is a vector like the model."""
    what = f"{type(term).__name__}.{hook} returned"
    check_like(value, like, what, "it must return a vector like the model")
    return value


def check_message(message: Any, like: Tensor, term: Term) -> None:
    """Raise a `TermError` unless a message is made of tensors with the model's dtype and device."""
    for leaf in tree_leaves(message):
        what = f"{type(term).__name__}.report returned, in its message,"
        if not isinstance(leaf, Tensor):
            raise TermError(
                f"{what} {leaf!r}: return a tensor or a tuple of tensors, or () for no message"
            )
        check_kind(leaf, like, what, "the server averages messages: return x.to(w)")


def check_same_structure(
    messages: Sequence[Any], expected: Sequence[Any], terms: Sequence[Term]
) -> None:
    """Raise a `TermError` unless the messages, one a term, have the shapes of those expected."""
    for message, first, term in zip(messages, expected, terms, strict=True):
        if _shapes(message) != _shapes(first):
            raise TermError(
                f"{type(term).__name__}.report returned a message of shapes {_shapes(message)}, "
                f"not {_shapes(first)} as before: fill up with zeros, since messages are averaged"
            )


def _shapes(message: Any) -> Any:
    return tree_map(lambda t: tuple(t.shape), message)


def _versions(given: Sequence[Tensor]) -> list[int]:
    """The number of in-place changes of each tensor; changes under `vmap` are missed."""
    return [] if torch.is_inference_mode_enabled() else [t._version for t in given]


AT_ONCE = {
    "randomness": "draw random numbers in `update` only",
    "Batching rule": "use other functions of torch",
    "have storage": "use functions of torch, not of numpy",
    "vmap": "replace `if`, int() and .item() by torch.where, boolean indexing by a mask, F.one_hot "
    "by a comparison with torch.arange",
}
"""PyTorch's words for code that cannot run for several clients in parallel, and the fix."""


@contextmanager
def blame(term: Term, hook: str, *given: Tensor) -> Iterator[None]:
    """A context that adds the term, and the fix where it is known, to an exception in a hook.

    It also refuses in-place changes of the tensors `given`.
    """
    where, before = f"{type(term).__name__}.{hook}", _versions(given)
    try:
        yield
        if _versions(given) != before:
            raise TermError(
                f"{where} changes a shared tensor in place: instead of v.c.add_(x) or w[0] = x, "
                "write v.c = v.c + x and return w + x"
            )
    except (TermError, ModelError):
        raise
    except GuardOnDataDependentSymNode as error:
        raise TermError(
            f"{where} branches on the value of a tensor, which cannot be compiled (numbers of the "
            "view are tensors then): write torch.where or (v.round < 3) * a + (v.round >= 3) * b, "
            "and torch.arange for F.one_hot; or train without --compile"
        ) from error
    except RuntimeError as error:
        fix = next((fix for said, fix in AT_ONCE.items() if said in str(error)), None)
        if fix is None:
            error.add_note(f"raised in {where}")
            raise
        raise TermError(
            f"{where} cannot run for several clients in parallel ({first_sentence(error)}): {fix}; "
            "or train with the sequential executor and without --compile"
        ) from error
    except Exception as error:
        error.add_note(f"raised in {where}")
        raise


@contextmanager
def blame_silence(term: Term, mean: Any) -> Iterator[None]:
    """A context that explains an exception of an `update` whose mean is empty."""
    try:
        yield
    except (TypeError, IndexError, ValueError, AttributeError) as error:
        if tree_leaves(mean):
            raise
        what = f"{type(error).__name__}: {first_sentence(error)}"
        raise TermError(
            f"{type(term).__name__}.update failed ({what}); its mean is empty, because "
            "clients report nothing: let `report` return what it needs"
        ) from error
