"""Tables of text with the best cells marked, for terminals, Markdown, LaTeX, HTML and CSV."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from typing import Literal

from pandas import DataFrame
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

MARKDOWN = {"best": "**{}**", "second": "*{}*"}
TERMINAL = {"best": "[bold]{}[/bold]", "second": "[underline]{}[/underline]"}
LATEX = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
HTML = {"best": "<b>{}</b>", "second": "<u>{}</u>"}

LATEX_CHARACTERS = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
        **{"|": r"\textbar{}", "±": r"$\pm$"},
    }
)


@dataclass(frozen=True, eq=False)
class Table:
    """A table of text.

    Attributes:
        text: The cells; the first column has the names of the rows.
        marks: `best`, `second` or empty for each cell.
        caption: The text below.
        numbers: The numbers behind the cells, a row each.
        notes: Remarks for the reader.
    """

    text: DataFrame
    marks: DataFrame
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
        lines = self._lines(LATEX, lambda text: text.translate(LATEX_CHARACTERS))
        head, *rows = (" & ".join(line) + r" \\" for line in lines)
        begin = rf"% {self.caption}", rf"\begin{{tabular}}{{{'l' * len(self.text.columns)}}}"
        body = r"\toprule", head, r"\midrule", *rows, r"\bottomrule"
        return "\n".join([*begin, *body, r"\end{tabular}"])

    def html(self) -> str:
        """The table in HTML, which notebooks show."""
        lines = ["".join(f"<td>{c}</td>" for c in line) for line in self._lines(HTML, escape_html)]
        head, *rows = (f"<tr>{line}</tr>" for line in lines)
        caption, head = (
            f"<caption>{escape_html(self.caption)}</caption>",
            head.replace("td>", "th>"),
        )
        return "\n".join(["<table>", caption, head, *rows, "</table>"])

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

    def _lines(self, styles: Mapping[str, str], clean: Callable[[str], str]) -> list[list[str]]:
        """Headings and rows as text; a line break in a name would end the row."""
        cells = [[*self.text], *self.text.to_numpy().tolist()]
        marks = [[""] * len(self.text.columns), *self.marks.to_numpy().tolist()]
        return [
            [
                styles.get(mark, "{}").format(clean(" ".join(cell.split())))
                for cell, mark in zip(*line, strict=True)
            ]
            for line in zip(cells, marks, strict=True)
        ]


Format = Literal["markdown", "latex", "html", "csv"]

FORMATS = {f.__name__: f for f in (Table.markdown, Table.latex, Table.html, Table.csv)}
"""Formats of a table by their names on the command line."""
