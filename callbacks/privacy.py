"""Differential privacy: what a run has spent, by opacus, and what it must not do."""

from collections import Counter
from functools import cache
from importlib.util import find_spec
from math import inf
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch.utils._pytree import tree_leaves

from fl_lightning.core.algorithm import Algorithm
from fl_lightning.core.network import arguments, class_name
from fl_lightning.core.term import Term, overrides
from fl_lightning.core.weighting import uniform
from fl_lightning.errors import ModelError, UserError, first_sentence
from fl_lightning.federation.federation import Federation, Metrics
from fl_lightning.federation.sampling import BernoulliSampling
from fl_lightning.federation.server import copy_of
from fl_lightning.terms import GaussianMechanism


def is_private(algorithm: Algorithm) -> bool:
    """Whether an algorithm has the Gaussian mechanism."""
    return any(isinstance(term, GaussianMechanism) for term in algorithm.terms)


def check_opacus() -> None:
    """Raise a UserError unless opacus is installed."""
    if find_spec("opacus") is None:
        raise UserError(
            "differential privacy needs the package opacus: pip install 'fl-lightning[privacy]'"
        )


class PrivacyAccountant:
    """Publishes `privacy/epsilon`: what the rounds so far cost each client, by opacus' accountants.

    Every round counts with its noise and sampling rate, one without clients too. The rounds are
    part of the checkpoint.

    Args:
        federation: The simulation, of an algorithm with `GaussianMechanism`.

    Attributes:
        history: The rounds so far as opacus has them: (noise multiplier, sampling rate, rounds).

    Raises:
        UserError: If the model would depend on a client in another way than by the noisy sum.
    """

    def __init__(self, federation: Federation):
        check_private(federation)
        self.history: list[tuple[float, float, int]] = []

    def on_round_end(self, federation: Federation, metrics: Metrics) -> None:
        mechanism = _mechanism_at(federation, federation.round - 1)
        noise, rate, rounds = float(mechanism.noise_multiplier), _rate(federation), 1
        if self.history and self.history[-1][:2] == (noise, rate):
            rounds += self.history.pop()[2]
        self.history.append((noise, rate, rounds))
        metrics["privacy/epsilon"] = epsilon(self.history, mechanism.delta, mechanism.accountant)

    def planned(self, federation: Federation) -> str:
        """A sentence about what all rounds of the run will have cost."""
        terms = [_mechanism_at(federation, k) for k in range(federation.rounds)]
        rate, last = _rate(federation), terms[-1]
        rounds = Counter(float(term.noise_multiplier) for term in terms)
        history = [(noise, rate, count) for noise, count in rounds.items()]  # one by one is slow
        spent = epsilon(history, last.delta, last.accountant)
        return (
            f"privacy of clients: epsilon {spent:.3g} after round {federation.rounds:,}, at delta "
            f"{last.delta:g}"
        )

    def spent(self, federation: Federation) -> str:
        """A line about what the rounds so far have cost."""
        last = _mechanism_at(federation, federation.round - 1)
        spent = epsilon(self.history, last.delta, last.accountant)
        return f"privacy of clients: epsilon {spent:.4g} at delta {last.delta:g}"

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = [tuple(entry) for entry in state["history"]]


def epsilon(history: list[tuple[float, float, int]], delta: float, accountant: str) -> float:
    """The epsilon of opacus' accountant of that name; infinite without noise.

    Raises:
        UserError: If the accountant cannot compute it, as prv cannot for a delta of 1e-30.
    """
    if any(noise == 0 for noise, _, _ in history):
        return inf
    from opacus.accountants import PRVAccountant, RDPAccountant
    from opacus.accountants.analysis import rdp

    with catch_warnings():
        simplefilter("ignore")  # that other orders could be tighter
        if accountant == "prv":
            prv = PRVAccountant()
            prv.history = history
            try:
                return max(0.0, float(prv.get_epsilon(delta=delta)))
            except (ValueError, RuntimeError) as error:
                raise UserError(
                    f"the accountant prv cannot count these rounds ({first_sentence(error)}): "
                    "choose rdp"
                ) from error
        spent = sum(_rdp(noise, rate) * rounds for noise, rate, rounds in history)
        orders = RDPAccountant.DEFAULT_ALPHAS
        found = float(rdp.get_privacy_spent(orders=orders, rdp=spent, delta=delta)[0])
        return max(0.0, found)  # the bound is below 0 where delta alone covers the rounds


