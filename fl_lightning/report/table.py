"""Tables of text with the best cells marked, for terminals, Markdown, LaTeX, HTML and CSV."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape as escape_html
from typing import Literal

from pandas import DataFrame
from pandas.io.formats.style import Styler
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

MARKDOWN = {"best": "**{}**", "second": "*{}*"}
TERMINAL = {"best": "[bold]{}[/bold]", "second": "[underline]{}[/underline]"}
LATEX = {"best": "textbf: --rwrap", "second": "underline: --rwrap"}
CSS = {"best": "font-weight: bold", "second": "text-decoration: underline"}


@dataclass(frozen=True, eq=False)
class Table:
    """A table of text.

    Attributes:
        text: The cells; the first column has the names of the rows.
        marks: `best`, `second` or empty for each cell.
        caption: The text below.
        numbers: The numbers behind the cells, as `report.numbers` returns them.
    """

    text: DataFrame
    marks: DataFrame
    caption: str = ""
    numbers: DataFrame = field(default_factory=DataFrame)

    def markdown(self) -> str:
        """The table in Markdown, with the caption below."""
        head, *rows = self._marked(
            MARKDOWN, lambda text: " ".join(text.replace("|", r"\|").split())
        )
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", self.caption]).strip()

    def latex(self) -> str:
        """The table in LaTeX with the package booktabs."""
        style = self._style(LATEX, "latex")
        text = style.to_latex(hrules=True, column_format="l" * len(self.text.columns))
        return f"% {self.caption}\n" + text.replace("±", r"$\pm$").rstrip()

    def html(self) -> str:
        """The table in HTML, which notebooks show."""
        return self._style(CSS, "html").set_caption(escape_html(self.caption)).to_html()

    _repr_html_ = html

    def csv(self) -> str:
        """The numbers behind the table: one line per cell."""
        return self.numbers.to_csv(index=False).rstrip()

    def show(self) -> None:
        """Print the table as wide as the terminal, or as Markdown into a file."""
        if not sys.stdout.isatty():
            print(self.markdown())
            return
        head, *rows = self._marked(TERMINAL, lambda text: escape(text.strip("`")))
        table = RichTable(caption=escape(self.caption) or None)
        for place, heading in enumerate(head):
            table.add_column(heading, no_wrap=not place, overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console().print(table)

    def _marked(self, styles: Mapping[str, str], clean: Callable[[str], str]) -> list[list[str]]:
        """Headings and rows as text."""
        marks = self.marks.map(lambda mark: styles.get(mark, "{}")).to_numpy()
        rows = [
            [style.format(clean(cell)) for style, cell in zip(*row, strict=True)]
            for row in zip(marks, self.text.to_numpy(), strict=True)
        ]
        return [[*map(clean, map(str, self.text))], *rows]

    def _style(self, styles: Mapping[str, str], language: str) -> Styler:
        """The cells with their marks; a line break in a name would end the row."""
        text = self.text.map(lambda cell: " ".join(cell.split()))
        style = text.rename(columns=lambda name: " ".join(name.split())).style.hide(axis="index")
        style = style.format(escape=language).format_index(escape=language, axis="columns")
        marks = self.marks.map(lambda mark: styles.get(mark, "")).set_axis(style.columns, axis=1)
        return style.apply(lambda _: marks, axis=None)


Format = Literal["markdown", "latex", "html", "csv"]

FORMATS = {f.__name__: f for f in (Table.markdown, Table.latex, Table.html, Table.csv)}
"""Formats of a table by their names on the command line."""
