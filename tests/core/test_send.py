"""What clients send: the update, its weight and its size; random numbers; parts of the model."""

from functools import partial
from typing import Any

import pytest
import torch
from executors import STACKED, TRACED, assert_agree
from problems import (
    COHORTS,
    EXECUTORS,
    classifier,
    federation,
    hard,
    term,
    trained,
    vec,
)
from regressions import layout
from torch import Tensor

from fl_lightning import Algorithm, OfLayout, TermError, UserError, zeros
from fl_lightning.core.weighting import by_size
from fl_lightning.terms import DynamicRegularizer, Personal, Quantize

D = 6 * 8 + 8 + 8 + 8 + 8 * 3 + 3
"""Parameters of the classifier."""


def halved(self: Any, delta: Tensor, v: Any) -> Tensor:
    v.bits = v.bits / 4
    return delta / 2


def rounded(self: Any, delta: Tensor, v: Any) -> Tensor:
    """Random rounding to multiples of 0.01, with a memory."""
    wanted = delta + v.e_i
    sent = torch.floor(100 * wanted + v.uniform(delta)) / 100 + 1e-3 * v.normal(delta)
    v.e_i = wanted - sent
    v.weight = v.weight * (2 + v.client)
    return sent


ROUNDED = term("Rounded", send=rounded, client={"e_i": zeros}, draws=True)


def test_the_server_moves_by_what_is_sent_and_messages_see_no_more() -> None:
    seen = []

    def report(self: Any, w: Tensor, v: Any) -> Any:
        seen.append(w - v.origin)
        return ()

    plain = federation(Algorithm(), rounds=1)
    sent = federation(Algorithm(term(send=halved), term(report=report)), rounds=1)
    sent.prepare()
    seen.clear()  # those of the rehearsal and of the trial
    whole, half = plain.train_round(), sent.train_round()
    begun = plain.server.initial_w
    torch.testing.assert_close(sent.w - begun, (plain.w - begun) / 2)
    torch.testing.assert_close(torch.stack(seen).mean(0), (sent.w - begun).detach())
    buffers = whole["comm/uplink_mb"] - 8e-6 * D * len(COHORTS[0])
    assert half["comm/uplink_mb"] - buffers == pytest.approx(8e-6 * D * len(COHORTS[0]) / 4)
    assert half["client/distance"] == pytest.approx(whole["client/distance"] / 2)


def test_buffers_that_no_state_dict_has_are_neither_sent_nor_received() -> None:
    module = classifier()
    module.register_buffer("mask", torch.ones(100), persistent=False)
    metrics = [federation(Algorithm(), module=m).train_round() for m in (module, classifier())]
    for name in ("comm/uplink_mb", "comm/downlink_mb"):
        assert metrics[0][name] == metrics[1][name]


@EXECUTORS
def test_a_negative_weight_is_refused(executor):
    def send(self, delta, v):
        v.weight = (v.client - 3) * v.weight
        return delta

    with pytest.raises(TermError, match=r"v\.weight = -3 .* at least 0"):
        trained(Algorithm(term(send=send)), executor=executor)


def test_the_mean_is_by_the_weights_that_terms_assign() -> None:
    """`v.weight` times a client's relative size is FedAvg by samples."""

    def send(self: Any, delta: Tensor, v: Any) -> Tensor:
        v.weight = v.weight * v.size
        return delta

    run, expected = (
        trained(hard(algorithm), module=classifier(dropout=0.0))
        for algorithm in (Algorithm(term(send=send)), Algorithm(weight=by_size))
    )
    torch.testing.assert_close(run.w, expected.w, rtol=0, atol=1e-12)
    means = [each.server.buffers["norm.running_mean"] for each in (run, expected)]
    assert means[0].allclose(means[1])


def test_terms_that_save_the_same_bits_are_refused() -> None:
    def send(self: Any, delta: Tensor, v: Any) -> Tensor:
        v.bits = v.bits / 64
        return delta.sign()

    with pytest.raises(TermError, match=r"send -[\d,]+ bits, .* roles = frozenset"):
        federation(Algorithm(term(send=send), Quantize(8)))


