"""The page: a table of methods and simulators, where they differ, and fifty rounds."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import as_coded
import environments
import matplotlib
import numpy as np
import run_ours as ours
from equations import objective_gradient
from equations import path as paper
from matplotlib.figure import Figure
from problem import ADAPTIVE, COEFFICIENTS, LONG, ROBUST, UNEQUAL_STEPS, Case
from verdicts import CHOICE, OPEN, VERDICTS

EQUAL = {"pfl": 1e-5}
"""Largest difference that is rounding: pfl sends float32."""

NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD, option II",
    "scaffold_first": "SCAFFOLD, option I",
    "fednova": "FedNova",
    "fedavgm": "FedAvgM",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad",
    "feddyn": "FedDyn",
    "moon": "MOON",
    "fedsam": "FedSAM",
    "fedmedian": "FedMedian",
    "trimmed_mean": "Trimmed mean",
    "krum": "Krum",
}
LINES = {
    "equation": "k-",
    "ours": "C1--",
    "pfl-research": "C0-",
    "pfl-research, option I": "C0:",
    "fluke": "C2-",
    "FedLab": "C3-.",
    "FedAvg": "C7-",
}
SHOWN = 1, 5, 10, 25, 50


@dataclass(frozen=True)
class Comparison:
    """The runs of a simulator."""

    peer: str
    paths: dict[Case, np.ndarray]
    packages: Path

    def cases(self, method: str) -> list[Case]:
        """Those of a method, without the long ones."""
        return [c for c in self.paths if c.method == method and c.rounds < LONG["rounds"]]

    def difference(self, case: Case, rounds: int | None = None) -> float:
        """The largest one to the equation."""
        return distance(self.paths[case][:rounds], equation(case)[:rounds])

    def is_equal(self, case: Case) -> bool:
        """Whether the difference is rounding."""
        return self.difference(case) < EQUAL.get(self.peer, 1e-12)

    def cell(self, method: str) -> str:
        """Differences of the equal cases and of the others."""
        words = []
        equal = [self.difference(c) for c in self.cases(method) if self.is_equal(c)]
        if equal:
            words.append(f"equal, {number(max(equal))}")
        differing = [self.difference(c) for c in self.cases(method) if not self.is_equal(c)]
        if differing:
            leaves = VERDICTS[self.peer, method].whose == "simulator"
            word = "**differs**" if leaves else "differs"
            words.append(f"{word}, {number(differing[0])}")
        return "; ".join(words)


@cache
def equation(case: Case) -> np.ndarray:
    """The paper's weights after each round."""
    return paper(case)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference."""
    return float(abs(a - b).max())


def number(difference: float) -> str:
    """In two digits, or one if it is rounding."""
    if difference >= 100:
        return f"{difference:.0f}"
    return f"{difference:.0e}" if 0 < difference < 1e-5 else f"{difference:.2g}"


def length(w: np.ndarray) -> float:
    """The norm of the objective's gradient; infinite after a divergence."""
    with np.errstate(all="ignore"):
        found = float(np.linalg.norm(objective_gradient(w)))
    return found if np.isfinite(found) and abs(w).max() < 1e3 else float("inf")


def own_difference(method: str) -> float:
    """The largest of ours, equal weights and by size."""
    given = UNEQUAL_STEPS if method == "fednova" else {"everyone": method in ROBUST}
    rate = 0.1 if method in ADAPTIVE else 1.0
    weighting = (False,) if method in ("feddyn", *ROBUST) else (False, True)
    cases = [Case(method, by_size=by_size, server_lr=rate, **given) for by_size in weighting]
    return max(distance(ours.path(c), equation(c)) for c in cases)


def table(compared: list[Comparison]) -> list[str]:
    """Methods by simulators."""
    titles = [f"{environments.TITLES[c.peer]} {environments.version(c.peer)}" for c in compared]
    lines = [f"| method | ours | {' | '.join(titles)} |", "|---" * (len(titles) + 2) + "|"]
    for method in COEFFICIENTS:
        own = "" if method == "scaffold_first" else f"equal, {number(own_difference(method))}"
        cells = " | ".join(c.cell(method) for c in compared)
        lines.append(f"| {NAMES[method]} | {own} | {cells} |")
    return lines


