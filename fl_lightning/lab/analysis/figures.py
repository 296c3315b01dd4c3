"""Figures of analyses. Each draws the results of several runs, by label, on the same scale."""

from collections.abc import Mapping
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.ticker import MaxNLocator, PercentFormatter
from torch import Tensor

from fl_lightning.lab.analysis.curvature import Hessian, Interpolation, Surface
from fl_lightning.lab.displayed import Figure

COLORS = mpl.color_sequences["tab10"]
PANEL = 3.4
"""Width and height of a panel in inches."""


def spectra(results: Mapping[str, Hessian]) -> Figure:
    """The spectral density of each Hessian, with ticks at its top eigenvalues."""
    nodes = torch.cat([h.nodes[h.weights > 0] for h in results.values()])
    low, high = float(nodes.min()), float(nodes.max())
    margin = 0.05 * (high - low) or 1.0
    places = torch.linspace(low - margin, high + margin, 1000, dtype=torch.float64)
    figure, (axes,) = _panels(1, width=5.6)
    peak = 0.0
    for color, (label, h) in zip(_cycle(len(results)), results.items(), strict=True):
        density = h.density(places, width=0.01 * (places[-1] - places[0]).item())
        peak = max(peak, density.max().item())
        axes.plot(places.numpy(), density.numpy(), color=color, label=label)
        style = {"color": color, "transform": axes.get_xaxis_transform()}
        axes.plot(h.eigenvalues, [0.02] * len(h.eigenvalues), "|", ms=12, **style)
    axes.set(xlabel="eigenvalue", ylabel="density", yscale="log", ylim=(1e-7 * peak, 3 * peak))
    axes.legend(frameon=False)
    return figure


def surfaces(results: Mapping[str, Surface], axes_name: str = "direction") -> Figure:
    """Each loss surface in three dimensions and, below it, as contours."""
    figure = Figure(figsize=(PANEL * len(results), 1.75 * PANEL), dpi=150, layout="constrained")
    values = torch.cat([surface.loss.flatten() for surface in results.values()])
    finite = values[values.isfinite()]
    low, high = float(finite.min()), float(finite.max())
    levels = MaxNLocator(15).tick_values(low, high)
    for column, (label, surface) in enumerate(results.items(), start=1):
        steps = surface.steps.numpy()
        a, b = np.meshgrid(steps, steps, indexing="ij")
        loss = surface.loss.clamp(max=high).numpy()
        hill: Any = figure.add_subplot(2, len(results), column, projection="3d")
        hill.plot_surface(a, b, loss, cmap="viridis", vmin=low, vmax=high, linewidth=0)
        hill.set(zlim=(low, high), title=fill(label, 36))
        flat = figure.add_subplot(2, len(results), len(results) + column)
        filled = flat.contourf(a, b, loss, levels=levels, cmap="viridis")
        flat.contour(a, b, loss, levels=levels, colors="white", linewidths=0.4)
        flat.plot(0, 0, "+", color="red")
        flat.set(xlabel=f"{axes_name} 1", ylabel=f"{axes_name} 2", aspect="equal")
    figure.colorbar(filled, ax=figure.axes[1::2], label="loss", shrink=0.8)
    return figure


def interpolation(result: Interpolation, first: str, second: str) -> Figure:
    """Loss and, of classes, accuracy on the line from one model to the other."""
    figure, (axes,) = _panels(1, width=5.6)
    places = result.places.numpy()
    axes.plot(places, result.loss.numpy(), color=COLORS[0])
    axes.set_xlabel(f"0: {first}\n1: {second}")
    axes.set_ylabel("loss", color=COLORS[0])
    if not result.accuracy.isnan().all():
        right = axes.twinx()
        right.plot(places, result.accuracy.numpy(), "--", color=COLORS[1])
        right.set_ylabel("accuracy", color=COLORS[1])
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
    for end in (0, 1):
        axes.axvline(end, color="gray", linewidth=0.8)
    return figure


def embeddings(results: Mapping[str, tuple[Tensor, Tensor]], classes: tuple[str, ...]) -> Figure:
    """Samples in the plane (n, 2), colored by their classes (n,)."""
    figure, panels = _panels(len(results))
    colors = _cycle(len(classes))
    for axes, (label, (plane, y)) in zip(panels, results.items(), strict=True):
        keys = [
            axes.scatter(*plane[y == k].T.numpy(), s=5, color=colors[k], linewidths=0)
            for k in range(len(classes))
        ]
        axes.set(title=fill(label, 36), xticks=[], yticks=[])
    if len(classes) <= 20:
        style: dict[str, Any] = {"markerscale": 3, "frameon": False, "ncols": min(5, len(classes))}
        legend = figure.legend(keys, classes, loc="outside lower center", **style)
        for name in legend.get_texts():
            name.set_parse_math(False)
    return figure


def confusions(results: Mapping[str, Tensor], classes: tuple[str, ...]) -> Figure:
    """Each confusion matrix (classes, classes), rows as shares of their class."""
    few = len(classes) <= 20
    size = 4.4 if few else PANEL
    figure, panels = _panels(len(results), size, size)
    for axes, (label, matrix) in zip(panels, results.items(), strict=True):
        shares = (matrix / matrix.sum(1, keepdim=True).clamp(min=1)).numpy()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axes.set(title=fill(label, 36), xlabel="predicted")
        if few:
            ticks = range(len(classes))
            axes.set_xticks(ticks, classes, rotation=90, parse_math=False)
            axes.set_yticks(ticks, classes, parse_math=False)
            for row, column in np.ndindex(*shares.shape):
                if share := round(100 * float(shares[row, column])):
                    color = "white" if share > 50 else "black"
                    at = {"ha": "center", "va": "center", "fontsize": 6}
                    axes.text(column, row, str(share), color=color, **at)
    panels[0].set_ylabel("class")
    figure.colorbar(image, ax=panels, format=PercentFormatter(1.0), shrink=0.7)
    return figure


def client_histogram(
    results: Mapping[str, Tensor], metric: str = "accuracy", unit: int = 100
) -> Figure:
    """A histogram of one score for each client (clients,); a line marks the mean.

    The axis is in percent if `unit` is 100.
    """
    figure, (axes,) = _panels(1, width=5.6)
    held = {label: scores[~scores.isnan()].numpy() for label, scores in results.items()}
    every = np.concatenate([*held.values()])
    margin = 0.005 if unit == 100 else 0.0
    bins = np.linspace(every.min() - margin, every.max() + margin, 21)
    for color, (label, scores) in zip(_cycle(len(held)), held.items(), strict=True):
        axes.hist(scores, bins, color=color, alpha=0.35)
        axes.hist(scores, bins, color=color, histtype="step", label=label)
        axes.axvline(scores.mean(), color=color, linewidth=1)
    axes.set(xlabel=f"{metric} of a client", ylabel="clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if unit == 100:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False)
    return figure


def _panels(count: int, width: float = PANEL, height: float = PANEL) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width * count, height), dpi=150, layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _cycle(count: int) -> list[Any]:
    """This many different colors."""
    few = count <= len(COLORS)
    return list(COLORS[:count] if few else mpl.colormaps["turbo"](np.linspace(0, 1, count)))
