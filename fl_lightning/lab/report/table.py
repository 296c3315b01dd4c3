"""Tables of text with the best cells marked, for terminals, Markdown, LaTeX, HTML and CSV."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from typing import Any, Literal

from pandas import DataFrame
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

MARKDOWN = {"best": "**{}**", "second": "*{}*", "": "{}"}
TERMINAL = {"best": "[bold]{}[/bold]", "second": "[underline]{}[/underline]", "": "{}"}
LATEX = {"best": "textbf:--rwrap", "second": "underline:--rwrap", "": ""}
"""As pandas' `Styler` spells commands."""
HTML = {"best": "<b>{}</b>", "second": "<u>{}</u>", "": "{}"}


@dataclass(frozen=True, eq=False)
class Table:
    """A table of text.

    Attributes:
        text: The cells; the first column has the names of the rows.
        marks: `best`, `second` or empty for each cell; no marks if it is empty.
        caption: The text below.
        numbers: The numbers behind the cells, one line a cell.
        notes: Remarks for the reader.
    """

    text: DataFrame
    marks: DataFrame = field(default_factory=DataFrame)
    caption: str = ""
    numbers: DataFrame = field(default_factory=DataFrame)
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table in Markdown, with the caption below."""
        head, *rows = self._lines(MARKDOWN, lambda text: text.replace("|", r"\|"))
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", self.caption]).strip()

    def latex(self) -> str:
        """The table in LaTeX with the package booktabs."""
        commands = self._styles(LATEX)
        style = self.text.style.hide(axis="index").format(escape="latex")
        style = style.format_index(escape="latex", axis="columns").apply(
            lambda _: commands, axis=None
        )
        table = style.to_latex(hrules=True).replace("±", r"$\pm$")
        return f"% {self.caption}\n{table}".rstrip()

    def html(self) -> str:
        """The table in HTML, which notebooks show."""
        head, *rows = self._lines(HTML, escape_html)
        table = DataFrame(rows, columns=head).to_html(index=False, escape=False)
        return f"{table}\n<p>{escape_html(self.caption)}</p>"

    _repr_html_ = html

    def csv(self) -> str:
        """The numbers behind the table: one line per cell."""
        return self.numbers.to_csv(index=False).rstrip()

    def show(self) -> None:
        """Print the table as wide as the terminal, or as Markdown into a file."""
        if not sys.stdout.isatty():
            print(self.markdown())
            return
        head, *rows = self._lines(TERMINAL, lambda text: escape(text.strip("`")))
        table = RichTable()
        for place, heading in enumerate(head):
            table.add_column(heading, no_wrap=not place, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console = Console()
        console.print(table)
        console.print(escape(self.caption), style="italic", highlight=False)

    def _lines(self, styles: Mapping[str, str], clean: Callable[[Any], str]) -> list[list[str]]:
        """Headings and rows as text."""
        cells = zip(self._styles(styles).to_numpy(), self.text.to_numpy(), strict=True)
        rows = [[s.format(clean(c)) for s, c in zip(*row, strict=True)] for row in cells]
        return [[*map(clean, self.text)], *rows]

    def _styles(self, styles: Mapping[str, str]) -> DataFrame:
        """The style of each cell by its mark; that of a cell without a mark is under ""."""
        text = self.text
        marks = self.marks.reindex(index=text.index, columns=text.columns, fill_value="")
        return marks.map(styles.__getitem__)


Format = Literal["markdown", "latex", "html", "csv"]

FORMATS = {f.__name__: f for f in (Table.markdown, Table.latex, Table.html, Table.csv)}
"""Formats of a table by their names on the command line."""
