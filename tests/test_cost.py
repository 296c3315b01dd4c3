"""What each method sends, keeps and computes, in models."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from problems import EVERY_ALGORITHM, classifier
from torch import Tensor

from fl_lightning import Algorithm, Term, scalar, zeros
from fl_lightning.cost import cost
from fl_lightning.oracle import Oracle
from fl_lightning.terms import SAM, Clip
from fl_lightning.vector import Layout

# Gradients a step, models up, down, kept by a client, kept by the server beside the model: from the tables of the
# papers' survey, where they leave a choice as follows.
# * SCAFFOLD's family sends c_i beside the model (2 up). The server could work it out from the model, at the price of a
#   copy of every c_i; so the tables say "2 or 1".
# * FedSpeed with the active mean needs the clients' duals. The table counts the amended model u_i + h_i alone (1 up);
#   here the update and the dual travel side by side, so that the update keeps its meaning.
# * FedLESAM by the last round keeps w^(t-1) on the server and sends it down; FedTOGA sends Delta down.
# * A dual of FedDyn stays with the client and on the server: 1 up, 1 down.
TABLE = {
    "fedavg": (1, 1, 1, 0, 0),
    "fedprox": (1, 1, 1, 0, 0),
    "fedadam": (1, 1, 1, 0, 2),
    "fedcm": (1, 1, 2, 0, 1),
    "scaffold": (1, 2, 2, 1, 1),
    "feddyn": (1, 1, 1, 1, 1),
    "fedsam": (2, 1, 1, 0, 0),
    "mofedsam": (2, 1, 2, 0, 1),
    "fedgamma": (2, 2, 2, 1, 1),
    "fedspeed": (2, 1, 1, 1, 1),
    "fedspeed, active dual": (2, 2, 1, 1, 0),
    "fedlesam": (1, 1, 1, 1, 0),
    "fedlesam, skip": (1, 1, 1, 1, 0),
    "fedlesam, last round": (1, 1, 2, 0, 1),
    "fedlesam, as released": (1, 1, 2, 0, 1),
    "fedlesam_s": (1, 2, 2, 2, 1),
    "fedlesam_s, last round": (1, 2, 3, 1, 2),
    "fedlesam_d": (1, 1, 1, 2, 1),
    "fedlesam_d, skip": (1, 1, 1, 2, 1),
    "fedtoga": (2, 1, 2, 1, 2),
    "fedtoga, neighbour": (1, 1, 2, 1, 2),
    "fedtoga, neighbour carried": (1, 1, 2, 2, 2),
    "fedtoga, fusion": (2, 1, 2, 1, 2),
    "fedtoga, fusion carried": (2, 1, 2, 2, 2),
    "fedtoga, over epochs": (2, 1, 2, 1, 2),
    "fedtoga, as a gradient": (2, 1, 2, 1, 2),
    "fedtoga, active dual": (2, 1, 2, 1, 2),
}


def in_models(algorithm: Algorithm, dtype: torch.dtype = torch.float32) -> tuple[float, ...]:
    module = classifier(dtype=dtype)
    layout = Layout(module)
    c = cost(algorithm, layout, layout.read(module))
    numbers = c.uplink, c.downlink, c.client_state, c.server_state
    return c.gradients, *(n / layout.size for n in numbers)


@pytest.mark.parametrize("name", EVERY_ALGORITHM)
def test_the_cost_of_a_method_is_that_of_the_survey(name: str) -> None:
    assert in_models(EVERY_ALGORITHM[name]) == TABLE[name]
    assert in_models(EVERY_ALGORITHM[name].and_then(Clip(0.1)), torch.float64) == TABLE[name]


def test_two_perturbations_ask_four_times() -> None:
    assert in_models(Algorithm(SAM(), SAM())) == (4, 1, 1, 0, 0)


@dataclass(frozen=True)
class Chatty(Term):
    """Sends a number, its progress three times over, and what nobody could know; reads one of two server states."""

    server = {"read": zeros, "unread": zeros}
    client = {"count": scalar}

    def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
        return oracle.of(lambda b: b.loss.square())(w) + v.read

    def report(self, w: Tensor, v: Any) -> Any:
        v.count = v.count + 1
        return v.count, 3 * (w - v.origin), (w - v.origin).square()


def test_only_what_the_other_side_cannot_know_is_counted() -> None:
    module = classifier()
    layout = Layout(module)
    c, d = cost(Algorithm(Chatty()), layout, layout.read(module)), layout.size
    assert (c.uplink, c.downlink, c.client_state, c.server_state) == (2 * d + 1, 2 * d, 1, 2 * d)


def test_counting_costs_does_not_touch_the_global_generator() -> None:
    layout = Layout(classifier())
    w = torch.zeros(layout.size)
    before = torch.get_rng_state()
    cost(EVERY_ALGORITHM["fedtoga"], layout, w)
    assert torch.get_rng_state().equal(before)
