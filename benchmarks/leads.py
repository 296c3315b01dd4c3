"""Leads of methods over one of them, and which are significant."""

from dataclasses import dataclass

from pandas import DataFrame, Series
from scipy.stats import wilcoxon

from fl_lightning.algorithms.registry import paper_name


@dataclass(frozen=True)
class Leads:
    """How far methods lead one of them, seed by seed; positive is better.

    Attributes:
        base: The one.
        median: The median lead over the seeds, by method.
        above: The number of seeds with a lead.
        seeds: The number of seeds.
        signs: 1 or -1 if a method is significantly above or below the one, else 0: by Wilcoxon's
            signed-rank test at 5 %, of all methods together (Holm).
    """

    base: str
    median: "Series[float]"
    above: "Series[int]"
    seeds: int
    signs: "Series[int]"

    @staticmethod
    def over(scores: DataFrame, method: str, larger: bool) -> "Leads":
        """Leads in scores, (seeds, methods), over a method; of methods that have all seeds."""
        whole = scores.dropna(axis=1)
        leads = whole.sub(whole[method], axis=0).drop(columns=method) * (1 if larger else -1)
        p = leads.apply(lambda of_seeds: wilcoxon(of_seeds).pvalue).sort_values()
        adjusted = (p * range(len(p), 0, -1)).cummax()
        median, above = leads.median(), (leads > 0).sum()
        signs = (2 * (median > 0).astype(int) - 1).where(adjusted < 0.05, 0)
        return Leads(method, median, above, len(scores), signs)

    def text(self, method: str, digits: int, counted: bool = True) -> str:
        """A method's lead: bold if significant, slanted if it is behind; empty if unknown."""
        if method not in self.median:
            return ""
        mark = {1: "**", 0: "", -1: "*"}[self.signs[method]]
        text = f"{mark}{self.median[method]:+.{digits}f}{mark}"
        return text + f" ({self.above[method]} of {self.seeds})" * counted

    def sentence(self) -> str:
        """Which methods differ significantly from the one, if there are seeds enough to say."""
        if len(self.median) * 2 ** (1 - self.seeds) >= 0.05:
            return "So few seeds can show no significant difference."
        known = self.median.sort_values(ascending=False).index
        words = {"above": 1, "below": -1, "no significant difference": 0}
        parts = {word: [str(m) for m in known if self.signs[m] == s] for word, s in words.items()}
        said = [f"{word}: {', '.join(map(paper_name, of))}" for word, of in parts.items() if of]
        return f"Beside {paper_name(self.base)}: {'; '.join(said)}."
