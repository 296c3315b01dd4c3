"""Methods that leave something out: the head, the other half of the batch, everybody else."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from executors import STACKED, TRACED, assert_agree, on_eager_executors
from problems import (
    COHORTS,
    SIZES,
    classification,
    classifier,
    federation,
    hard,
    round_after_round,
    rows,
    trained,
)
from regressions import INPUTS, TARGETS, regression
from torch import Tensor, nn

from fl_lightning import Algorithm, Federation, Term, algorithms
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.core.oracle import Oracle
from fl_lightning.federation.fine_tuning import FineTuning, personal_model

C = algorithms
UNIFORM = Algorithm()


def plainly(*methods: Algorithm, **options: Any) -> list[Federation]:
    """Runs of plain SGD without dropout, whose masks would differ."""
    given = {"decays": False, **options}
    return [trained(made, module=classifier(norm=False, dropout=0.0), **given) for made in methods]


@on_eager_executors
def test_of_local_only_clients_the_global_model_never_moves_and_each_is_as_if_alone(
    executor: Any,
) -> None:
    run = trained(
        hard(C.local_only()), sampler=lambda n, seed, round: list(range(n)), executor=executor
    )
    assert run.w.equal(run.server.initial_w)
    for client in range(len(SIZES)):
        alone = trained(hard(UNIFORM), sampler=lambda n, seed, round, client=client: [client])
        own, statistics = personal_model(run, client)
        torch.testing.assert_close(own, alone.w.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(statistics, alone.server.buffers, rtol=0, atol=1e-12)
    assert run.cost.uplink == 0


@on_eager_executors
@pytest.mark.parametrize(
    ("name", "part", "normalizes"),
    [
        ("fedper", "head", False),
        ("fedrep", "head", False),
        ("fedbn", "norm", True),
        ("lg_fedavg", "body", True),
    ],
)
def test_a_client_keeps_its_part_and_its_running_statistics(
    name: str, part: str, normalizes: bool, executor: Any
) -> None:
    """Statistics are part of the body. The server's part stays as it began."""
    begun = dict(classifier().named_buffers())
    run = trained(hard(ALGORITHMS[name]()), executor=executor)
    w, first = run.w.detach(), run.server.initial_w
    others = run.layout.mask(part, w) == 0
    part_of = partial(run.layout.take, part)
    assert part_of(w).equal(part_of(first))
    assert not (w == first)[others].any()
    for client in range(len(SIZES)):
        own, kept = personal_model(run, client)
        assert own[others].equal(w[others])
        assert part_of(own).equal(rows(run, "w_i")[client])
        for key, value in run.server.buffers.items():
            assert value.equal(begun[key]) == normalizes
            assert kept[key].equal(value) != normalizes


def test_fedbn_by_hand() -> None:
    """Two rounds of two clients in a plain loop, running statistics included."""
    network = partial(classifier, dropout=0.0)
    given: dict[str, Any] = {"module": network(), "clients": classification((10, 5))}
    run = federation(algorithms.fedbn(), sampler=lambda *_: [0, 1], decays=False, **given)
    common, own = network().state_dict(), [network().state_dict() for _ in range(2)]
    for round in range(2):
        ended = []
        for client in range(2):
            module = network()
            mine = {k: v for k, v in own[client].items() if k.startswith("norm.")}
            module.load_state_dict({**common, **mine})
            sgd = torch.optim.SGD(module.parameters(), lr=0.1)
            for x, y in run.clients.visit(client, round):
                sgd.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                sgd.step()
            own[client] = module.state_dict()
            ended.append(own[client])
        common = {k: (ended[0][k] + ended[1][k]) / 2 for k in common}
        run.train_round()
    for client in range(2):
        w, buffers = personal_model(run, client)
        made = {**run.layout.named(w), **buffers}
        for key, value in own[client].items():
            expected = value if key.startswith("norm.") else common[key]
            torch.testing.assert_close(made[key], expected, rtol=0, atol=1e-12)


def test_personal_models_of_fedbn_are_the_same_in_every_executor_and_after_a_restart(
    tmp_path: Path, traces: list[Any]
) -> None:
    """Fine-tuned ones too, and those of a client that was skipped in between."""

    def models(run: Federation) -> list[Any]:
        tuning = FineTuning(run, 0.05)
        return [[*tuning.models(range(6), epochs)] for epochs in (0, 1)]

    def begin(folder: str, **options: Any) -> Federation:
        return federation(hard(algorithms.fedbn()), state_dir=tmp_path / folder, **options)

    whole = round_after_round(begin("whole"), 3)
    for number, executor in enumerate((STACKED, partial(TRACED, compiled=5))):
        other = round_after_round(begin(str(number), executor=executor), 3)
        assert_agree(whole, other)
        torch.testing.assert_close(models(whole), models(other), rtol=0, atol=1e-10)
    stopped = round_after_round(begin("stopped"), 2)
    stopped.store.retain()
    state = deepcopy(stopped.state_dict())
    stopped.train_round()  # is lost
    resumed = begin("stopped")
    resumed.load_state_dict(state)
    round_after_round(resumed, 1)
    torch.testing.assert_close(models(whole), models(resumed), rtol=0, atol=0)


def test_a_skipped_client_keeps_its_running_statistics() -> None:
    run = federation(algorithms.fedbn(), on_divergence="skip-client", sampler=lambda *_: [0, 1])
    run.train_round()
    before = personal_model(run, 0)[1]
    run.clients.dataset.x[run.clients.partition[0]] = torch.nan
    run.train_round()
    after, other = personal_model(run, 0)[1], personal_model(run, 1)[1]
    assert all(after[name].equal(kept) for name, kept in before.items())
    assert all(kept.isfinite().all() for kept in other.values())


