"""Folders that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""

SHARED = ROOT.parent / "shared"
"""Real data next to the checkout, on the machines that have it."""
