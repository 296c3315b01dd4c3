"""The named algorithms of the papers, each a function from its coefficients to an `Algorithm`.

The modules are the registry: whatever function of theirs returns an `Algorithm` is what `--algorithm` finds, and an
attribute of this package, `catalogue.fedtoga(rho=0.1)`. Defaults are the papers' (see each).
"""

from collections.abc import Callable
from inspect import getmembers, isfunction

from fl_lightning.catalogue import averaging, drift, personal, representation, servers, sharpness
from fl_lightning.core.algorithm import Algorithm

MODULES = averaging, servers, drift, sharpness, representation, personal


def algorithms() -> dict[str, Callable[..., Algorithm]]:
    """Every algorithm, by name."""
    functions = [pair for module in MODULES for pair in getmembers(module, isfunction)]
    functions.sort(key=lambda pair: pair[0])
    return {n: f for n, f in functions if n[0] != "_" and f.__annotations__.get("return") is Algorithm}


def __getattr__(name: str) -> Callable[..., Algorithm]:
    if name in (known := algorithms()):
        return known[name]
    raise AttributeError(f"the catalogue has no algorithm {name!r}; there are: {', '.join(known)}")
