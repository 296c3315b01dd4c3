"""Runs loaded from their folders and compared: data frames, tables and figures.

Imports `runs`, `algorithms` and below.
"""

from fl_lightning.report.comparison import Comparison
from fl_lightning.report.figure import curves
from fl_lightning.report.frame import load
from fl_lightning.report.score import BEST, LAST, TAIL, Score
from fl_lightning.report.table import Table, pivot_table, scores_table
from fl_lightning.runs.run import Run, load_runs

__all__ = [
    "BEST",
    "LAST",
    "TAIL",
    "Comparison",
    "Run",
    "Score",
    "Table",
    "curves",
    "load",
    "load_runs",
    "pivot_table",
    "scores_table",
]
