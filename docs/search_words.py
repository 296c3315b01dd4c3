"""What the search finds first: guides, by the words that people use; not members of classes."""

import json
import re
from pathlib import Path
from typing import Any

SYNONYMS = {
    "guides/any-data.md": ["regression", "csv", "text", "hugging face", "llm", "leaf", "femnist"],
    "guides/own-data.md": ["dataset", "add a dataset", "custom model", "partition", "non-iid"],
    "guides/own-algorithm.md": ["custom algorithm", "add an algorithm", "new method"],
    "guides/ranks.md": ["gpu", "multiple gpus", "cuda", "cluster", "distributed"],
    "guides/robustness.md": ["byzantine", "attack", "poisoning", "median", "krum", "outliers"],
    "guides/personalization.md": ["recommender", "recommendation", "personal models"],
    "guides/clients.md": ["system heterogeneity", "slow clients", "asynchronous", "sampling"],
    "guides/speed.md": ["fast", "memory", "many clients"],
    "guides/tuning.md": ["wandb", "mlflow", "sweep", "hyperparameters"],
    "guides/resuming.md": ["checkpoint", "resume", "killed"],
    "guides/papers.md": ["reproduce", "latex", "table"],
    "guides/comparing.md": ["compare", "curves", "tensorboard"],
    "guides/analysis.md": ["hessian", "loss surface"],
    "faq.md": ["faq", "questions"],
    "contribute.md": ["contribute", "pull request", "development"],
    "cite.md": ["cite", "citation", "bibtex", "license"],
    "changelog.md": ["changelog", "release", "news"],
    "coming-from.md": ["flower", "pfl", "fluke", "pfllib", "fl-simulator", "alternatives"],
}
"""Words under which a page is found, whether or not it has them."""

LEADS = {
    "regression": "guides/any-data/",
    "dataset": "guides/own-data/",
    "gpu": "guides/ranks/",
    "slurm": "guides/ranks/",
    "contribute": "contribute/",
    "cite": "cite/",
    "bibtex": "cite/",
    "faq": "faq/",
    "hessian": "guides/analysis/",
    "flower": "coming-from/",
    "privacy": "guides/privacy/",
    "resume": "guides/resuming/",
    "scaffold": "methods/scaffold/",
    "fedtoga": "methods/fedtoga/",
}
"""The first page for a query."""

BOOSTS = {"guides": 4.0, "papers": 0.5, "api": 0.2, "methods": 1.0, "benchmarks": 0.3, "tests": 0.3}
"""Factors on the relevance of a folder's pages; others have 1."""

KEPT = {"methods": {"options", "notes"}}
"""The sections of a folder's pages that can be found, besides the first."""


def describe(path: str, meta: dict[str, Any]) -> None:
    """Give the search a page's words and weight."""
    meta["search"] = {"boost": BOOSTS.get(path.partition("/")[0], 1.0)}
    if path in SYNONYMS:
        meta["tags"] = SYNONYMS[path]


def without_details(path: str, html: str) -> str:
    """The page with the sections marked that the search leaves out."""
    folder = path.partition("/")[0]
    if folder == "api":  # members of classes, constants of modules
        members = r'<h[4-6] |<h3 (?=id="[\w.]+\.[A-Z_]+")'
        return re.sub(members, lambda found: f"{found[0]}data-search-exclude ", html)
    if folder not in KEPT:
        return html

    def marked(heading: re.Match[str]) -> str:
        exclude = "" if heading[2] in KEPT[folder] else " data-search-exclude"
        return f'<h{heading[1]}{exclude} id="{heading[2]}"'

    return re.sub(r'<h([2-6]) id="([\w-]+)"', marked, html)


def check(index: Path) -> None:
    """Raise an AssertionError if a query of `LEADS` leads elsewhere, by the rules of the theme."""
    from lunr import lunr

    pages = json.loads(index.read_text())["docs"]
    documents = [
        ({"ref": p["location"], "tags": " ".join(p.get("tags", [])), **p}, {"boost": p["boost"]})
        for p in ({"boost": 1.0, **page} for page in pages)
    ]
    fields = [
        {"field_name": "title", "boost": 1000},
        {"field_name": "tags", "boost": 1000000},
        {"field_name": "text", "boost": 1},
    ]
    found = lunr(ref="ref", fields=fields, documents=documents)
    first = {query: found.search(f"{query} {query}*")[0]["ref"] for query in LEADS}
    wrong = {q: ref for q, ref in first.items() if ref.partition("#")[0] != LEADS[q]}
    assert not wrong, f"the search leads elsewhere: {wrong}"
