"""FedSOL's toy example (Figure 12): where FedProx and FedSOL come to rest.

    python recipes/toy.py toy.png

The local loss is (u - 1)^2 / 2 + 0.1 (v - 1)^2 / 2, the proximal one
mu (u^2 + v^2) / 2 around the global model in the origin. FedProx rests off the
line from there to the local optimum, as v is flat; FedSOL rests on it, at the
distance rho from the optimum.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from types import SimpleNamespace
from typing import cast

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fl_lightning import Term
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.term import View
from fl_lightning.terms import SOL, Proximal

OPTIMUM, CURVATURE = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.1])
STEPS, LR = 4000, 0.01
TERMS = {
    "FedAvg": Term(),
    "FedProx": Proximal(1.0),
    "FedSOL": SOL(Proximal(1.0), 0.5, None),
}


def gradient(w: Tensor) -> Tensor:
    """The gradient of the local loss."""
    return CURVATURE * (w - OPTIMUM)


def path(term: Term) -> Tensor:
    """The weights after each step from the origin, (steps + 1, 2)."""
    ws = [torch.zeros(2)]
    view = cast(View, SimpleNamespace(anchor=ws[0], layout=None, log=lambda *_: None))
    for _ in range(STEPS):
        ws.append(ws[-1] - LR * term.gradient(cast(Oracle, gradient), ws[-1], view))
    return torch.stack(ws)


def main() -> None:
    """Print where each method rests, and draw its path into the file that is named."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("figure", nargs="?", help="a .png, .pdf or .svg to draw into")
    o = parser.parse_args()
    paths = {name: path(term) for name, term in TERMS.items()}
    for name, points in paths.items():
        print(f"{name:<8} rests at ({points[-1][0]:.3f}, {points[-1][1]:.3f})")
    if o.figure:
        figure = Figure(layout="constrained")
        axes = figure.subplots()
        u, v = torch.meshgrid(*[torch.linspace(-0.1, 1.2, 99)] * 2, indexing="xy")
        loss = CURVATURE[0] * (u - 1) ** 2 / 2 + CURVATURE[1] * (v - 1) ** 2 / 2
        axes.contour(u, v, loss, 15, colors="lightgray")
        for name, points in paths.items():
            axes.plot(*points.T, marker="o", markevery=[-1], label=name)
        axes.set(xlabel="u", ylabel="v", aspect="equal")
        axes.legend()
        figure.savefig(o.figure)


if __name__ == "__main__":
    main()
