"""The functions that a run has chosen: their checked results, and their names in its folder."""

import runpy
import sys
import warnings
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from inspect import Parameter, Signature, signature
from itertools import combinations
from operator import attrgetter
from pathlib import Path
from textwrap import shorten
from types import SimpleNamespace
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.core.docstrings import summary
from fl_lightning.core.randomness import derived_seed, seeded_rng
from fl_lightning.data import DeviceDataset, FederatedData
from fl_lightning.data.columns import check_finite
from fl_lightning.data.dataset import TrainTest
from fl_lightning.data.dataset import rows as count
from fl_lightning.errors import UserError, first_sentence
from fl_lightning.runs.code import copy_of, imports, search_first

MOST_CLASSES = 2**18
"""As many as a vocabulary has. Higher numbers are amounts or times, and their names fill memory."""


@dataclass(frozen=True)
class Chosen:
    """The chosen function and its options."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]

    def __call__(self, *args: Any, **extra: Any) -> Any:
        """Call the function with its options."""
        return self.function(*args, **extra, **self.options)

    def call_with(self, **parts: Any) -> Any:
        """Call the function with its options and those of the parts that are its parameters."""
        return self(**{name: part for name, part in parts.items() if self.wants(name)})

    @property
    def file(self) -> Path | None:
        """The file of a user-defined function; None if a package or a notebook has it.

        Of a function that a recipe imports from beside it, it is the recipe.
        """
        if ":" in self.name:
            return Path(self.name.partition(":")[0])
        if self.function.__module__ != "__main__":
            module, recipe = sys.modules.get(self.function.__module__), Path(sys.argv[0])
            imported = recipe.suffix == ".py" and module and imports(recipe, module)
            return recipe if imported else None
        code = getattr(self.function, "__code__", None)  # the recipe, which may have ended
        file = code.co_filename if code else getattr(sys.modules["__main__"], "__file__", "")
        return Path(file) if Path(file).is_file() else None

    @property
    def place(self) -> str:
        """Where the function is defined: `module:name` or `file.py:name`."""
        if ":" in self.name:
            return self.name
        module = self.function.__module__
        file = self.file if module == "__main__" else None
        return f"{file or module}:{self.function.__qualname__}"

    def wants(self, parameter: str) -> bool:
        """Whether the function has a parameter of this name."""
        return parameter in signature(self.function).parameters


def known_name(functions: Mapping[str, Callable[..., Any]], name: str) -> str:
    """A function's name, also when spelled as in a paper: FedLESAM-S is fedlesam_s.

    Several names that + joins are in the order of the functions. An unknown name stays as it is.
    """
    names = {*name.lower().replace("-", "_").split("+")}
    known = [n for n in functions if n in names]
    return "+".join(known) if len(known) == len(names) else name


def joined(functions: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any] | None:
    """The function of that name; of several names that + joins, one that returns all results.

    That one has the options of all. None if a name is unknown.

    Raises:
        UserError: If two of them have an option of the same name.
    """
    names = name.split("+")
    if len(names) == 1 or not functions.keys() >= {*names}:
        return functions.get(name)
    several = [functions[n] for n in names]
    parameters = [signature(function).parameters for function in several]
    for (a, of_a), (b, of_b) in combinations(zip(names, parameters, strict=True), 2):
        if both := of_a.keys() & of_b.keys():
            raise UserError(
                f"{a} and {b} cannot be joined, because both have an option {min(both)!r}: write "
                "a function that returns a Modifier with the terms of both"
            )

    def all_of(**options: Any) -> tuple[Any, ...]:
        return tuple(
            function(**{option: options[option] for option in own if option in options})
            for function, own in zip(several, parameters, strict=True)
        )

    hints = [get_type_hints(function, include_extras=True) for function in several]
    all_of.__name__, all_of.__annotations__ = name, dict(ChainMap(*hints))
    all_of.__doc__ = " ".join(summary(function) for function in several)
    vars(all_of)["__signature__"] = Signature([p for own in parameters for p in own.values()])
    return all_of


def build_data(source: Chosen, root: Path) -> tuple[DeviceDataset, DeviceDataset]:
    """The training and the test set of a source, which may read files in `root`.

    Raises:
        UserError: If they are none, of two kinds, normalized differently, empty, or not finite.
    """
    pair = source.call_with(root=root)
    if isinstance(pair, FederatedData):
        pair = _with_owners(source, pair)
    match pair:
        case DeviceDataset() as train, DeviceDataset() as test:
            pass
        case _:
            raise UserError(wrong_result(source, "a training and a test DeviceDataset", pair))
    for kind, data in (("training", train), ("test", test)):
        if not len(data):
            raise UserError(f"{source.name} has no {kind} samples: give it at least one")
        if not data.shape:
            raise UserError(f"{source.name} has single numbers as samples: give x of shape (n, 1)")
        for part in tree_leaves((data.x, data.y)):
            check_finite(part, f"{source.name}, {kind} samples,")
    for what in ("classes", "shape", "dtype", "mean", "std"):
        ours, theirs = (getattr(data.first if what == "dtype" else data, what) for data in pair)
        if ours != theirs:
            raise UserError(
                f"{source.name} has {what} {ours} for training and {theirs} for testing: "
                "give both the same"
            )
    if len(train) == len(test) and train.digest == test.digest:
        warnings.warn(
            f"{source.name} has the same samples for training and for testing: test scores say "
            "nothing about unseen data",
            stacklevel=2,
        )
    return train, test


def _with_owners(source: Chosen, data: FederatedData) -> TrainTest:
    """The clients' training rows and the test rows, with their owners as domains."""
    if data.test is None:
        raise UserError(f"{source.name} has no test rows: give FederatedData test=0.2")
    if data.validation is not None:
        raise UserError(
            f"{source.name} has a validation part, which --validation takes: leave out that of "
            "FederatedData"
        )
    used, rows = data.partition.indices.sort().values, data.train
    if len(used.unique()) < len(used):
        raise UserError(
            f"several clients of {source.name} hold the same rows: give each row one owner, or a "
            "--partition that lets clients share rows"
        )
    if len(used) < count(rows):
        rows = tree_map(lambda t: t[used], rows)
    (x, y), (test_x, test_y) = data.divided(rows), data.divided(data.test)
    classes, names = data.classes or number_names(y, test_y), tuple(data.names)
    owners = data.partition.owners()[used]
    train = DeviceDataset(x, y, classes, domains=owners, domain_names=names, unit=data.unit)
    held = data.parts["test"].owners() if "test" in data.parts else None
    known = () if held is None else names
    test = DeviceDataset(test_x, test_y, classes, domains=held, domain_names=known, unit=data.unit)
    return train, test


