"""Arguments of FederatedTrainer as the options, choices and parts of a run."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from shlex import split
from typing import Any, ParamSpec, TypeVar, get_type_hints

from fl_lightning.algorithms import modifiers
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.curves import read
from fl_lightning.core.vector import Layout
from fl_lightning.data import CropFlip
from fl_lightning.data.federated import FederatedData
from fl_lightning.distributed.launch_options import LaunchOptions
from fl_lightning.errors import UserError, nearest
from fl_lightning.federation.client_selection import SAMPLERS
from fl_lightning.federation.mean_loss import modes_kept
from fl_lightning.federation.trials import dry_run
from fl_lightning.runs.chosen import Chosen, joined, known_name
from fl_lightning.runs.converters import convert
from fl_lightning.runs.options import Options, without_effect
from fl_lightning.training import parts
from fl_lightning.training.call_texts import loss_text
from fl_lightning.training.habits import ELSEWHERE, elsewhere
from fl_lightning.training.parts import RunData, client_data
from fl_lightning.training.session import Parts
from fl_lightning.training.task import Task

P = ParamSpec("P")
T = TypeVar("T")

LAUNCH = tuple(f.name for f in fields(LaunchOptions))
OPTIONS = tuple(f.name for f in fields(Options) if f.name not in ELSEWHERE)
"""The options of `Options` that the trainer takes."""

CONTINUE = re.compile(r"--run-dir ('.*'|\S+) --resume")
NO_FLAG = r"(?<!tensorboard )(?<!srun )(?<![\w./-])"  # of another program; in a name
FLAG = re.compile(NO_FLAG + r"--(?:[a-z]+\.)?([a-z][a-z-]*)(?: (\d+(?:[.,]\d+)*)(?![\w-]))?")


def read_options(given: dict[str, Any]) -> tuple[Options, LaunchOptions]:
    """Split the trainer's options into options of a run and options of Fabric.

    Raises:
        UserError: If there is no such option, or it is out of range or without effect.
    """
    for name in given:
        if name not in OPTIONS + LAUNCH:
            fix = elsewhere(name, OPTIONS + LAUNCH)
            raise UserError(f"FederatedTrainer has no option {name!r}{fix}")
    launch = {name: value for name, value in given.items() if name in LAUNCH}
    if "devices" in launch:  # as the command line has them: 2, "2", [0, 2] or "auto"
        devices = launch["devices"]
        ids = isinstance(devices, list | tuple)
        launch["devices"] = ",".join(map(str, devices)) + "," if ids else str(devices)
    own = {name: _converted(name, value) for name, value in given.items() if name not in LAUNCH}
    options = Options(**own)
    for sentence in without_effect(given, options):
        raise UserError(as_arguments(sentence))
    return options, LaunchOptions(**launch)


def _converted(name: str, value: Any) -> Any:
    """The value of an option in its type on the command line: 10 of checkpoint_every is a text."""
    try:
        return convert(get_type_hints(Options)[name], value)
    except UserError as error:
        fix = "; objects are given as loggers=[...]" if name == "logger" else ""
        raise UserError(f"{name}: {error}{fix}") from None


def read_sampling(given: Any) -> Chosen:
    """The sampler of this name, or one that is given as a function, an object or a class."""
    if callable(given):
        return Chosen(loss_text(given), given, {})
    if given not in SAMPLERS:
        raise UserError(
            f"sampling is {given!r:.60}: give one of {', '.join(SAMPLERS)}, or a function "
            "sampler(num_clients, seed, round) that returns clients"
        )
    return Chosen(given, SAMPLERS[given], {})


def check_objects(callbacks: Any, loggers: Any, augment: Any) -> None:
    """Raise a UserError unless the first two are lists, and objects have the methods needed."""
    if not isinstance(augment, CropFlip | None):
        raise UserError(
            f"augment is {augment!r:.60}: give CropFlip(...), or draw other transforms in the "
            "training step"
        )
    if not all(isinstance(given, list | tuple) for given in (callbacks, loggers)):
        raise UserError("callbacks and loggers are lists: write callbacks=[...]")
    for logger in loggers:
        if not all(hasattr(logger, name) for name in ("log_metrics", "save", "finalize")):
            raise UserError(
                f"{logger!r:.60} is no logger: give an object with log_metrics, save and finalize, "
                "such as lightning.fabric.loggers.CSVLogger(folder)"
            )


def read_algorithm(given: str | Mapping[str, Any] | Algorithm) -> dict[str, Chosen]:
    """The algorithm and the parts of other methods, as the command line chooses them."""
    own = dict(given) if isinstance(given, Mapping) else {"name": given}
    chosen = {
        part: _chosen(part, own.pop(part, next(iter(makers))), makers)
        for part, makers in modifiers.PARTS.items()
    }
    if isinstance(given, Algorithm):
        name = "+".join(type(term).__name__ for term in given.terms) or "Algorithm"
        algorithm = Chosen(name, lambda **_: given, _recorded(given))
    else:
        algorithm = _chosen("algorithm", own, ALGORITHMS)
    return {"algorithm": algorithm, **chosen}


def _recorded(algorithm: Algorithm) -> dict[str, str]:
    """The terms of an algorithm, and its other parts unless they are the default, as texts.

    They are without the addresses of functions, which differ in each start.
    """
    default = vars(Algorithm())
    own = {name: part for name, part in vars(algorithm).items() if part is not default[name]}
    own["terms"] = algorithm
    return {name: re.sub(r" at 0x\w+", "", str(part)) for name, part in own.items()}


def _chosen(kind: str, given: Any, known: Mapping[str, Callable[..., Any]]) -> Chosen:
    """A choice with all its options, as the run's configuration has them."""
    options = dict(given) if isinstance(given, Mapping) else {"name": given}
    if not isinstance(options.get("name"), str):
        other = ", or an Algorithm, as your function returns it" if kind == "algorithm" else ""
        raise UserError(
            f"the {kind} is {options.get('name', given)!r:.60}: give a name, or a mapping with a "
            f"name and options{other}"
        )
    if ".py:" in options["name"]:
        raise UserError(
            f"the {kind} is {options['name']!r}, but only the command line reads files: import it, "
            "and give an Algorithm of its terms"
        )
    name = known_name(known, options.pop("name"))
    function = joined(known, name) if kind in modifiers.JOINED else known.get(name)
    if function is None:
        raise UserError(f"there is no {kind} {name!r}{nearest(name.lower(), known)}")
    defaults = {p.name: p.default for p in signature(function).parameters.values()}
    for option in options:
        if option not in defaults:
            raise UserError(f"{name} has no option {option!r}{nearest(option, defaults)}")
    values = defaults | {option: read(value) for option, value in options.items()}
    if missing := [option for option, value in values.items() if value is Parameter.empty]:
        example = {"name": name, **dict.fromkeys(missing, "...")}
        raise UserError(f"{kind} {name} needs {', '.join(missing)}: give {{{kind!r}: {example}}}")
    return Chosen(name, function, values)


