"""Runs loaded from their folders and compared: data frames, tables and figures."""

from fl_lightning.lab.report.comparison import Comparison as Comparison
from fl_lightning.lab.report.comparison import compare as compare
from fl_lightning.lab.report.comparison import load as load
from fl_lightning.lab.report.figure import against as against
from fl_lightning.lab.report.figure import curves as curves
from fl_lightning.lab.report.grid import grid as grid
from fl_lightning.lab.report.score import SCORES as SCORES
from fl_lightning.lab.report.score import Score as Score
from fl_lightning.lab.report.score import main_tag as main_tag
from fl_lightning.lab.report.score import score as score
from fl_lightning.lab.report.table import Table as Table
from fl_lightning.runs.run import Run as Run
from fl_lightning.runs.run import load_runs as load_runs