def number_names(*targets: Any) -> tuple[str, ...]:
    """The names of classes that are numbers; none if targets are no classes of samples."""
    if not all(isinstance(y, Tensor) and y.ndim == 1 and y.dtype == torch.int64 for y in targets):
        return ()
    lowest, highest = min(int(y.min()) for y in targets), max(int(y.max()) for y in targets)
    return tuple(map(str, range(highest + 1))) if 0 <= lowest <= highest < MOST_CLASSES else ()


def build_model(factory: Chosen, train: DeviceDataset, seed: int) -> nn.Module:
    """The model for samples of this data set, with weights drawn from the run's seed.

    Raises:
        UserError: If it is none.
    """
    sizes = {
        "classes": train.num_classes,
        "channels": train.shape[0],
        "size": train.shape[-1],
        "inputs": torch.Size(train.shape).numel(),
    }
    if factory.wants("vocabulary"):
        tokens = [t for t in tree_leaves((train.x, train.y)) if t.dtype == torch.int64]
        sizes["vocabulary"] = 1 + max(int(t.max()) for t in tokens) if tokens else 0
    draws = derived_seed(seed, "model")
    with seeded_rng(draws, torch.device("cpu")):
        torch.manual_seed(draws)  # a factory may use GPUs
        model = factory.call_with(**sizes)
    if not isinstance(model, nn.Module):
        raise UserError(wrong_result(factory, "a torch.nn.Module", model))
    return model


