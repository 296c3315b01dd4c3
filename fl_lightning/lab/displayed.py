"""Figures that notebooks display."""

from io import BytesIO
from pathlib import Path

from matplotlib import figure

from fl_lightning.files import atomic


class Figure(figure.Figure):
    """A figure without pyplot, which a notebook shows as the value of a cell."""

    def _repr_png_(self) -> bytes:
        written = BytesIO()
        self.savefig(written, format="png")
        return written.getvalue()

    def save(self, file: Path) -> None:
        """Write it into a .png, .pdf or .svg, whole or not at all."""
        with atomic(file) as written:
            self.savefig(written, format=file.suffix[1:])
