"""References as BibTeX."""

import re
from functools import cache
from pathlib import Path

from fl_lightning.runs.config import load

SOFTWARE = Path(__file__).parents[1] / "CITATION.cff"
TITLES = Path(__file__).with_name("titles.tsv")
"""The titles of papers, by their links."""


def bibtex(reference: str) -> str:
    """The entry of a reference such as `Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127`.

    Authors are as the reference has them; a paper without a title in `TITLES` gets none.
    """
    words, _, url = reference.rpartition(", ")
    authors, _, venue = words.partition(", ")
    year = re.findall(r"\d{4}", venue)[-1]
    where = venue.partition(f" {year}")[0] if venue != year else ""
    names = re.sub(r" et al\.$", " and others", authors)
    key = re.sub(r"\W", "", authors.split()[0]).lower() + year
    journal = where.startswith("IEEE T")  # Transactions
    kind = "article" if journal else "inproceedings" if where else "misc"
    fields = {"title": titles().get(url, ""), "author": names}
    fields |= {"journal" if journal else "booktitle": where}
    fields |= {"year": year, "url": url}
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


@cache
def titles() -> dict[str, str]:
    """The titles in `TITLES`, by link."""
    return dict(line.split("\t") for line in TITLES.read_text().splitlines())


def page() -> str:
    """How to cite the software, from CITATION.cff."""
    about = load(SOFTWARE.read_text())
    authors = " and ".join(f"{{{author['name']}}}" for author in about["authors"])
    fields = {"title": about["title"].replace("_", r"\_"), "author": authors}
    fields |= {"version": about["version"]}
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
    entry = "\n".join(["@software{fl_lightning,", *lines, "}"])
    notes = f"{METHODS_NOTE}\n\nThe license is {about['license']}."
    return f"# Cite\n\n{about['message']}\n\n```bibtex\n{entry}\n```\n\n{notes}\n"


METHODS_NOTE = "The page of each [method](methods/index.md) has its paper in BibTeX. Cite it, too."
