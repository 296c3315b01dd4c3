"""MkDocs hooks: generated pages, formulas, the search."""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
ROOT = HERE.parent
OUTSIDE = {
    "benchmarks/RESULTS.md": "benchmarks/RESULTS.md",
    "benchmarks/reproduced.md": "benchmarks/reproduced.md",
    "tests/golden/recordings.md": "tests/golden/README.md",
    "contribute.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages that lie outside of docs/, by their place in the site."""

sys.path[:0] = [str(HERE), str(ROOT)]

import citations  # noqa: E402
import formulas  # noqa: E402
import math_font  # noqa: E402
import method_pages  # noqa: E402
import paper_pages  # noqa: E402
import search_words  # noqa: E402

from fl_lightning.algorithms.registry import FAMILIES, functions  # noqa: E402


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Insert methods, by family, and papers into the navigation; render blocks named formula."""
    entries = {title: pages for entry in config.nav for title, pages in entry.items()}
    for family in FAMILIES:
        pages = [{name: f"methods/{name}.md"} for name in functions(family)]
        entries["Methods"].append({method_pages.title(family): pages})
    entries["Papers"] += [{paper: paper_pages.path(paper)} for paper in paper_pages.PAPERS]
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "formula", "class": "formula", "format": formulas.fence}]
    }
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the font of the formulas."""
    texts = {place: (ROOT / path).read_text() for place, path in OUTSIDE.items()}
    pages: dict[str, str | bytes] = {p: t.replace("](../docs/", "](../") for p, t in texts.items()}
    pages |= {"methods/index.md": method_pages.index(), "cite.md": citations.page()}
    pages |= {f"methods/{name}.md": method_pages.page(name) for name in method_pages.ALGORITHMS}
    pages |= paper_pages.pages()
    pages[math_font.PATH] = math_font.woff()
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Tell the search about the page; set letters; fill in the lists of the home page."""
    search_words.describe(page.file.src_uri, page.meta)
    if page.file.src_uri == "methods/index.md":
        return formulas.inline(markdown)
    markdown = markdown.replace("<!-- families -->", method_pages.families())
    return markdown.replace("<!-- news -->", news())


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave details out of the search, and the folder of the build out of paths."""
    html = html.replace("<code>build/package/", "<code>")
    return search_words.without_details(page.file.src_uri, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Check what the search finds first."""
    search_words.check(Path(config.site_dir, "search", "search_index.json"))


def news(items: int = 3) -> str:
    """The newest entries of the changelog."""
    return "\n".join(
        re.findall(r"^- .*(?:\n  .*)*", (ROOT / "CHANGELOG.md").read_text(), re.M)[:items]
    )
