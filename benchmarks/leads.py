"""Leads of methods over one of them, and which are significant."""

from dataclasses import dataclass

from pandas import DataFrame, Series
from scipy.stats import t

from fl_lightning.algorithms.registry import paper_name


@dataclass(frozen=True)
class Leads:
    """How far methods lead one of them, within the seeds; positive is better.

    Attributes:
        base: The one.
        mean: The mean lead by method.
        deviation: Its standard deviation over the seeds.
        bound: What the mean must exceed to differ significantly from zero, at 95 %.
        each: 1 or -1 if a method is above or below with each seed, else 0.
    """

    base: str
    mean: "Series[float]"
    deviation: "Series[float]"
    bound: "Series[float]"
    each: "Series[int]"

    @staticmethod
    def over(scores: DataFrame, method: str, larger: bool) -> "Leads":
        """Leads in scores, (seeds, methods), over a method; of methods that have all seeds."""
        whole = scores.dropna(axis=1)
        leads = whole.sub(whole[method], axis=0) * (1 if larger else -1)
        seeds = len(scores)
        bound = leads.std() / seeds**0.5 * t.ppf(0.975, seeds - 1)
        each = (leads > 0).all().astype(int) - (leads < 0).all().astype(int)
        return Leads(method, leads.mean(), leads.std(), bound, each)

    def sign(self, method: str) -> int:
        """1 or -1 if a method is significantly above or below the one; 0 if not, or unknown."""
        lead, bound = self.mean.get(method, 0.0), self.bound.get(method, 0.0)
        return int(lead > bound) - int(lead < -bound)

    def text(self, method: str, digits: int, deviation: bool = True) -> str:
        """A method's lead: bold if significant, slanted if it is behind; empty if unknown."""
        if method not in self.mean:
            return ""
        text = f"{self.mean[method]:+.{digits}f}"
        if deviation:
            text += f" ± {self.deviation[method]:.{digits}f}"
        mark = {1: "**", 0: "", -1: "*"}[self.sign(method)]
        return f"{mark}{text}{mark}"

    def sentence(self) -> str:
        """Which methods differ significantly from the one."""
        known = [str(m) for m in self.mean.sort_values(ascending=False).index]
        words = {"above": 1, "below": -1, "no significant difference": 0}
        parts = {
            word: [m for m in known if self.sign(m) == sign and m != self.base]
            for word, sign in words.items()
        }
        said = [f"{word}: {', '.join(map(paper_name, of))}" for word, of in parts.items() if of]
        return f"Beside {paper_name(self.base)}, at 95 %: {'; '.join(said)}."
