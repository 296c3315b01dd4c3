"""MkDocs hooks: the home page is the README; the pages of the methods come from docstrings."""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
OUTSIDE = "benchmarks/RESULTS.md", "benchmarks/reproduced.md", "tests/golden/README.md"
"""Pages that lie outside of docs/."""

sys.path[:0] = [str(HERE), str(HERE.parent)]

import formulas  # noqa: E402
import math_font  # noqa: E402
import method_pages  # noqa: E402

from fl_lightning.algorithms.registry import FAMILIES, functions  # noqa: E402


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Insert the methods, by family, into the navigation."""
    methods = next(entry["Methods"] for entry in config.nav if "Methods" in entry)
    for family in FAMILIES:
        pages = [{name: f"methods/{name}.md"} for name in functions(family)]
        methods.append({method_pages.title(family): pages})
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "formula", "class": "formula", "format": formulas.fence}]
    }
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"index.md": home(), "methods/index.md": method_pages.index()}
    pages |= {f"methods/{name}.md": method_pages.page(name) for name in method_pages.ALGORITHMS}
    pages |= {path: (HERE.parent / path).read_text() for path in OUTSIDE}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, math_font.PATH, content=math_font.woff()))
    return files


def home() -> str:
    """The README, with links that lead to pages of the site."""
    text = (HERE.parent / "README.md").read_text()
    text = re.sub(r"\(fl_lightning/algorithms/\w+\.py#(\w+)\)", r"(methods/\1.md)", text)
    return "---\nhide: [navigation]\n---\n" + text.replace("(docs/", "(")
