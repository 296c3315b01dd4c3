"""FedSSG: its relatives, its gate, its memories; FedDC between FedDyn and SCAFFOLD."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from problems import (
    Left,
    Recorder,
    all_three,
    assert_same_unless,
    classification,
    hard,
    regression,
    rows,
    server,
    trained,
)
from torch import Tensor

from fl_lightning import Algorithm, BernoulliSampling, Term, algorithms
from fl_lightning.terms import ReleasedControlVariate, ReleasedSSG
from fl_lightning.terms.drift import nominal, om

C = algorithms
EQUAL = classification((10,) * 6)


def without_memory_on_the_server(delta: Tensor, drift: Tensor, v: Any) -> Tensor:
    return delta


def only_corrected(**options: Any) -> Algorithm:
    """FedSSG without alignment, with the plain mean on the server."""
    return Algorithm(ReleasedSSG(0.0, amend=without_memory_on_the_server, **options))


def test_fedssg_without_alignment_gate_and_server_memory_is_scaffold() -> None:
    # As coded, for equal clients; where sizes differ FedSSG divides the server's memory
    # everywhere.
    general, different = only_corrected(gate=None), only_corrected()
    coded = C.scaffold(correction_lr="base", size_weighting=True)
    assert_same_unless(general, coded, different, clients=EQUAL)
    assert_same_unless(
        general, Algorithm(ReleasedControlVariate(length=nominal, scale=om)), different
    )
    assert_same_unless(general, Algorithm(ReleasedControlVariate(length=nominal, scale=om)), coded)


def test_fedssg_without_gate_aligned_as_the_main_text_is_feddc() -> None:
    general = C.fedssg(alpha=0.1, gate="none", alignment="proximal")
    special = C.feddc(alpha=0.1, correction_lr="base")
    assert_same_unless(general, special, C.fedssg(alpha=0.1, alignment="proximal"), tolerance=1e-11)
    assert_same_unless(general, special, C.fedssg(alpha=0.1, gate="none"), tolerance=1e-11)
    assert_same_unless(general, special, C.feddc(alpha=0.1), tolerance=1e-11)


@pytest.mark.parametrize("aggregation", ["all", "active"])
def test_both_servers_of_feddc_are_fedssgs_without_gate(aggregation: Any) -> None:
    general = C.fedssg(alpha=0.1, gate="none", alignment="proximal", aggregation=aggregation)
    other = C.fedssg(alpha=0.1, gate="none", alignment="proximal", aggregation="inverse_n")
    special = C.feddc(alpha=0.1, correction_lr="base", dual=aggregation)
    assert_same_unless(general, special, other, tolerance=1e-11)


def test_with_everybody_taking_part_all_servers_of_fedssg_are_one() -> None:
    def everybody(num_clients: int, seed: int, round: int) -> list[int]:
        return list(range(num_clients))

    assert_same_unless(
        C.fedssg(aggregation="active"),
        C.fedssg(),
        C.fedssg(gate="running"),
        tolerance=1e-11,
        sampler=everybody,
    )
    assert_same_unless(
        C.fedssg(aggregation="inverse_n"),
        C.fedssg(),
        C.fedssg(gate="running"),
        tolerance=1e-11,
        sampler=everybody,
    )


def test_fedssg_without_correction_and_gate_aligned_as_the_main_text_is_feddyn() -> None:
    options = {"gate": "none", "alignment": "proximal", "correction": False}
    assert_same_unless(
        C.fedssg(alpha=0.1, **options),
        C.feddyn(alpha=0.1, size_weighting=True),
        C.fedssg(alpha=0.1, **{**options, "correction": True}),
    )
    assert_same_unless(
        C.fedssg(alpha=0.1, **options, size_weighting=False),
        C.feddyn(alpha=0.1),
        C.fedssg(alpha=0.1, **options),
    )


def test_fedssg_with_every_switch_of_its_ablation_off_is_feddyn_without_multiplier() -> None:
    off = C.fedssg(alignment="none", correction=False, gate="none")
    assert_same_unless(off, C.feddyn(alpha=0.0), C.fedssg(alignment="none", correction=False))


def test_feddc_without_its_gradient_correction_is_feddyn() -> None:
    dual, variate = C.feddc(alpha=0.1).terms
    assert isinstance(variate, ReleasedControlVariate)
    special = C.feddyn(alpha=0.1, size_weighting=True)
    assert_same_unless(Algorithm(dual, replace(variate, k=0.0)), special, Algorithm(dual, variate))


def test_feddc_without_its_multiplier_is_not_scaffold() -> None:
    """The server goes on adding the mean memory."""
    free, variate = (
        trained(hard(a)).w.detach()
        for a in (C.feddc(alpha=0.0, size_weighting=False), C.scaffold())
    )
    assert (free - variate).abs().max() > 1e-6


def test_with_everybody_taking_part_the_gate_opens_from_one_to_two() -> None:
    """Every client remembers 1 + (t + 1) / T times its move."""
    T = 4
    run = regression(C.fedssg().with_outer_terms(Left()), sampler=all_three, rounds=T)
    for t in range(T):
        before, anchor = rows(run, "h_i"), run.w.detach().clone()
        run.train_round()
        moved = rows(run, "u") - anchor
        torch.testing.assert_close(
            rows(run, "h_i") - before, (1 + (t + 1) / T) * moved, rtol=0, atol=1e-12
        )
        assert rows(run, "count").tolist() == [t + 1] * 3


@pytest.mark.parametrize("gate", ["horizon", "running"])
def test_the_gate_expects_what_is_probable_whoever_is_drawn(gate: Any) -> None:
    """Visits over p T, or over p (t + 1), though cohorts of independent draws differ in size."""
    T, p = 4, 0.75
    run = regression(
        C.fedssg(gate=gate).with_outer_terms(Left()),
        sampler=BernoulliSampling(p),
        rounds=T,
        seed=1,
    )
    cohorts = [run.sampler(3, 1, round) for round in range(T)]
    assert len({len(cohort) for cohort in cohorts}) > 1
    for t, cohort in enumerate(cohorts):
        before, anchor = rows(run, "h_i"), run.w.detach().clone()
        run.train_round()
        ratio = rows(run, "count") / (p * T if gate == "horizon" else p * (t + 1) + 1e-6)
        expected_moves = ((1 + ratio)[:, None] * (rows(run, "u") - anchor))[cohort]
        torch.testing.assert_close(
            (rows(run, "h_i") - before)[cohort], expected_moves, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("correction_lr", ["base", "current"])
def test_gating_and_the_undecayed_rate_make_the_gradient_memory_a_running_mean(
    correction_lr: Any,
) -> None:
    """d_i' = (1 - rho s) (d_i - d) + rho s (mean gradient + alpha h_i), s being the decay so far.

    Client 1 comes in rounds 0 and 1 of 3; in round 1 it is alone, so that it was drawn 2 times of
    1/3 * 3 expected.
    """
    alpha, rho, s = 0.2, 1 + 2, 0.5 if correction_lr == "base" else 1.0
    log: list[tuple[Tensor, Tensor]] = []
    terms: list[Term] = [Recorder(log), *C.fedssg(alpha=alpha, correction_lr=correction_lr).terms]
    run = regression(
        Algorithm(*terms),
        schedule=lambda round, epoch: 0.5**round,
        sampler=lambda n, seed, round: [[0, 1, 2], [1]][round],
    )
    run.train_round()
    d_i, h_i, d = rows(run, "d_i")[1], rows(run, "h_i")[1], server(run, "d")
    assert min(t.norm() for t in (d_i, h_i, d)) > 0.01
    log.clear()
    run.train_round()
    mean = torch.stack([g for _, g in log]).mean(0)
    expected = (1 - rho * s) * (d_i - d) + rho * s * (mean + alpha * h_i)
    torch.testing.assert_close(rows(run, "d_i")[1], expected, rtol=0, atol=1e-12)


def test_a_longer_run_opens_the_horizon_gate_later_but_not_the_running_one() -> None:
    def after_two(gate: Any, rounds: int) -> Tensor:
        run = regression(C.fedssg(gate=gate), rounds=rounds)
        run.train_round()
        run.train_round()
        return run.w.detach()

    assert (after_two("horizon", 3) - after_two("horizon", 30)).abs().max() > 1e-3
    assert after_two("running", 3).equal(after_two("running", 30))
