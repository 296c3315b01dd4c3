"""Setups of the recordings of FedMuon (both), FedAdamW and FedPAC."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from golden_setup import Setup, State, of_clients, of_server
from torch.optim import SGD

from fl_lightning import Algorithm, algorithms
from fl_lightning.core.curves import cosine
from fl_lightning.terms import AdamW, Alignment


def changed(algorithm: Algorithm, kind: type, **changes: Any) -> Algorithm:
    """The algorithm with other coefficients of the terms of a kind."""
    terms = [replace(t, **changes) if isinstance(t, kind) else t for t in algorithm.terms]
    return algorithm.replace(terms=terms)


def averaging(algorithm: Algorithm, h: dict[str, Any], states: dict[str, State]) -> Setup:
    """FedMuon's, FedAdamW's and FedPAC's repositories share one set-up, with K given.

    No client takes more than K steps.
    """
    algorithm = changed(algorithm, Alignment, steps=h["K"])
    server = partial(SGD, lr=h.get("lg", 1.0))
    algorithm = algorithm.replace(local=partial(SGD, lr=h["lr"]), server=server)
    schedule, size = cosine(1, 0, h["epoch"]), h["batch_size"]
    return Setup(algorithm, schedule, size, h["E"], None, states, most=h["K"])


def muon(words: list[str], h: dict[str, Any], method: str = "fedmuon") -> Setup:
    decay = h["weight_decay"]
    if words[0] == "localmuon":
        return averaging(algorithms.local_muon(h["muon_momentum"], h["alpha"], decay), h, {})
    states = {"delta_g": of_server("Delta"), "m_bar": of_server("Mbar"), "h_bar": of_server("hbar")}
    if words[0] == "fedsophia":
        rho, curvature = h["rho"] * h["bs"], "hessian" in words
        made = algorithms.fedpac_sophia(h["gamma"], rho, *h["betas"], decay, curvature)
        return averaging(made, h, {name: states[name] for name in ("delta_g", "h_bar")})
    rank = {"rank": h["svd_ratio"]} if "svd_ratio" in h else {}
    make = getattr(algorithms, method)
    made = make(h["gamma"], h["muon_momentum"], h["alpha"], decay, **rank)
    return averaging(made, h, {name: states[name] for name in ("delta_g", "m_bar")})


def adamw(words: list[str], h: dict[str, Any]) -> Setup:
    given = {"beta1": h["betas"][0], "beta2": h["betas"][1], "eps": h["eps"]}
    if words[0] == "localadamw":
        return averaging(algorithms.local_adamw(**given, decay=h["weight_decay"]), h, {})
    block = bool({"blockmean", "paper", "llm"} & set(words))
    made = algorithms.fedadamw(
        h["gamma"],
        "block" if block else "whole",
        **given,
        decay=h["weight_decay"],
        first_count="visit" if "paper" in words else "run",
        alignment="mixed" if "llm" in words else "added",
    )
    states = {"delta_g": of_server("Delta"), "v_mean" if block else "v_bar": of_server("sbar")}
    mean_size = sum(h["sizes"]) // len(h["sizes"])
    of_mean_size = mean_size / h["batch_size"] * h["E"]
    made = changed(made, AdamW, count=h["K"] if "llm" in words else of_mean_size)
    return averaging(made, h, states)


def lmo(words: list[str], h: dict[str, Any]) -> Setup:
    fed = words[0] == "fedmuon"
    made = algorithms.fedmuon_lmo(
        h["muon_alpha"],
        h["newton_schulz_T"],
        correct=fed,
        server="mean" if "cohortmean" in words else "damped",
    )
    algorithm = made.replace(local=partial(SGD, lr=h["muon_eta"]))
    states = {"m_i": of_clients("M_i")}
    if fed:
        states |= {"c_i": of_clients("M_i"), "c": of_server("C")}
    batch_size = h.get("batch_size", 5)
    return Setup(algorithm, lambda round, rounds: 1.0, batch_size, 2, h["local_steps"], states)


OPTIMIZERS: dict[str, Callable[[list[str], dict[str, Any]], Setup]] = {
    "muon": muon,
    "pac": partial(muon, method="fedpac_muon"),
    "adamw": adamw,
    "lmo": lmo,
}
