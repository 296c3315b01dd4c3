"""Setups of the recordings of methods that seek flatness of the global model."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from golden_setup import (
    ServerStep,
    Setup,
    adapted,
    by_first_client,
    method_of,
    of_clients,
    of_server,
)
from problems import server
from torch import Tensor
from torch.optim import SGD

from fl_lightning import Algorithm, Term, algorithms, by_size, zeros
from fl_lightning.core.curves import Curve, cosine, exponential, linear
from fl_lightning.core.oracle import Oracle
from fl_lightning.core.vector import unit
from fl_lightning.federation.federation import Federation
from fl_lightning.terms import SMOO, Clip, DynamicRegularizer, LastRound, MovingVariate
from fl_lightning.terms.released import NormPull, ReleasedTOGA


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
    algorithm = algorithm if "ki" in variant else by_first_client(algorithm, h)
    local = partial(SGD, lr=h["local_learning_rate"], weight_decay=h["weight_decay"])
    at = partial(SGD, lr=h["global_learning_rate"])
    algorithm = adapted(algorithm, Clip(10.0), local=local, server=at)
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


class Step(Curve):
    """One number until and in a round, then another one: (begin, end, round)."""

    def __call__(self, round: int, rounds: int) -> float:
        begin, end, last = self.numbers
        return begin if round <= last else end


def fedgloss(words: list[str], h: dict[str, Any]) -> Setup:
    """In the released warm-up the server's radius jumps, instead of growing with the client's."""
    released = "asis" in words
    dual: Any = "released" if released else "paper"
    rho, local_rho, first, T = (h[name] for name in ("rho", "rho_l", "rho0", "T_s"))
    if T > 1:
        jump: Any = Step("linear", (local_rho + (rho - first) / T, rho, T))
        rho = jump if released else linear(first, rho, T)
        local_rho = linear(first, local_rho, T)
    algorithm = algorithms.fedgloss(rho, local_rho, h["beta"], dual)
    at = h["server_lr"], h["server_momentum"]
    if at != (1, 0):  # the option --server-lr would scale the dual, too
        ascent, *others = algorithm.terms
        algorithm = algorithm.replace(terms=(ascent, ServerStep(*at), *others))
    local = partial(SGD, lr=h["lr"], momentum=h["momentum"], weight_decay=h["weight_decay"])
    algorithm = adapted(algorithm, local=local, eps=1e-16)
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
    local = partial(SGD, lr=h["lr"], weight_decay=h["weight_decay"])
    algorithm, schedule = adapted(algorithm, local=local), cosine(1, 0, h["epoch"])
    states = {"momentum": of_server("m")}
    return Setup(algorithm, schedule, h["batch_size"], h["E"], None, states, most=h.get("K"))


# FedSWA's repository


@dataclass(frozen=True)
class DividedVariate(MovingVariate):
    """FedMoSWA's variates, where a move is divided by so many steps, whatever a client made.

    Attributes:
        steps: The steps. None divides by the mean of a falling rate's ends, K eta / 2.
    """

    steps: int | None = None

    def report(self, w: Tensor, v: Any) -> Tensor:
        by_sum, old = (v.origin - w) / v.lr_sum, v.c_i
        made = v.steps + 1 if self.steps is None else v.steps
        v.c_i = old - v.c + by_sum * made / (self.steps or v.steps)
        return v.c_i - v.c


@dataclass(frozen=True)
class PlacesVariate(Term):
    """FedMoSWA's variates by the place in the cohort, as if that were the client."""

    cohorts: tuple[list[int], ...]
    steps: int
    gamma: float

    @property
    def server(self) -> Any:  # type: ignore[override]
        places = len(self.cohorts[0])
        return {"c": zeros, "c_pos": lambda first, now: now.new_zeros(places, len(now))}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle(w) + v.c - self._here(v) @ v.c_pos

    def report(self, w: Tensor, v: Any) -> Any:
        old = self._here(v) @ v.c_pos
        new = old - v.c + (v.origin - w) / v.lr_sum * v.steps / self.steps
        return new - v.c, self._here(v)[:, None] * (new - old)

    def update(self, delta: Tensor, mean: Any, v: Any) -> Tensor:
        v.c = v.c + (self.gamma if v.round else 1.0) * mean[0]
        v.c_pos = v.c_pos + len(v.c_pos) * mean[1]
        return delta

    def _here(self, v: Any) -> Tensor:
        """One at the client's place in the cohort of the round, zeros elsewhere."""
        now = torch.arange(len(self.cohorts)) == v.round
        cohort = (torch.tensor(self.cohorts) * now[:, None]).sum(0)
        return (cohort == v.client).to(v.anchor)


def fedswa(words: list[str], h: dict[str, Any]) -> Setup:
    most = None
    local = partial(SGD, lr=h["lr"], weight_decay=h["weight_decay"])
    states = {"c_i": of_clients("c_i"), "c": of_server("c"), "c_pos": of_server("c_pos")}
    if words[0] == "fedswa":
        factor, server = h["lr_factor"], partial(SGD, lr=h["lg"])
        algorithm = algorithms.fedswa(factor, factor * h["rho_end"]).replace(server=server)
    elif "cyclic" in words:
        algorithm = algorithms.fedmoswa(h["server_beta"])
        algorithm = algorithm.replace(terms=[DividedVariate(h["server_beta"])])
    else:
        most, gamma = h["K"], h["server_beta"]
        by_client = DividedVariate(gamma, steps=most)
        by_place = PlacesVariate((*h["cohorts"],), most, gamma)
        algorithm = Algorithm(by_client if "byclient" in words else by_place)
    algorithm, schedule = adapted(algorithm, local=local), cosine(1, 0, h["epoch"])
    return Setup(algorithm, schedule, h["batch_size"], h["E"], None, states, most=most)


class AscentByDelta(ReleasedTOGA):
    """FedTOGA in a third party's code, where the ascent adds Delta."""

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        e = self.rho * unit(oracle(w) + v.R + self.kappa * v.Delta, self.eps)
        v.R = oracle(w + e) + self.lam * (v.h_i - v.anchor) + self.beta * v.Delta
        return v.R


def rfl_nlcp(words: list[str], h: dict[str, Any]) -> Setup:
    one_an_epoch = h["sizes"][0] == h["batchsize"]  # of client 0, whose steps stand for everyone's
    coefficients = h["rho"], h["kai"], h["lamb1"], h["lamb"], "released"
    made = algorithms.fedtoga(*coefficients, delta="epochs" if one_an_epoch else "steps")
    toga, pull = made.terms
    if "delta" in words:
        toga = AscentByDelta(**vars(toga))
    algorithm = Algorithm(toga, pull)
    algorithm = algorithm if one_an_epoch else by_first_client(algorithm, h)
    local = partial(SGD, lr=h["local_learning_rate"], weight_decay=h["weight_decay"])
    states = {"h_i": of_clients("h_i"), "delta": of_server("Delta")}
    schedule = exponential(1, h["lr_decay"])
    algorithm = adapted(algorithm, Clip(10.0), local=local)
    return Setup(algorithm, schedule, h["batchsize"], h["local_epochs"], None, states)


FLATNESS = {
    "wmsam": fedwmsam,
    "gmt": fl_sam,
    "gloss": fedgloss,
    "gf": fedgf,
    "nsam": fednsam,
    "swa": fedswa,
    "toga": rfl_nlcp,
}