def read_data(data: FederatedData | None, datamodule: Any, clients: Any) -> FederatedData:
    """The data of `fit`; a UserError if there are none, or two."""
    if data is not None and datamodule is not None:
        raise UserError("there are data and a datamodule: give one of them")
    if datamodule is not None:
        return FederatedData.from_datamodule(datamodule, clients=clients)
    if clients is not None:
        raise UserError("clients are part of the data: give FederatedData(..., clients=...)")
    if not isinstance(data, FederatedData):
        raise UserError(
            f"the data are a {type(data).__name__}: give FederatedData(rows, clients=...), or a "
            "LightningDataModule as datamodule="
        )
    return data


def names(task: Task, data: FederatedData, augment: CropFlip | None) -> dict[str, Chosen]:
    """Model, data, partition and augmentation as the run's configuration names them."""
    found = {
        "model": Chosen(type(task.module).__name__, type(task.module), task.recorded),
        "data": Chosen("FederatedData", FederatedData, {}),
    }
    if of := data.scheme:
        options = {name: value for name, value in of.options.items() if name != "clients"}
        found["partition"] = Chosen(of.scheme.__name__, of.scheme, options)
    if augment:
        found["augment"] = Chosen(type(augment).__name__, type(augment), asdict(augment))
    return found


def tried(
    task: Task,
    algorithm: Algorithm,
    data: FederatedData,
    o: Options,
    augment: CropFlip | None,
    callbacks: Sequence[Any],
) -> Parts:
    """What trains, after it was tried: refused before there is a folder or a rank.

    There is an empty test set if the data have none.
    """
    train = task.dataset(data)
    test, validation = (
        None if getattr(data, part) is None else task.dataset(data, part)
        for part in ("test", "validation")
    )
    own_tests = data.parts.get("test")
    if o.finetune_epochs and not (test and (train.classes or own_tests)):
        raise UserError(
            "finetune_epochs scores clients by classes, or on test rows of their own: give "
            "FederatedData test=0.2"
        )
    test = train.subset(slice(0, 0)) if test is None else test
    made = RunData(train, test, data.partition, data.partition, validation, own_tests)
    if task.metrics and not made.scored(task):
        raise UserError(
            "metrics are scored on a test or validation part: give FederatedData test=0.2"
        )
    Layout(task.model)
    own = parts.callbacks(callbacks, made, Path(), task)
    of_clients = o.finetune_epochs or any(hasattr(one, "task") for one in own)
    with modes_kept(task.module), task.attached():
        clients = client_data(made, augment, o)
        dry_run(task.model, clients, task.loss, nullcontext)
        scored = dict(made.scored(task)) | ({"test": test} if of_clients and len(test) else {})
        for part, dataset in scored.items():
            task.try_out(dataset, part)
        task.check_scores()
    return Parts(task, made, parts.with_general_options(algorithm, o))