def reasons(compared: list[Comparison]) -> list[str]:
    """A row for each difference."""
    rows = [
        "| simulator | method | after 1 round | after 8 | left with the change | why | who |",
        "|---" * 7 + "|",
    ]
    for c in compared:
        for method in COEFFICIENTS:
            for case in c.cases(method):
                if c.is_equal(case):
                    continue
                rows.append(reason(c, case))
    return rows


def reason(c: Comparison, case: Case) -> str:
    """The row of a difference."""
    verdict, coded = VERDICTS[c.peer, case.method], as_coded.path(c.peer, case)
    first, last = c.difference(case, 1), c.difference(case)
    why = verdict.what
    if verdict.options:
        given = ", ".join(f"`{name}={value:g}`" for name, value in verdict.options.items())
        left = distance(c.paths[case], ours.path(case, **verdict.options))
        why += f" Ours with {given} is {number(left)} away."
    cells = (
        environments.TITLES[c.peer],
        NAMES[case.method],
        number(first) if first > EQUAL.get(c.peer, 1e-12) else "0",
        number(last),
        "" if coded is None else number(distance(c.paths[case], coded)),
        f"{why} {verdict.place(c.packages)}",
        verdict.whose,
    )
    return f"| {' | '.join(cells).replace('|S|', 'M')} |"


def curves(compared: list[Comparison]) -> dict[str, dict[str, list[float]]]:
    """The gradient's norm after each round, of the long cases."""
    found: dict[str, dict[str, list[float]]] = {}
    for method, title in ("feddyn", "FedDyn"), ("scaffold", "SCAFFOLD"):
        case = Case(method, **LONG)
        lines = {"equation": equation(case), "ours": ours.path(case)}
        for c in compared:
            for kind, word in (method, ""), (f"{method}_first", ", option I"):
                path = c.paths.get(Case(kind, **LONG))
                if path is not None:
                    lines[environments.TITLES[c.peer] + word] = path
        lines["FedAvg"] = equation(Case("fedavg", **LONG))
        found[title] = {name: [*map(length, path)] for name, path in lines.items()}
    return found


def rounds_table(compared: list[Comparison]) -> list[str]:
    """The curves at some rounds."""
    head = " | ".join(map(str, SHOWN))
    rows = [f"| method | by | {head} |", "|---" * (len(SHOWN) + 2) + "|"]
    for title, lines in curves(compared).items():
        for name, values in lines.items():
            at = [values[n - 1] for n in SHOWN]
            cells = " | ".join(f"{v:.1e}" if np.isfinite(v) else "diverged" for v in at)
            rows.append(f"| {title} | {name} | {cells} |")
    return rows


def write_figure(compared: list[Comparison], path: Path) -> None:
    """One panel for each method."""
    matplotlib.rcParams["svg.hashsalt"] = path.name  # equal bytes each time
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (title, lines) in zip(panels, curves(compared).items(), strict=True):
        for name, values in lines.items():
            axes.semilogy(range(1, len(values) + 1), values, LINES[name], label=name)
        axes.set(title=title, xlabel="round")
        axes.legend(fontsize="small", frameon=False, loc="lower left")
    panels[0].set_ylabel("norm of the objective's gradient")
    figure.savefig(path, metadata={"Date": None})


def write_page(compared: list[Comparison], path: Path) -> None:
    """The page from its template."""
    counts = [
        VERDICTS[c.peer, m].whose
        for c in compared
        for m in COEFFICIENTS
        if any(not c.is_equal(case) for case in c.cases(m))
    ]
    whole = sum(bool(c.cases(m)) for c in compared for m in COEFFICIENTS)
    text = (Path(__file__).parent / "who-is-right.md.in").read_text()
    for key, value in {
        "TABLE": "\n".join(table(compared)),
        "REASONS": "\n".join(reasons(compared)),
        "ROUNDS": "\n".join(rounds_table(compared)),
        "CELLS": str(whole),
        "LEAVING": str(counts.count("simulator")),
        "CHOSEN": str(counts.count(CHOICE)),
        "AGREEING": str(whole - len(counts)),
        "OPEN": str(counts.count(OPEN)),
    }.items():
        text = text.replace(f"@{key}@", value)
    path.write_text(text)
