"""Setups of the recordings of FedWMSAM, FedGMT's repository, FedGloSS, FedGF, FedNSAM, RFL-NLCP."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from golden_setup import Setup, adapted, method_of, of_clients, of_server
from problems import server
from torch import Tensor
from torch.optim import SGD

from fl_lightning import Algorithm, algorithms, by_size, zeros
from fl_lightning.core.curves import cosine, exponential
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.vector import unit
from fl_lightning.federation.federation import Federation
from fl_lightning.terms import SMOO, DynamicRegularizer, LastRound
from fl_lightning.terms.released import NormPull


def fedwmsam(words: list[str], h: dict[str, Any]) -> Setup:
    variant = set(words)
    algorithm = algorithms.fedwmsam(
        h["rho"],
        h["alpha"],
        decay=h["lr_decay"],
        prediction="steps" if "eta" in variant else "momentum",
        side="toward" if "plus" in variant else "away",
        direction="as_released" if "asis" in variant else "unit",
    )
    local = partial(SGD, lr=h["local_learning_rate"], weight_decay=h["weight_decay"])
    algorithm = adapted(algorithm, local=local, server=partial(SGD, lr=h["global_learning_rate"]))
    states = {"c_i": of_clients("c_i"), "c": of_server("c"), "momentum": of_server("m")}
    schedule, paths = exponential(1, h["lr_decay"]), {"alpha_path": of_server("al")}
    return Setup(algorithm, schedule, h["batchsize"], h["local_epochs"], None, states, paths)


# FedGMT's repository, FL-SAM


class PlainSMOO(SMOO):
    """FedSMOO's perturbation, without an eps in the common one."""

    def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
        v.s = self.rho * unit(mean, 0.0)
        return delta


@dataclass(frozen=True)
class StaleSMOO(PlainSMOO):
    """FedSMOO where the whole direction of the step before is left in the ascent gradient."""

    lam: float = 0.2
    client = {"mu_i": zeros, "h_i": zeros}
    server = {"s": zeros, "h": zeros}
    local = {"e": zeros, "direction": zeros}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        stale, perturbed = v.direction, NormPull(self.lam / 2)
        asked: list[Tensor] = []

        def uncleared(at: Tensor) -> Tensor:
            asked.append(at)
            return oracle(at) + stale if len(asked) == 1 else oracle(at)

        g = super().gradient(uncleared, w, v)
        v.direction = perturbed.gradient(lambda w: g, w, v) + self.lam * v.h_i
        return v.direction

    def report(self, w: Tensor, v: Any) -> Any:
        v.h_i = v.h_i + w - v.anchor
        return super().report(w, v), w - v.anchor

    def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
        v.h = v.h + v.participation * mean[1]
        return super().update(delta + v.h, mean[0], v)


class FirstEntries(LastRound):
    """FedLESAM's last round, of which every tensor gets the first entries."""

    def direction(self, G: Tensor, v: Any) -> Tensor:
        return unit(torch.cat([G[:size] for size in v.layout.sizes]), self.eps)


def fl_sam(words: list[str], h: dict[str, Any]) -> Setup:
    lam, rho = 1 / h["beta"], h.get("rho", 0.0)

    def pull(variant: set[str]) -> Any:
        return "squared" if "fixed" in variant else "norm"

    def smoo(variant: set[str]) -> Algorithm:
        if "fixed" in variant:
            return Algorithm(PlainSMOO(rho), DynamicRegularizer(lam))
        return Algorithm(StaleSMOO(rho, lam=lam))

    def lesam(variant: set[str]) -> Algorithm:
        made = algorithms.fedlesam_d(rho, "last_round", lam=lam, pull=pull(variant))
        return (
            made if "fixed" in variant else made.replace(terms=(FirstEntries(rho), *made.terms[1:]))
        )

    def next_direction(federation: Federation) -> Tensor:
        G = server(federation, "last") - federation.w.detach()
        sizes = federation.layout.sizes
        return G if "fixed" in words else torch.cat([G[:size] for size in sizes])

    def gmt(variant: set[str]) -> Algorithm:
        dual: Any = "active" if "activeavg" in variant else "all"
        return algorithms.fedgmt(h["gama"], h["alpha"], h["tau"], h["beta"], dual)

    def average(federation: Federation) -> Tensor:
        return torch.lerp(federation.w.detach(), server(federation, "e"), h["alpha"])

    methods: dict[str, Callable[[set[str]], Algorithm]] = {
        "fedgmt": gmt,
        "feddyn": lambda v: algorithms.feddyn(lam, pull=pull(v)),
        "fedspeed": lambda v: algorithms.fedspeed(rho, lam, pull=pull(v)),
        "fedsmoo": smoo,
        "fedlesamd": lesam,
    }
    method, variant = method_of(words, methods)
    options = {"momentum": h["momentum"], "weight_decay": h["weight_decay"]}
    local = partial(SGD, lr=h["local_learning_rate"], **options)
    algorithm = adapted(method(variant), local=local, weight=by_size, eps=1e-7)
    states = {"h_i": of_clients("h_i"), "mu_i": of_clients("mu_i"), "s": of_server("s")}
    states |= {"ema": average, "perturb_direction": next_direction}
    schedule = exponential(1, h["lr_decay"])
    return Setup(algorithm, schedule, h["batch_size"], h["local_epochs"], None, states)