def as_arguments(sentence: str) -> str:
    """The sentence with arguments in the place of flags.

    Example:
        >>> as_arguments("use --batch-size 5, or add --resume")
        'use batch_size=5, or add fit(..., resume=True)'
        >>> as_arguments("srun --ntasks 2 in my--run")
        'srun --ntasks 2 in my--run'
    """
    named = CONTINUE.sub(lambda found: f'run_dir="{split(found[1])[0]}" and --resume', sentence)
    return FLAG.sub(_argument, named)


def _argument(flag: re.Match[str]) -> str:
    name, value = flag[1].replace("-", "_"), flag[2]
    if name == "resume":
        return "fit(..., resume=True)"
    if value and "," in value:
        return f"{name}=[{value.replace(',', ', ')}]"
    return f"{name}={value}" if value else name


@contextmanager
def speaking_of_arguments() -> Iterator[None]:
    """Let a UserError name arguments in the place of flags."""
    try:
        yield
    except UserError as error:
        error.args = (as_arguments(str(error)),)
        if notes := getattr(error, "__notes__", []):
            notes[:] = map(as_arguments, notes)
        raise


def named_arguments(method: Callable[P, T]) -> Callable[P, T]:
    """Let errors name arguments in the place of flags, and a wrong call those that there are."""
    own = signature(method)
    taken = ", ".join(str(p.replace(annotation=p.empty)) for p in [*own.parameters.values()][1:])

    @wraps(method)
    @speaking_of_arguments()
    def called(*given: P.args, **options: P.kwargs) -> T:
        try:
            own.bind(*given, **options)
        except TypeError as error:
            raise UserError(
                f"{method.__name__}({taken}) {error}: give a module, and data=FederatedData("
                "dataset, clients=...) with all rows"
            ) from None
        return method(*given, **options)

    return called
