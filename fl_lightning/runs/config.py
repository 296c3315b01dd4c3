"""The resolved options of a run, from a command line or from its folder, and their YAML."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import fields
from functools import lru_cache
from inspect import Parameter, signature
from io import StringIO
from itertools import chain
from os.path import relpath
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from fl_lightning.algorithms.modifiers import PARTS
from fl_lightning.algorithms.registry import functions
from fl_lightning.core.curves import Curve
from fl_lightning.core.curves import read as read_curve
from fl_lightning.core.draws import Draw
from fl_lightning.data import folder_sources, sources
from fl_lightning.errors import UserError
from fl_lightning.runs.chosen import Chosen
from fl_lightning.runs.code import OWN, copies, digest
from fl_lightning.runs.options import EXTENT, NUMBERS, ROUNDING, Effect, OfProgram, Options, marks

PLACE = frozenset({"run_dir", "resume"})
"""Options that say where a run lies: no part of it."""

OF_SOME_ALGORITHMS = frozenset({"lr", "momentum", "weight_decay", "clip_norm"})
"""Options that a run lacks if its algorithm has a local optimizer of its own."""

DOWNLOADED = frozenset(chain.from_iterable(map(functions, (sources, folder_sources))))
"""Data sources whose data set is the same in any folder; for others it is what the folder holds."""

OF_PROGRAM = frozenset({"data", "model", "code", "precision"})
"""What runs of one program share beside the options that are marked so (`OfProgram`)."""


class Config(dict[str, Any]):
    """The resolved options of a run by their flat names, in the types that YAML has.

    `algorithm` is the name of the method, `algorithm.rho` an option of it. `code` is a digest of
    the user's files that the run uses, if there are any. `config.yaml` holds the same, nested.

    Attributes:
        defaults: Defaults of the chosen functions' options: a run of an older version may lack one.
    """

    defaults: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(
        cls,
        options: Options,
        precision: str,
        chosen: Mapping[str, Chosen],
        files: Collection[Path] = (),
        unused: Collection[str] = (),
    ) -> "Config":
        """The configuration that a command line asks for, without the `unused` options.

        `files` are those of the user.
        """
        parts = {kind: {"name": c.name, **c.options} for kind, c in chosen.items()}
        general = {**vars(options), "precision": precision}
        kept = {k: v for k, v in general.items() if k not in PLACE and k not in unused}
        config = cls(plain(flat(parts | kept)))
        config.defaults = _component_defaults(chosen)
        if config._has_own_folder and chosen["data"].wants("root"):
            config["data_dir"] = str(Path(config["data_dir"]).absolute())
        if files:
            config["code"] = digest(copies(files))
        return config

    @classmethod
    def read(cls, folder: Path) -> "Config":
        """The configuration of the run in a folder; a general option that it lacks has its default.

        Raises:
            OSError, ValueError, AttributeError: If `config.yaml` is missing or damaged.
        """
        config = cls(flat(load((folder / "config.yaml").read_text())))
        if missing := [o for o in ("algorithm", "rounds", "seed") if o not in config]:
            raise UserError(f"config.yaml lacks {', '.join(missing)}")
        if files := sorted((folder / OWN).rglob("*.py")):
            config["code"] = digest({file.relative_to(folder): file for file in files})
        for name, default in DEFAULTS.items():
            config.setdefault(name, default)
        if config._has_own_folder and not Path(config["data_dir"]).exists():
            config["data_dir"] = _moved(config["data_dir"], folder)
        return config

    def text(self) -> str:
        """The content of `config.yaml`, which `--config` reads."""
        components = {name.partition(".")[0] for name in self if "." in name}
        nested = dict[str, Any]()
        for option, value in self.items():
            kind, _, name = option.partition(".")
            if kind in components:
                nested.setdefault(kind, {})[name or "name"] = value
            elif kind != "code":
                nested[kind] = value
        return dump(nested)

    def identity(self, *effects: Effect) -> dict[str, Any]:
        """The options that have one of these effects on the run.

        Beside a curve as lr, lr_decay has none.
        """
        without = {"lr_decay"} if isinstance(read_curve(self.get("lr")), Curve) else set[str]()
        named = {name: value for name, value in self.items() if name not in without}
        return {name: value for name, value in named.items() if self._effect(name) in effects}

    def differences(self, other: "Config", *effects: Effect) -> list[str]:
        """The names of the options with one of these effects that differ in the other run."""
        defaults = {**self.defaults, **other.defaults}
        both = Config({**defaults, **self}), Config({**defaults, **other})
        mine, its = (config.identity(*effects) for config in both)
        return [name for name in sorted({*mine, *its}) if mine.get(name) != its.get(name)]

    def program(self) -> dict[str, Any]:
        """The options that runs share which train as one program, beside their methods."""
        shared = OF_PROGRAM | marks(OfProgram).keys()
        return {name: value for name, value in self.items() if name.partition(".")[0] in shared}

    def check_resumption(self, now: "Config") -> None:
        """Raise a UserError that names the options in which a resumed run may not differ."""
        kept = [NUMBERS, *([ROUNDING] if now["deterministic"] else [])]
        changed = [name for name in self.differences(now, *kept) if not now._may_have_moved(name)]
        if changed:
            which = ", ".join(f"{k} was {self.get(k)} and is now {now.get(k)}" for k in changed)
            raise UserError(
                f"a resumed run keeps its options, but {which}: leave them as they were, or start "
                "another run"
            )

    def check_saved(self, before: Mapping[str, Any]) -> None:
        """Raise a UserError unless the rounds of a checkpoint, which holds these, had the options.

        `config.yaml` may have been edited.
        """
        Config({**DEFAULTS, **before}).check_resumption(self)

    def _effect(self, name: str) -> Effect:
        if name == "data_dir" and self._has_own_folder:
            return EXTENT  # another folder, other data; but a resumed run's may have moved
        return EFFECTS.get(name.partition(".")[0], NUMBERS)

    def _may_have_moved(self, name: str) -> bool:
        """Whether it is code, or a file of data, whose content the checkpoint tells apart."""
        of_data = name.startswith(("data.", "partition.")) and Path(str(self.get(name))).is_file()
        return of_data or name == "code"

    @property
    def _has_own_folder(self) -> bool:
        """Whether the data set may be a folder of the user's."""
        return "data" in self and self["data"] not in DOWNLOADED