@cache  # each round asks for all earlier rounds again
def _rdp(noise: float, rate: float) -> Any:
    """The Renyi divergences of one round, which take most of a second."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis import rdp

    orders = RDPAccountant.DEFAULT_ALPHAS
    return rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


def check_private(federation: Federation) -> None:
    """Raise a UserError if the model depends on a client in another way than by the noisy sum."""
    algorithm, sampler = federation.algorithm, federation.sampler
    rehearsal = federation.local_training.rehearsal
    name = type(_mechanism(algorithm)).__name__
    if not (isinstance(sampler, BernoulliSampling) and sampler.may_be_empty):
        raise UserError(
            f"{name} needs clients that take part independently of each other: add --sampling "
            "bernoulli"
        )
    if federation.on_divergence == "skip-client":
        raise UserError(
            f"{name} cannot leave clients out of a round: choose --on-divergence stop or continue"
        )
    if algorithm.combining is not None:
        combines = type(algorithm.combining).__name__
        raise UserError(f"{name} covers a mean of updates, not what {combines} makes: leave it out")
    if algorithm.weight is not uniform or "weight" in rehearsal.assigned:
        raise UserError(
            f"{name} bounds the influence of clients of equal weight: choose --weighting uniform, "
            "and a method without weights of its own"
        )
    place = next(i for i, t in enumerate(algorithm.terms) if isinstance(t, GaussianMechanism))
    for i, term in enumerate(algorithm.terms):
        if i == place:
            continue
        if why := _leak(term, i < place, rehearsal.message[i], rehearsal.update_reads[i]):
            raise UserError(f"{name} does not cover {type(term).__name__}, which {why}")
    if moved := _changed_buffers(federation):
        raise ModelError(
            f"{class_name(federation.module)} changes its buffer {moved[0]!r} in training, which "
            "gets no noise: choose a model that changes none, as with GroupNorm for BatchNorm"
        )


def _leak(term: Term, before: bool, message: Any, update_reads: set[str]) -> str:
    """How the server would learn of clients by this term, besides the noisy sum; "" if it cannot.

    `before` is whether the term stands before the mechanism.
    """
    if overrides(term, "send") and not before:
        return "changes what is sent after it was clipped: leave it out, or place it first"
    if "measure" in term.roles:
        return ""
    if tree_leaves(message):
        return "sends a message besides the update, without noise: choose another method"
    if overrides(term, "update") and before:
        return "sees the update before the noise: leave it out, or place it last"
    if "participation" in update_reads:
        return "uses the size of the cohort, without noise: choose another method"
    return ""


def _changed_buffers(federation: Federation) -> list[str]:
    """The names of the buffers that training changes and that clients send."""
    module, samples = copy_of(federation.module).train(), federation.clients.dataset
    two = torch.arange(2, device=samples.device) % len(samples)
    args, kwargs = arguments(samples.inputs(two))
    devices = [federation.w.device] if federation.w.device.type == "cuda" else []
    before = {name: b.clone() for name, b in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices), federation.fabric.autocast():
        module(*args, **kwargs)
    shared = federation.server.shared_buffers
    return [k for k, b in module.named_buffers() if k in shared and not b.equal(before[k])]


def _mechanism(algorithm: Algorithm) -> GaussianMechanism:
    return next(term for term in algorithm.terms if isinstance(term, GaussianMechanism))


def _mechanism_at(federation: Federation, round: int) -> GaussianMechanism:
    return _mechanism(federation.server.scheduled.at(round, federation.rounds))


def _rate(federation: Federation) -> float:
    """The probability with which each client takes part in a round."""
    return float(federation.sampler.expected_participation)  # type: ignore[attr-defined]
