"""The mistakes that one makes writing a term: found as early as they show, and told with the term and the mend."""

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

from fl_lightning.core.term import FACTS, Term, check_kind, check_like
from fl_lightning.errors import ModelError, TermError, first_sentence

HOOKS = {
    name: tuple(signature(hook).parameters)[1:]
    for name, hook in vars(Term).items()
    if isroutine(hook) and not name.startswith("_")
}
"""The hooks of a term, and what each is called with."""

# ------------------------------------------------------------------------------------------- before a term has run


def check_term(term: Any) -> None:
    """Find what is wrong with a term as it is written.

    Raises:
        TermError: If it is no term, may change itself, has a hook that cannot be called or is
            misspelt, or declares states that cannot be meant.
    """
    if not isinstance(term, Term):
        raise TermError(f"an algorithm is made of terms such as SAM(rho=0.1), not of {term!r}")
    if is_dataclass(term) and not type(term).__dataclass_params__.frozen:
        raise TermError(
            f"{type(term).__name__} is a dataclass that may change itself, which every client would see, in an order "
            "of the executor's: write @dataclass(frozen=True), and keep in states what changes"
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
                f"{name}.{hook} cannot be called with ({given}): begin it as def {hook}(self, {given})"
            ) from None
    coefficients = {field.name for field in fields(term)} if is_dataclass(term) else set[str]()
    for own in sorted(set(dir(type(term))) - set(dir(Term)) - coefficients):
        near = get_close_matches(own, HOOKS, n=1, cutoff=0.8)
        if near and isroutine(getattr(type(term), own)):
            raise TermError(
                f"{name} has a method {own!r}, which nobody calls: the hook is {near[0]!r}. If it is a method of your "
                f"own, name it _{own}"
            )


def _check_states(term: Term) -> None:
    name = type(term).__name__
    for lifetime in ("client", "server", "local"):
        declared = getattr(term, lifetime)
        if not isinstance(declared, Mapping):
            raise TermError(
                f"{name} declares {lifetime} as a {type(declared).__name__}; name each state and how it begins, as "
                f"{lifetime} = {{'c_i': zeros}}"
            )
        for state, beginning in declared.items():
            if not callable(beginning):
                raise TermError(
                    f"{name} declares that its {lifetime} state {state!r} begins as a {type(beginning).__name__}; say "
                    f"how: zeros, scalar, initial, received, or a function of w^0 and the model received now"
                )
    names = [*term.client, *term.server, *term.local]
    for state in names:
        if state in FACTS or state.startswith("_") or names.count(state) > 1:
            raise TermError(
                f"{name} declares a state {state!r}, but v.{state} would mean two things. Rename it: one name for one "
                f"state, without a leading underscore and not one of {', '.join(sorted(FACTS))}"
            )


# ------------------------------------------------------------------------------------------------- what hooks return


def returned(value: Any, like: Tensor, term: Term, hook: str) -> Tensor:
    """`value` if it is a vector like the model.

    Raises:
        TermError: If it is not, naming the term and the hook.
    """
    check_like(
        value,
        like,
        f"{type(term).__name__}.{hook} returned",
        "it must return a vector like the model",
    )
    return value


def check_message(message: Any, like: Tensor, term: Term) -> None:
    """Raise a `TermError` unless a message is made of tensors with the model's dtype and device."""
    for leaf in tree_leaves(message):
        told = f"{type(term).__name__}.report returned, in its message,"
        if not isinstance(leaf, Tensor):
            raise TermError(
                f"{told} {type(leaf).__name__} {leaf!r}; return a tensor or a tuple of tensors, or () to say nothing"
            )
        check_kind(leaf, like, told, "the server takes means, so return x.to(w)")


def check_alike(messages: Sequence[Any], expected: Sequence[Any], terms: Sequence[Term]) -> None:
    """Raise a `TermError` unless the messages, one a term, are made as those expected, as the server's sums are."""
    for message, first, term in zip(messages, expected, terms, strict=True):
        if _shapes(message) != _shapes(first):
            raise TermError(
                f"{type(term).__name__}.report returned a message of shapes {_shapes(message)}, which were "
                f"{_shapes(first)} before the first round; messages of all clients and rounds are made alike, so that "
                "they have a mean: fill up with zeros"
            )


def _shapes(message: Any) -> Any:
    return tree_map(lambda t: tuple(t.shape), message)


# --------------------------------------------------------------------------------------------------- what hooks do


def versions(given: Sequence[Tensor]) -> list[int]:
    """How often each of these was changed in place; under `vmap` not seen of the clients' rows."""
    return [] if torch.is_inference_mode_enabled() else [t._version for t in given]


def check_untouched(given: Sequence[Tensor], before: list[int], where: str) -> None:
    """Raise a `TermError` if a hook has changed in place what it was given."""
    if versions(given) != before:
        raise TermError(
            f"{where} changes a tensor in place, for everyone who shares it, the global model among them: instead of "
            "v.c.add_(x) or w[0] = x write v.c = v.c + x and return w + x"
        )


AT_ONCE = {
    "randomness": "Draw random numbers in `update` only",
    "have storage": "Use functions of torch, not of numpy",
    "vmap": "Replace `if`, int() or .item() on a tensor by torch.where, boolean indexing by a mask and F.one_hot by a "
    "comparison with torch.arange",
}
"""What PyTorch says of code that cannot run for several clients at once, and the mend."""


@contextmanager
def blame(term: Term, hook: str, *given: Tensor) -> Iterator[None]:
    """Let an exception in a hook name the term, and the mend where it is known.

    Args:
        term: Whose hook it is.
        hook: Which one.
        given: What the hook may not change in place.
    """
    where, before = f"{type(term).__name__}.{hook}", versions(given)
    try:
        yield
        check_untouched(given, before, where)
    except (TermError, ModelError):
        raise
    except GuardOnDataDependentSymNode as error:
        raise TermError(
            f"{where} decides by the value of a tensor, which cannot be compiled (all numbers of the view are tensors "
            "then): instead of `if` write torch.where, or (v.round < 3) * a + (v.round >= 3) * b, which is the same "
            "compiled or not, instead of F.one_hot a comparison with torch.arange; or train without --compile"
        ) from error
    except StopIteration as error:  # which Python would take for the end of the clients
        raise TermError(f"{where} ends with StopIteration: a next() found nothing left") from error
    except RuntimeError as error:
        mend = next((mend for said, mend in AT_ONCE.items() if said in str(error)), None)
        if mend is None:
            error.add_note(f"raised in {where}")
            raise
        raise TermError(
            f"{where} cannot run for several clients at once: {first_sentence(error)}. {mend}, or train with the "
            "sequential executor and without --compile"
        ) from error
    except Exception as error:
        error.add_note(f"raised in {where}")
        raise


@contextmanager
def blame_silence(term: Term, mean: Any) -> Iterator[None]:
    """Let an exception in `update` say so where it got no mean, because `report` returned nothing."""
    try:
        yield
    except (TypeError, IndexError, ValueError, AttributeError) as error:
        if tree_leaves(mean):
            raise
        raise TermError(
            f"{type(term).__name__}.update failed ({type(error).__name__}: {first_sentence(error)}), and its mean is "
            "empty because clients report nothing: let `report` return what the server needs"
        ) from error
