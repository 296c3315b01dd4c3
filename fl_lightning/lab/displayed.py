"""Figures that notebooks display."""

from io import BytesIO

from matplotlib import figure


class Figure(figure.Figure):
    """A figure without pyplot, which a notebook shows as the value of a cell."""

    def _repr_png_(self) -> bytes:
        written = BytesIO()
        self.savefig(written, format="png")
        return written.getvalue()