def fedgloss(words: list[str], h: dict[str, Any]) -> Setup:
    dual: Any = "released" if "asis" in words else "paper"
    algorithm = algorithms.fedgloss(h["rho"], h["rho_l"], h["beta"], dual)
    local = partial(SGD, lr=h["lr"], momentum=h["momentum"], weight_decay=h["weight_decay"])
    at = partial(SGD, lr=h["server_lr"], momentum=h["server_momentum"])
    algorithm = adapted(algorithm, local=local, server=at, eps=1e-16)
    states = {"sigma_i": of_clients("h_i", -1 / h["beta"]), "sigma": of_server("h", -1 / h["beta"])}
    states |= {"pseudo_gradient": of_server("D")}
    return Setup(algorithm, exponential(1, 1), h["batch_size"], h["E"], None, states)


def fedgf(words: list[str], h: dict[str, Any]) -> Setup:
    algorithm = algorithms.fedgf(h["rho"], h["g_rho"], h["T_D"], h["W"])
    local = partial(SGD, lr=h["lr"], momentum=h["momentum"], weight_decay=h["weight_decay"])

    def perturbed(federation: Federation) -> Tensor:
        w = federation.w.detach()
        return w - h["g_rho"] * unit(w - server(federation, "last"))

    def window(federation: Federation) -> Tensor:
        return server(federation, "above")[-federation.rounds :]

    states = {"perturbed": perturbed, "window": window, "c_next": of_server("c")}
    algorithm = adapted(algorithm, local=local)
    return Setup(algorithm, exponential(1, 1), h["batch_size"], h["epochs"], None, states)


def fednsam(words: list[str], h: dict[str, Any]) -> Setup:
    algorithm = algorithms.fednsam(
        h["rho"],
        h["gamma"],
        ascent="momentum" if words[0] == "onepass" else "local",
        memory="as_released" if "asis" in words else "accumulated",
    )
    steps = h.get("K", 50)  # of which a larger client takes no more
    local = partial(SGD, lr=h["lr"], weight_decay=h["weight_decay"])
    algorithm = adapted(algorithm, local=local, rate=lambda k, K: float(k < steps))
    states = {"momentum": of_server("m")}
    return Setup(algorithm, cosine(1, 0, h["epoch"]), h["batch_size"], h["E"], None, states)


def rfl_nlcp(words: list[str], h: dict[str, Any]) -> Setup:
    """Client 0's steps stand for everyone's; where clients are unequal they are one an epoch."""
    made = algorithms.fedtoga(
        h["rho"],
        h["kai"],
        h["lamb1"],
        h["lamb"],
        "released",
        delta="epochs" if "ragged" in words else "steps",
    )
    toga, pull = made.terms
    algorithm = Algorithm(replace(toga, trend="delta" in words), pull)
    local = partial(SGD, lr=h["local_learning_rate"], weight_decay=h["weight_decay"])
    states = {"h_i": of_clients("h_i"), "delta": of_server("Delta")}
    schedule = exponential(1, h["lr_decay"])
    algorithm = adapted(algorithm, local=local)
    return Setup(algorithm, schedule, h["batchsize"], h["local_epochs"], None, states)


FLATNESS = {
    "wmsam": fedwmsam,
    "gmt": fl_sam,
    "gloss": fedgloss,
    "gf": fedgf,
    "nsam": fednsam,
    "toga": rfl_nlcp,
}
