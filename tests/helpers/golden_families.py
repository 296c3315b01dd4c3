"""Setups of the recorded runs, once per repository and method.

A file is named `<family>-<method>[-ragged][-variant...].npz`. `set_up` finds the family by its
first word and the method by the longest name that fits; the words left over are the variant.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from golden_flatness import FLATNESS
from golden_optimizers import OPTIMIZERS
from golden_setup import (
    Setup,
    State,
    UnknownAlgorithmError,
    adapted,
    by_first_client,
    method_of,
    of_clients,
    of_server,
    per_epoch,
)
from torch.optim import SGD

from fl_lightning import Algorithm, algorithms, by_size, terms, uniform
from fl_lightning.core.curves import exponential
from fl_lightning.federation.federation import Federation
from fl_lightning.terms import LastRound


class SumOfNorms(LastRound):
    """FedLESAM's perturbation as its code means it: G over the sum of the norms of its tensors."""

    def direction(self, G: torch.Tensor, v: Any) -> torch.Tensor:
        norms = [part.norm() for part in G.split(v.layout.sizes)]
        return G / (torch.stack(norms).sum() + self.eps)


def set_up(path: Path) -> tuple[Setup, str]:
    """The setup of a file, and which data it was recorded on ('equal' or 'ragged')."""
    recorded = json.loads(str(np.load(path)["hparams"]))
    problem, data = np.load(path.parent / "problem.npz"), recorded["dataset"]
    facts = {"sizes": problem[f"{data}_sizes"].tolist(), "cohorts": problem["cohorts"].tolist()}
    family, *words = path.stem.split("-")
    if family not in FAMILIES:
        raise UnknownAlgorithmError(f"{path.name}: no family {family!r}")
    return FAMILIES[family](words, recorded["values"] | facts), data


def _weights(federation: Federation) -> torch.Tensor:
    """Of every round's cohort, summing to one."""
    clients = federation.clients.num_clients
    cohorts = [federation.sampler(clients, 0, round) for round in range(federation.rounds)]
    of_cohort = federation.local_training.weights
    weights = torch.tensor([*map(of_cohort, cohorts)], dtype=torch.float64)
    return weights / weights.sum(1, keepdim=True)


# families

SCAFFOLD_STATES = {"c_i": of_clients("c_i"), "c": of_server("c")}


def fl_simulator(words: list[str], h: dict[str, Any]) -> Setup:
    """FL-Simulator and FedLESAM: plain means, eps 1e-7, clipping at 10."""
    lr, rho, lamb = h.get("global_learning_rate", 1.0), h.get("rho", 0.0), h.get("lamb", 0.0)
    c = algorithms

    def reference(variant: set[str]) -> dict[str, Any]:
        if "paper" in variant:
            return {"rho": rho, "first_participation": "skip" if "skipfirst" in variant else "init"}
        return {"rho": rho, "reference": "last_round" if "lastround" in variant else "as_released"}

    def lesam(variant: set[str]) -> Algorithm:
        if "sumnorm" in variant:
            return Algorithm(SumOfNorms(rho))
        return c.fedlesam(**reference(variant))

    def correction(variant: set[str]) -> float:
        return lamb if "asis" in variant else 1.0

    methods: dict[str, Callable[[set[str]], Algorithm]] = {
        "fedavg": lambda _: c.fedavg(),
        "fedavg_ri": lambda _: c.fedinit(h["beta"]),
        "fedprox": lambda _: c.fedprox(lamb, "split"),
        "fedadam": lambda _: c.fedadam(h["beta1"], h["beta2"], h["epsilon"], v0=0.0),
        "scaffold": lambda _: c.scaffold(),
        "feddyn": lambda _: c.feddyn(lamb, prox_clip="split"),
        "fedcm": lambda _: c.fedcm(h["alpha"]),
        "fedsam": lambda _: c.fedsam(rho),
        "mofedsam": lambda v: c.mofedsam(rho, h["alpha"], "one" if "asis" in v else "alpha"),
        "fedgamma": lambda _: c.fedgamma(rho),
        "fedspeed": lambda v: c.fedspeed(
            rho, lamb, dual="active" if "activeavg" in v else "all", prox_clip="split"
        ),
        "fedsmoo": lambda v: c.fedsmoo(rho, lamb, "paper" if "paper" in v else "released", "split"),
        "fedlesam": lesam,
        "fedlesam_s": lambda v: c.fedlesam_s(**reference(v), correction=correction(v)),
        "fedlesam_d": lambda v: c.fedlesam_d(**reference(v), lam=lamb, prox_clip="split"),
    }
    method, variant = method_of(words, methods)
    made = method(variant)
    if not {"ragged", "paper"} <= variant:
        made = by_first_client(made, h)
    local = partial(SGD, lr=h["local_learning_rate"], weight_decay=h["weight_decay"])
    server = partial(SGD, lr=lr)
    algorithm = adapted(
        made, terms.Clip(10.0), local=local, eps=1e-7, server=server, weight=uniform
    )
    states = {**SCAFFOLD_STATES, "h_i": of_clients("h_i"), "m": of_server("m"), "v": of_server("v")}
    states |= {"mu_i": of_clients("mu_i"), "s": of_server("s"), "last_local": of_clients("w_i")}
    return Setup(
        algorithm, exponential(1, h["lr_decay"]), h["batchsize"], h["local_epochs"], None, states
    )


