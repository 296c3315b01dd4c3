r"""`fl-lightning partition`: which client holds what, in one or several schemes, without training.

    fl-lightning partition digits --partition.alpha 0.3 --figure heat.png
    fl-lightning partition --config fedtoga/table1 --csv counts.csv \
        -- --partition iid

The first argument may name a recipe (default: the recipe of a table among the --config files, else
papers). The options of the recipe follow. Several schemes are shown side by side: a `--` begins the
options of each; those before the first `--` are for all schemes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame, concat
from torch import Tensor

from fl_lightning.callbacks.display import MOST_SHOWN, draw_heat_map
from fl_lightning.cli.arguments import ArgumentParser, check_figures, values_of
from fl_lightning.cli.config_files import read_chain
from fl_lightning.cli.error_messages import exit_with_message
from fl_lightning.cli.recipes import experiment_of
from fl_lightning.data.partition import smallest_median_largest
from fl_lightning.files import atomic
from fl_lightning.lab.displayed import Figure
from fl_lightning.lab.report.table import Table
from fl_lightning.runs.config import Config
from fl_lightning.runs.options import Effect
from fl_lightning.training.parts import run_data

CAPTION = (
    "smallest, median, largest: samples of a client; classes: mean number that a client holds; "
    "distance: total variation between the class proportions of a client and of all samples, mean "
    "and largest"
)


@dataclass(frozen=True, eq=False)
class Scheme:
    """A partition, as numbers.

    Attributes:
        label: Its name, and the options in which it differs from the other schemes.
        counts: Samples of each class held by each client, (clients, classes); one column without
            classes.
        classes: The names of the classes; none if targets are no classes.
    """

    label: str
    counts: Tensor
    classes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of the counts."""
        return self.classes or ("samples",)

    @cached_property
    def measures(self) -> tuple[Tensor, Tensor, Tensor]:
        """Samples of each client, its number of classes, and its distance, (clients,) each.

        The distance is the total variation between the class proportions of a client and of all
        samples; clients without samples have none.
        """
        sizes = self.counts.sum(1)
        mixtures = self.counts[sizes > 0].double() / sizes[sizes > 0, None]
        whole = self.counts.sum(0).double() / self.counts.sum()
        return sizes, (self.counts > 0).sum(1), (mixtures - whole).abs().sum(1) / 2

    def row(self) -> dict[str, str]:
        """The cells of its row by heading."""
        sizes, held, distances = self.measures
        smallest, median, largest = smallest_median_largest(sizes)
        cells = {
            "partition": self.label,
            "clients": f"{len(sizes):,}",
            "samples": f"{sizes.sum():,}",
            "smallest": smallest,
            "median": median,
            "largest": largest,
        }
        if self.classes:
            cells["classes"] = f"{held.double().mean():.1f}"
            cells["distance"] = f"{distances.mean():.3f} (max {distances.max():.3f})"
        return cells

    def frame(self) -> DataFrame:
        """The counts, one row a client."""
        frame = DataFrame(self.counts.numpy(), columns=list(self.names))
        frame.insert(0, "partition", self.label)
        return frame.rename_axis("client").reset_index()


def main(argv: Sequence[str]) -> None:
    """Print the table that `argv` asks for, draw the figure and write the counts."""
    named = bool(argv) and not argv[0].startswith("-")
    recipe, argv = (argv[0], argv[1:]) if named else (None, argv)
    parser = ArgumentParser(
        "fl-lightning partition",
        usage="%(prog)s [RECIPE] [OPTIONS] [-- OPTIONS]...",
        description=__doc__,
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="a .png, .pdf or .svg")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="samples by client and class")
    groups = [[*group] for dashes, group in groupby(argv, "--".__eq__) if not dashes]
    files, shared = parser.parse_known_args(groups[0] if groups else [])
    with exit_with_message():
        check_figures([files.figure] if files.figure else [])
        each = [[*shared, *more] for more in groups[1:]] or [shared]
        recipe = recipe or _recipe(argv)
        shown = schemes([experiment_of(recipe, options) for options in each])
        rows = DataFrame([scheme.row() for scheme in shown]).fillna("")
        Table(rows, caption=CAPTION).show()
        if files.csv:
            with atomic(files.csv, "w") as file:
                concat([scheme.frame() for scheme in shown]).to_csv(file, index=False)
        if files.figure:
            figure(shown).save(files.figure)


def _recipe(argv: Sequence[str]) -> str:
    """The recipe of a table among the `--config` files, else papers."""
    contents = (content for file in values_of(argv, "--config") for content in read_chain(file))
    return ["papers", *(c["recipe"] for c in contents if "recipe" in c)][-1]


def schemes(experiments: Sequence[Any]) -> list[Scheme]:
    """The partitions that these experiments train on. Equal data are loaded once."""
    loaded: dict[str, Any] = {}
    found, configs = [], [experiment.config for experiment in experiments]
    for experiment in experiments:
        data = experiment.chosen["data"]
        key = str((data.name, data.options, experiment.options.data_dir))
        loaded[key] = train, test = loaded[key] if key in loaded else experiment.load()
        whole = experiment.split(train)
        partition = run_data(train, test, whole, experiment.options).partition
        counts = partition.histogram(train.labels, train.num_classes)
        found.append(Scheme(_label(experiment.config, configs), counts, train.classes))
    return found


def _label(config: Config, others: Sequence[Config]) -> str:
    """The name of a scheme with the options in which it differs from others of its name."""
    like = [other for other in others if other["partition"] == config["partition"]]
    differ = {option for other in like for option in config.differences(other, *Effect)}
    shown = (f"{o.removeprefix('partition.')} {config[o]}" for o in config if o in differ)
    return ", ".join([config["partition"], *shown])


def figure(schemes: Sequence[Scheme]) -> Figure:
    """A column for each scheme: heat map, and histograms of sizes, classes and distances.

    The last two are left out if no targets are classes.
    """
    high = 4 if any(scheme.classes for scheme in schemes) else 2
    figure = Figure((1 + 4.5 * len(schemes), 2 + 2 * high), dpi=110, layout="constrained")
    ratios = [2, 1, 1, 1][:high]
    panels = figure.subplots(high, len(schemes), squeeze=False, sharey="row", height_ratios=ratios)
    largest = max(int(scheme.measures[0].max()) for scheme in schemes)
    most = max(int(scheme.counts.max()) for scheme in schemes)
    classes = max(len(scheme.names) for scheme in schemes)
    for scheme, (heat, sizes, *of_class) in zip(schemes, panels.T, strict=True):
        image = draw_heat_map(heat, scheme.counts[:MOST_SHOWN], scheme.names, most)
        figure.colorbar(image, ax=heat, label="samples")
        of_sizes, of_classes, of_distances = scheme.measures
        some = f" (the first {MOST_SHOWN:,} clients)" if len(of_sizes) > MOST_SHOWN else ""
        heat.set_title(scheme.label + some)
        sizes.hist(of_sizes, bins=torch.linspace(0, largest, 25))
        sizes.set(xlabel="samples of a client", ylabel="clients")
        if of_class:
            held, distances = of_class
            held.hist(of_classes, bins=torch.arange(classes + 2) - 0.5, rwidth=0.8)
            held.set(xlabel="classes of a client", ylabel="clients")
            distances.hist(of_distances, bins=torch.linspace(0, 1, 25))
            distances.set(xlabel="distance of a client", ylabel="clients")
    return figure