@pytest.mark.parametrize("executor", [STACKED, partial(TRACED, compiled=5)])
def test_executors_agree_on_what_is_sent_and_drawn(executor: Any, traces: list[Any]) -> None:
    algorithm = hard(Algorithm(DynamicRegularizer(0.1), ROUNDED, Personal("norm")))
    assert_agree(trained(algorithm), trained(algorithm, executor=executor))


def test_draws_depend_on_seed_round_client_and_call() -> None:
    def drawn(seed: int) -> Tensor:
        """A row of numbers for each visit of two rounds, in the order of clients."""
        visits = []

        def send(self: Any, delta: Tensor, v: Any) -> Tensor:
            numbers = torch.cat([v.uniform(delta[:4]), v.normal(delta[:4])])
            visits.append((int(v.round), int(v.client), numbers))
            return delta

        run = federation(Algorithm(term(send=send, draws=True)), seed=seed)
        run.prepare()
        visits.clear()  # those of the rehearsal and of the trial
        run.train_round()
        run.train_round()
        of_visits = sorted(visits, key=lambda visit: visit[:2])
        assert [client for _, client, _ in of_visits] == COHORTS[0] + COHORTS[1]
        return torch.stack([numbers for *_, numbers in of_visits])

    numbers = drawn(0)
    assert numbers.equal(drawn(0))
    assert numbers.unique().numel() == numbers.numel()
    assert not (numbers == drawn(1)).any()


def test_draws_are_uniform_and_normal() -> None:
    found = {}

    def send(self: Any, delta: Tensor, v: Any) -> Tensor:
        many = delta.new_zeros(100_000)
        found.update(uniform=v.uniform(many), normal=v.normal(many))
        return delta

    trained(Algorithm(term(send=send, draws=True)), rounds=1)
    u, z = found["uniform"], found["normal"]
    assert u.min() >= 0
    assert u.max() < 1
    moments = vec(u.mean(), u.var(), z.mean(), z.var(), (z**4).mean())
    torch.testing.assert_close(moments, vec(1 / 2, 1 / 12, 0, 1, 3), rtol=0, atol=0.05)


def test_a_term_that_draws_without_saying_so_is_refused() -> None:
    draws = term(send=lambda self, delta, v: delta + v.normal(delta))
    with pytest.raises(TermError, match="draws = True"):
        federation(Algorithm(draws))


@pytest.mark.parametrize(
    ("part", "words"), [("none", "no parameter of the part 'none'"), (".", "all parameters")]
)
def test_a_personal_part_is_some_of_the_model(part: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        federation(Algorithm(Personal(part)))


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("head", ["outer.weight", "outer.bias"]),
        ("norm", ["norm.weight", "norm.bias"]),
        ("weight", ["inner.weight", "norm.weight", "outer.weight"]),
        (lambda name, layout: name in layout.names[:1], ["inner.weight"]),
    ],
    ids=["head", "norm", "word", "function"],
)
def test_parts_of_a_model(part: Any, names: list[str]) -> None:
    of = layout(classifier())
    assert [name for name in of.names if of.has(part, name)] == names
    w = torch.arange(float(D))
    values = of.take(part, w)
    assert of.put(part, 0 * w, values).equal(w * of.mask(part, w))
    others = [name for name in of.names if not of.has(part, name)]
    run = federation(Algorithm(trains=part))
    assert (run.layout.names, run.untrained) == (names, others)


def test_a_whole_vector_put_into_a_part_is_refused() -> None:
    w = torch.arange(float(D))
    with pytest.raises(UserError, match=r"v\.layout\.take\(part, values\)"):
        layout(classifier()).put("head", w, w)


def test_an_initializer_may_see_the_layout() -> None:
    sizes = OfLayout(lambda first, now, layout: now.new_tensor([float(s) for s in layout.sizes]))
    run = federation(Algorithm(term(server={"sizes": sizes})))
    assert run.server.states[0]["sizes"].tolist() == [48, 8, 8, 8, 24, 3]