def _moved(data_dir: str, run: Path) -> str:
    """The folder of a run's data where it lies now, if the whole project has moved; else as it was.

    It has moved if it lies from the present directory as it lay from that of the run.
    """
    file = run / "environment.yaml"
    directory = load(file.read_text()).get("directory") if file.is_file() else None
    if not directory or not Path(data_dir).is_absolute():
        return data_dir
    now = Path(relpath(data_dir, directory)).absolute()
    return str(now) if now.is_dir() else data_dir


def folders_of_runs(within: Path) -> list[Path]:
    """The folders in a folder that hold the options of a run, also in those that it links to."""
    links = (path for path in within.rglob("*/") if path.is_symlink())  # which rglob leaves out
    return sorted({f.parent for place in (within, *links) for f in place.rglob("config.yaml")})


def plain(value: Any) -> Any:
    """A value in the types that YAML has."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path | Curve | Draw) else value


def _component_defaults(chosen: Mapping[str, Chosen]) -> dict[str, Any]:
    """The defaults of the chosen functions' options by flat names.

    Parameters that the program fills in, such as the folder of the data, are no options.
    """
    return {
        f"{kind}.{parameter.name}": plain(parameter.default)
        for kind, c in chosen.items()
        if c.options
        for parameter in signature(c.function).parameters.values()
        if parameter.default is not Parameter.empty and parameter.name in c.options
    }


def _yaml() -> Any:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = yaml.sort_base_mapping_type_on_output = yaml.allow_unicode = False
    yaml.width = 2**20  # a text is not broken into lines
    return yaml


def load(text: str) -> Any:
    """Parse YAML; a UserError if it is none, or has a key twice."""
    return deepcopy(_parse(text))


@lru_cache(256)  # a table reads the same files for every run that it plans
def _parse(text: str) -> Any:
    try:
        return _yaml().load(text)
    except MarkedYAMLError as error:
        problem, _, _ = error.problem.partition(" with value ")  # of a key that stands there twice
        raise UserError(f"line {error.problem_mark.line + 1}: {problem}") from None
    except YAMLError as error:
        raise UserError(" ".join(str(error).split())) from None


def dump(content: Any) -> str:
    """The YAML of plain values."""
    text = StringIO()
    _yaml().dump(content, text)
    return text.getvalue()


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten `{"algorithm": {"name": "fedsam", "rho": 0.1}}` to `algorithm` and `algorithm.rho`.

    Raises:
        UserError: If an option is there in both spellings.
    """
    result: dict[str, Any] = {}
    for key, value in nested.items():
        for name, inner in value.items() if isinstance(value, Mapping) else [("name", value)]:
            option = key if name == "name" else f"{key}.{name}"
            if option in result:
                raise UserError(
                    f"names {option} twice, once under {option.partition('.')[0]} and once in full"
                )
            result[option] = inner
    return result


EFFECTS = marks(Effect)
"""The effects of the general options that have one."""

DEFAULTS = {
    f.name: plain(f.default) for f in fields(Options) if f.name not in PLACE | OF_SOME_ALGORITHMS
} | {part: next(iter(makers)) for part, makers in PARTS.items()}
"""The defaults of general options, but for those that an algorithm may not use, and of `PARTS`."""