def test_fedbn_sends_and_receives_no_running_statistics() -> None:
    run = federation(algorithms.fedbn())
    numbers = 8 * (99 - 16) * len(COHORTS[0])
    metrics = run.train_round()
    assert metrics["comm/uplink_mb"] == pytest.approx(numbers / 1e6)
    assert metrics["comm/downlink_mb"] == pytest.approx(numbers / 1e6)


def test_fedrep_trains_the_head_first_and_the_body_then() -> None:
    """Of eight plain steps six are the head's."""
    moved = []
    base = Algorithm(*algorithms.fedrep(head_share=0.75).terms)
    for steps, notes in ((8, 0), (2, 0), (1, 1)):
        facts = federation(base, clients=classification(steps=steps)).local_training.rates
        assert len(base.summary_lines(*[facts.average_visit(0)] * 2)) == notes

    @dataclass(frozen=True)
    class Watch(Term):
        def gradient(self, oracle: Oracle, w: Tensor, v: Any) -> Tensor:
            g = oracle(w)
            moved.append([bool(v.layout.take(part, g).any()) for part in ("head", "body")])
            return g

    run = federation(
        base.with_outer_terms(Watch()), clients=classification(steps=8), sampler=lambda *_: [0]
    )
    run.prepare()
    moved.clear()  # those of the rehearsal and of the trial on two samples
    run.train_round()
    assert moved == [[True, False]] * 6 + [[False, True]] * 2


def test_dittos_common_model_is_fedavgs_and_without_a_pull_its_own_ones_are_alone() -> None:
    free, pulled, fedavg, alone = plainly(C.ditto(0.0), C.ditto(1.0), UNIFORM, C.local_only())
    assert free.w.equal(fedavg.w)
    assert pulled.w.equal(fedavg.w)
    torch.testing.assert_close(rows(free, "v_i"), rows(alone, "w_i"), rtol=0, atol=1e-12)
    assert (rows(free, "v_i") - rows(pulled, "v_i")).abs().max() > 1e-3
    assert personal_model(pulled, 0)[0].equal(rows(pulled, "v_i")[0])


def test_dittos_pull_by_hand() -> None:
    """Three full-batch steps of one client of a linear regression."""
    run = regression(C.ditto(0.5), steps=3, lr=0.1, sampler=lambda *_: [0])
    run.train_round()
    x, y = torch.tensor(INPUTS[0], dtype=torch.float64), torch.tensor(TARGETS[0])
    anchor = v = torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        gradient = x.T @ (x @ v - y) / 2
        v = v - 0.1 * (gradient + 0.5 * (v - anchor))
    torch.testing.assert_close(rows(run, "v_i")[0], v, rtol=0, atol=1e-12)


def test_apfls_common_model_is_fedavgs_and_its_own_ones_range_from_it_to_the_lonely() -> None:
    mixed = (C.apfl(alpha) for alpha in (0.0, 0.5, 1.0))
    none, half, whole, fedavg, alone = plainly(*mixed, UNIFORM, C.local_only())
    for run in (none, half, whole):
        assert run.w.equal(fedavg.w)
    assert personal_model(none, 0)[0].equal(fedavg.w.detach())
    torch.testing.assert_close(rows(whole, "v_i"), rows(alone, "w_i"), rtol=0, atol=1e-12)
    assert personal_model(whole, 0)[0].equal(rows(whole, "v_i")[0])
    own = (rows(half, "v_i")[0] + half.w.detach()) / 2
    torch.testing.assert_close(personal_model(half, 0)[0], own, rtol=0, atol=1e-12)


def test_pfedme_without_a_pull_moves_nothing_common_and_adapts_the_received_model() -> None:
    """A client's own model is its last visit's; a client that never came has the common one."""
    local = partial(torch.optim.SGD, lr=0.09)
    free, alone = C.pfedme(lam=0.0, inner_steps=1), C.local_only().replace(local=local)
    free, pulled, alone = plainly(free, C.pfedme(), alone, rounds=1)
    assert free.w.equal(free.server.initial_w)
    assert (pulled.w - free.w).abs().max() > 1e-3
    for client in COHORTS[0]:
        own = rows(alone, "w_i")[client]
        torch.testing.assert_close(personal_model(free, client)[0], own, rtol=0, atol=1e-12)
    assert personal_model(pulled, 3)[0].equal(pulled.w.detach())


def test_pfedmes_envelope_by_hand() -> None:
    """One client of a linear regression, whose theta_i converges in many inner steps."""
    run = regression(
        C.pfedme(2.0, inner_steps=200, inner_lr=0.2), steps=3, lr=0.1, sampler=lambda *_: [1]
    )
    run.train_round()
    x, y = torch.tensor(INPUTS[1], dtype=torch.float64), torch.tensor(TARGETS[1])
    w = torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        pulled = x.T @ x / 2 + 2 * torch.eye(2, dtype=w.dtype)
        nearest = torch.linalg.solve(pulled, x.T @ y.double() / 2 + 2 * w)
        w = w - 0.1 * 2 * (w - nearest)
    torch.testing.assert_close(run.w.detach(), w, rtol=0, atol=1e-12)
    torch.testing.assert_close(personal_model(run, 1)[0], nearest, rtol=0, atol=1e-12)
