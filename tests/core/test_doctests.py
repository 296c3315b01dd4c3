"""The examples in the docstrings of core, terms and optim run."""

import doctest
from importlib import import_module
from pkgutil import iter_modules

import pytest

from fl_lightning import core, terms

MODULES = ["fl_lightning.optim"]
MODULES += [
    f"{package.__name__}.{module.name}"
    for package in (core, terms)
    for module in iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(import_module(name)).failed == 0