def wrong_result(function: Chosen, expected: str, value: Any) -> str:
    """The sentence about a function that returned something else than expected."""
    short = shorten(repr(value), 80, placeholder=" ...")
    return f"{function.name} must return {expected}, but returned {short}"


# --- the same functions again, from the run's folder


def find_chosen(
    kind: str, options: Mapping[str, Any], environment: Mapping[str, Any], folder: Path
) -> Chosen:
    """The function that a run has chosen as its `data` or `model`, with its options.

    A user-defined file is executed where it lies; its copy in the run's folder is used if the file
    is gone or has changed.

    Raises:
        UserError: If the function is not recorded, cannot be imported, or lacks an option.
    """
    place = environment.get("functions", {}).get(kind)
    if place is None:
        other = ", or give it one of its class: run.model(module)" if kind == "model" else ""
        raise UserError(
            f"{folder} does not record its {kind}: add `functions: {{{kind}: module:name}}` "
            f"to its environment.yaml{other}"
        )
    try:
        function = _import(place, environment, folder)
        prefix = f"{kind}."
        own = {o.removeprefix(prefix): v for o, v in options.items() if o.startswith(prefix)}
        parameters, directory = signature(function).parameters, environment.get("directory", "")
        typed = {o: _typed(parameters[o], v, directory) for o, v in own.items()}
    except Exception as error:
        raise UserError(
            f"the {kind} of {folder} cannot be made again from {place} ({first_sentence(error)}): "
            "restore it, or correct `functions` in environment.yaml"
        ) from error
    return Chosen(str(options[kind]), function, typed)


def _import(place: str, environment: Mapping[str, Any], folder: Path) -> Callable[..., Any]:
    where, _, name = place.rpartition(":")
    directory, recipe = Path(environment.get("directory", "")), environment.get("recipe", "")
    is_file = where.endswith(".py")
    original = Path(where if is_file else recipe)
    copy, original = folder / copy_of(original), directory / original
    file = copy if _has_changed(original, copy) else original
    beside = str((directory / recipe).resolve().parent)
    sys.path += [] if beside in sys.path else [beside]  # it may import its neighbors
    if is_file or copy.is_file():
        search_first(file.resolve().parent)
    if not is_file:
        return attrgetter(name)(import_module(where))
    return attrgetter(name)(SimpleNamespace(**_executed(file, file.read_text("utf-8"))))


def _has_changed(original: Path, copy: Path) -> bool:
    """Whether a user-defined file, or one that it imports, is another one than its copy."""
    if not copy.is_file():
        return False
    kept = (file for file in copy.parent.rglob("*.py") if "-from-round-" not in file.stem)
    return any(
        not (now := original.parent / file.relative_to(copy.parent)).is_file()
        or now.read_bytes() != file.read_bytes()
        for file in kept
    )


@lru_cache
def _executed(file: Path, text: str) -> dict[str, Any]:
    """The names that a file with this text defines."""
    if "Experiment(" in text and "__name__" not in text:
        raise UserError(f"{file} would train: begin its last part with `if __name__ == ...`")
    return runpy.run_path(str(file), run_name="own")


def _typed(parameter: Parameter, value: Any, directory: str) -> Any:
    """The value of an option as the function takes it, from the types that YAML has.

    Files are relative to the directory in which the run was trained.
    """
    if isinstance(value, str) and "Path" in str(parameter.annotation):
        return Path(directory, value)
    return tuple(value) if isinstance(value, list) else value