def fedsol(words: list[str], h: dict[str, Any]) -> Setup:
    # FedSOL's repository: model averages weighted by samples, eps 1e-12, no clipping, local
    # momentum in some files.
    c, alpha = algorithms, h.get("dyn_alpha", 0.0)

    def sol(strength: Any, variant: set[str]) -> Algorithm:
        per = "tensor" if "paper" in variant else "column"
        scope: Any = {(1, 0): "head", (0, 1): "body"}.get(
            (h["perturb_head"], h["perturb_body"]), "all"
        )
        first_step = "noise" if strength == "fixed" and "asis" in variant else "still"
        return c.fedsol(h["rho"], strength, per=per, scope=scope, first_step=first_step)

    methods: dict[str, Callable[[set[str]], Algorithm]] = {
        "fedavg": lambda _: c.fedavg(),
        "fedprox": lambda _: c.fedprox(h["rho"]),
        "scaffold": lambda _: c.scaffold(),
        "feddyn": lambda _: c.feddyn(alpha),
        "fedsam": lambda _: c.fedsam(h["rho"]),
        "fedasam": lambda _: c.fedasam(h["rho"], eta=0.0, scaled="all"),
        "fednova": lambda v: c.fednova("own" if "asis" in v else "none"),
        "fedntd": lambda _: c.fedntd(h["beta"], h["tau"]),
        "moon": lambda _: c.moon(h["rho"], h["tau"]),
        "fedsol_adaptive": lambda v: sol("adaptive", v),
        "fedsol_fixed": lambda v: sol("fixed", v),
    }
    method, variant = method_of(words, methods)
    local = partial(SGD, lr=h["lr"], momentum=h["momentum"], weight_decay=h["weight_decay"])
    algorithm = adapted(method(variant), local=local, weight=by_size, eps=1e-12)
    states = {**SCAFFOLD_STATES, "g_i": of_clients("h_i", -alpha), "h": of_server("h", -alpha)}
    states |= {"d_i": of_clients("d_i"), "prev_local": of_clients("w_i")}
    return Setup(
        algorithm, exponential(1, h["gamma"]), h["batch_size"], h["local_epochs"], None, states
    )


def fedssg(words: list[str], h: dict[str, Any]) -> Setup:
    # FedSSG's and FedDC's repositories: coefficients over the client's size, one fixed
    # length, clipping at 10.
    c, alpha = algorithms, h.get("alpha_coef", 0.0)
    steps = h.get("n_minibatch") if words[0] == "scaffold" else None
    methods: dict[str, Callable[[set[str]], Algorithm]] = {
        "fedavg": lambda _: c.fedavg(),
        "fedprox": lambda v: c.fedprox(2e-4 if "asis" in v else h["mu"]),
        "scaffold": lambda _: c.scaffold(correction_lr="base", size_weighting=True),
        "feddyn": lambda _: c.feddyn(alpha, size_weighting=True, prox_clip="split"),
        "feddisco": lambda _: c.feddisco(h["disco_a"], h["disco_b"], alpha, True, "split"),
        "feddc": lambda _: c.feddc(alpha, correction_lr="base", size_weighting=True),
        "fedssg": lambda v: c.fedssg(
            alpha, gate_offset=0.0 if "beta0" in v else 1.0, size_weighting=True
        ),
    }
    method, variant = method_of(words, methods)
    local = partial(SGD, lr=h["learning_rate"], weight_decay=h["weight_decay"])
    algorithm = adapted(method(variant), terms.Clip(10.0), local=local)

    def variates(own: str, common: str) -> State:
        return lambda federation: torch.cat(
            [of_clients(own)(federation), of_server(common)(federation)[None]]
        )

    own, common = ("d_i", "d") if isinstance(algorithm.terms[0], terms.SSG) else ("c_i", "c")
    states = {name: variates(own, common) for name in ("c_all", "g_all")}
    states |= {name: of_clients(name) for name in ("h_i", "count")}
    schedule, epochs = exponential(1, h["lr_decay_per_round"]), h.get("epoch", 2)
    rounds = h["com_amount"]
    return Setup(algorithm, schedule, h["batch_size"], epochs, steps, states, rounds=rounds)


