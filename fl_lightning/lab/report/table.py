"""Tables of text with the best cells marked, for terminals, Markdown, LaTeX, HTML and CSV."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from itertools import groupby
from typing import Any, Literal

from pandas import DataFrame, Index, MultiIndex
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fl_lightning.algorithms.registry import paper_name

MARKDOWN = {"best": "**{}**", "second": "*{}*", "": "{}"}
TERMINAL = {"best": "[bold]{}[/bold]", "second": "[underline]{}[/underline]", "": "{}"}
LATEX = {"best": "textbf:--rwrap", "second": "underline:--rwrap", "": ""}
"""As pandas' `Styler` spells commands."""
TEX = str.maketrans(
    {c: rf"\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {c: f"{{{c}}}" for c in "[*"}  # after \\ and \midrule, [ and * begin options
    | {"|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$"}
)
FLOAT = r"""% \usepackage{{booktabs, adjustbox}}
\begin{{table}}
\centering
\caption{{{caption}}}
\begin{{adjustbox}}{{max width=\textwidth}}
{tabular}
\end{{adjustbox}}
\end{{table}}"""
HTML = {"best": "<b>{}</b>", "second": "<u>{}</u>", "": "{}"}

Format = Literal["markdown", "latex", "html", "csv"]


@dataclass(frozen=True, eq=False)
class Table:
    """A table of text.

    Attributes:
        text: The cells; the first column has the names of the rows.
        marks: `best`, `second` or empty for each cell; no marks if it is empty.
        caption: The text below.
        numbers: The numbers behind the cells, one line a cell.
        notes: Remarks for the reader.
        heads: Of columns that belong together, the common heading and the own one.
    """

    text: DataFrame
    marks: DataFrame = field(default_factory=DataFrame)
    caption: str = ""
    numbers: DataFrame = field(default_factory=DataFrame)
    notes: Sequence[str] = ()
    heads: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def markdown(self) -> str:
        """The table in Markdown, with the caption below."""
        head, *rows = self._lines(MARKDOWN, lambda text: text.replace("|", r"\|"))
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", self.caption]).strip()

    def __repr__(self) -> str:
        return "\n".join([self.markdown(), *(f"note: {note}" for note in self.notes)])

    def latex(self) -> str:
        """The table in LaTeX, as wide as the text at most, with the methods' names in papers."""
        text, commands = self.text.copy(), self._styles(LATEX)
        text.iloc[:, 0] = text.iloc[:, 0].map(lambda name: paper_name(name.strip("`")))
        heads = [self.heads.get(name, ("", name)) for name in map(str, text)]
        heads = [(paper_name(common), paper_name(own)) for common, own in heads]
        names = MultiIndex.from_tuples(heads) if self.heads else Index([own for _, own in heads])
        text.columns = commands.columns = names
        style = text.style.hide(axis="index").format(_tex).format_index(_tex, axis="columns")
        style = style.apply(lambda _: commands, axis=None)
        align = "l" + "r" * (len(heads) - 1)
        lines = style.to_latex(hrules=True, column_format=align, multicol_align="c").splitlines()
        if self.heads:  # a rule below each common heading, which is in the third line
            lines[3:3] = [_rules([common for common, _ in heads])]
        return FLOAT.format(caption=_tex(self.caption), tabular="\n".join(lines))

    def html(self) -> str:
        """The table in HTML."""
        head, *rows = self._lines(HTML, escape_html)
        table = DataFrame(rows, columns=head).to_html(index=False, escape=False)
        return f"{table}\n<p>{escape_html(self.caption)}</p>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the table and the remarks."""
        return "\n".join([self.html(), *(f"<p>note: {escape_html(n)}</p>" for n in self.notes)])

    def csv(self) -> str:
        """The numbers behind the table: one line per cell."""
        return self.numbers.to_csv(index=False).rstrip()

    def show(self, format: Format | None = None) -> None:
        """Print the table in a format; by default for the terminal, or as Markdown into a file."""
        if format or not sys.stdout.isatty():
            print(FORMATS[format or "markdown"](self))
            return
        head, *rows = self._lines(TERMINAL, lambda text: escape(text.strip("`")))
        console = Console()
        for block in self._blocks(console.width):
            table = RichTable()
            for place, width in block.items():
                table.add_column(head[place], width=width, overflow="fold")
            for row in rows:
                table.add_row(*(row[place] for place in block))
            console.print(table)
        console.print(escape(self.caption), style="italic", highlight=False)

    def _blocks(self, width: int) -> list[dict[int, int]]:
        """Widths of columns by place, in blocks that fit into a terminal; each has the names.

        One block where all fit. Else headings break between words, and so do names of more than
        half the width. Columns that belong together stay so where they fit.
        """
        heads = [*map(str, self.text)]
        cells = [max(map(len, map(str, column)), default=0) for column in self.text.to_numpy().T]
        whole = {k: max(len(head), cells[k]) for k, head in enumerate(heads)}
        if _total(whole) <= width:
            return [whole]
        least = {k: max([cells[k], *map(len, heads[k].split())]) for k in whole if k}
        names = min(whole[0], max(width // 2, width - _total(least) - 3))
        least = {k: min(w, width - _total({0: names}) - 3) for k, w in least.items()}
        blocks = [{0: names}]
        for _, group in groupby(least, lambda k: self.heads.get(heads[k], ("",))[0] or heads[k]):
            together = {k: least[k] for k in group}
            fits = _total({0: names} | together) <= width
            for part in [together] if fits else [{k: w} for k, w in together.items()]:
                if _total(blocks[-1] | part) > width:
                    blocks.append({0: names})
                blocks[-1] |= part
        return blocks

    def _lines(self, styles: Mapping[str, str], clean: Callable[[Any], str]) -> list[list[str]]:
        """Headings and rows as text."""
        cells = zip(self._styles(styles).to_numpy(), self.text.to_numpy(), strict=True)
        rows = [[s.format(clean(c)) for s, c in zip(*row, strict=True)] for row in cells]
        return [[*map(clean, self.text)], *rows]

    def _styles(self, styles: Mapping[str, str]) -> DataFrame:
        """The style of each cell by its mark; a cell without a mark has the style under ""."""
        text = self.text
        marks = self.marks.reindex(index=text.index, columns=text.columns, fill_value="")
        return marks.map(styles.__getitem__)


def _total(widths: Mapping[int, int]) -> int:
    """The width of a table in a terminal, with its lines and spaces."""
    return sum(widths.values()) + 3 * len(widths) + 1


def _tex(text: object) -> str:
    """The text in LaTeX; a number with a true minus."""
    return re.sub(r"^-(?=[\d.])", "$-$", str(text).translate(TEX))


def _rules(headings: Sequence[str]) -> str:
    """Rules below headings that stand above neighboring columns."""
    rules, last = list[str](), 0
    for heading, columns in groupby(headings):
        first, last = last + 1, last + len([*columns])
        rules += [rf"\cmidrule(lr){{{first}-{last}}}"] * bool(heading)
    return " ".join(rules)


FORMATS = {f.__name__: f for f in (Table.markdown, Table.latex, Table.html, Table.csv)}
"""Formats of a table by their names on the command line."""
