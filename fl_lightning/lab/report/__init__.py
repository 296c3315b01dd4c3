"""Runs loaded from their folders and compared: data frames, tables and figures.

Imports `runs`, `algorithms` and below.
"""

from fl_lightning.lab.report.comparison import Comparison, compare
from fl_lightning.lab.report.figure import against, curves
from fl_lightning.lab.report.frame import load
from fl_lightning.lab.report.grid import grid
from fl_lightning.lab.report.score import SCORES, Score, main_score, main_tag, score
from fl_lightning.lab.report.table import Table
from fl_lightning.runs.run import Run, load_runs

__all__ = [
    "SCORES",
    "Comparison",
    "Run",
    "Score",
    "Table",
    "against",
    "compare",
    "curves",
    "grid",
    "load",
    "load_runs",
    "main_score",
    "main_tag",
    "score",
]