def feddisco(words: list[str], h: dict[str, Any]) -> Setup:
    """FedDisco's repository: constant rate, no clipping, momentum 0.9 hard-coded."""
    local = partial(SGD, lr=h["lr"], momentum=h["momentum"], weight_decay=h["reg"])
    algorithm = adapted(algorithms.feddisco(h["disco_a"], h["disco_b"]), local=local)
    states = {"agg_weights": _weights}
    return Setup(algorithm, exponential(1, 1), h["batch_size"], h["epochs"], None, states)


def fedacg(words: list[str], h: dict[str, Any]) -> Setup:
    """FedACG's repository: plain means, the rate decays with every epoch, clipping at 10."""
    c, server, lr = algorithms, h["server"], h.get("global_lr", 1.0)
    beta = server.get("momentum")

    def relaxed(rcl: dict[str, Any]) -> Algorithm:
        attraction, penalty = rcl["pairs"]
        threshold, weights = penalty["threshold"], (attraction["weight"], penalty["weight"])
        return c.fedrcl(("fc1", "fc2"), rcl["temp"], rcl["topk_neg"], threshold, *weights)

    methods: dict[str, Callable[[set[str]], Algorithm]] = {
        "fedavg": lambda _: c.fedavg(),
        "fedavgm": lambda _: c.fedavgm(beta),
        "fedacg": lambda _: c.fedacg(beta, h["client"]["prox_loss"]["weight"]),
        "fedrcl": lambda _: relaxed(h["client"]["rcl_loss"]),
        "fedadam": lambda _: c.fedadam(beta, server["beta"], server["tau"]),
    }
    method, variant = method_of(words, methods)
    local, at = (partial(SGD, lr=h["local_lr"], weight_decay=h["wd"]), partial(SGD, lr=lr))
    algorithm = adapted(method(variant), terms.Clip(10.0), local=local, server=at, weight=uniform)
    states = {"server_momentum": of_server("m"), "server_v": of_server("v")}
    decay, epochs = h["local_lr_decay"], h["local_epochs"]
    algorithm = algorithm.replace(rate=per_epoch(decay, epochs))
    return Setup(algorithm, exponential(1, decay), h["batch_size"], epochs, None, states)


TOGA_PERTURBATIONS = {"fusion": "fusion", "nperturb": "neighbor"}


def fedtoga(words: list[str], h: dict[str, Any]) -> Setup:
    """FedTOGA as we read it: A and B differ in the server's dual, C in the scale of Delta."""
    variant, lam = set(words), 1 / h["alpha"]
    perturbations = (p for word, p in TOGA_PERTURBATIONS.items() if word in variant)
    options = {
        "perturbation": next(perturbations, "local"),
        "carry": "carry" in variant,
        "delta": "gradient" if "C" in variant else "steps",
        "dual": "active" if "A" in variant else "all",
    }
    algorithm = algorithms.fedtoga(h["rho"], h["kappa"], h["beta"], lam, **options)
    local = partial(SGD, lr=h["lr"], weight_decay=h["weight_decay"])
    states = {
        "h_i": of_clients("h_i", -lam),
        "h": of_server("h", -lam),
        "delta": of_server("Delta"),
    }
    algorithm = adapted(algorithm, local=local, eps=1e-7)
    return Setup(
        algorithm, exponential(1, h["lr_decay"]), h["batch_size"], h["local_epochs"], None, states
    )


FAMILIES: dict[str, Callable[[list[str], dict[str, Any]], Setup]] = {
    "flsim": fl_simulator,
    "lesam": fl_simulator,
    "fedsol": fedsol,
    "fedssg": fedssg,
    "feddc": fedssg,
    "disco": feddisco,
    "acg": fedacg,
    "rcl": fedacg,
    "fedtoga": fedtoga,
    **FLATNESS,
    **OPTIMIZERS,
}
