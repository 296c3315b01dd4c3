"""Runs, read back from their folders and compared: tables and figures."""

from fl_lightning.report.comparison import Comparison, Entry
from fl_lightning.report.figure import curves
from fl_lightning.report.score import BEST, LAST, TAIL, Score
from fl_lightning.report.table import Table, across_table, scores_table
from fl_lightning.runs.run import Run, found

__all__ = [
    "BEST",
    "LAST",
    "TAIL",
    "Comparison",
    "Entry",
    "Run",
    "Score",
    "Table",
    "across_table",
    "curves",
    "found",
    "scores_table",
]
