"""Privacy: epsilon as opacus counts it, resumed too; what would break the promise is refused."""

from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from jobs import experiment, results
from lightning_modules import rows
from numpy import ones
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.analysis import rdp
from problems import classifier, federation, term
from refusals import refused
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning import Algorithm, Federation, UserError, algorithms, zeros
from fl_lightning.callbacks import privacy
from fl_lightning.callbacks.privacy import PrivacyAccountant, check_private, epsilon
from fl_lightning.federation.sampling import BernoulliSampling
from fl_lightning.terms import SAM, GaussianMechanism, Krum, Personal, ServerMomentum

HALF = BernoulliSampling(0.5, may_be_empty=True)


def private(*terms: Any, **options: Any) -> Federation:
    given = {"module": classifier(norm=False), "sampler": HALF, **options}
    algorithm = Algorithm(*terms or [GaussianMechanism()], weight=given.pop("weight", fl.uniform))
    return federation(algorithm, **given)


def test_epsilon_of_changing_noise_and_of_the_other_accountant() -> None:
    history = [(1.0, 0.1, 3), (2.0, 0.1, 5)]
    for name, kind in {"rdp": RDPAccountant, "prv": PRVAccountant}.items():
        direct = kind()
        for noise, rate, rounds in history:
            for _ in range(rounds):
                direct.step(noise_multiplier=noise, sample_rate=rate)
        assert epsilon(history, 1e-5, name) == direct.get_epsilon(delta=1e-5)
    assert epsilon([(1.0, 0.1, 3), (0.0, 0.1, 1)], 1e-5, "rdp") == inf


def test_a_round_of_changing_noise_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Mock(return_value=ones(len(RDPAccountant.DEFAULT_ALPHAS)))
    monkeypatch.setattr(rdp, "compute_rdp", compute)
    history = [(1 + k / 7919, 0.123, 1) for k in range(300)]
    for _ in range(2):
        epsilon(history, 1e-5, "rdp")
    privacy._rdp.cache_clear()
    assert compute.call_count == 300


def test_the_plan_counts_rounds_of_equal_noise_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "epsilon", counted := Mock(return_value=1.0))
    run = private(GaussianMechanism(accountant="prv"), rounds=500)
    PrivacyAccountant(run).planned(run)
    counted.assert_called_once_with([(1.0, 0.5, 500)], 1e-5, "prv")


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_zero_where_delta_alone_covers_the_rounds(accountant: str) -> None:
    assert epsilon([(100.0, 1.0, 1)], 0.1, accountant) == 0


def test_rounds_that_prv_cannot_count_are_refused() -> None:
    for noise, delta in ((1.0, 1e-30), (0.01, 1e-5)):
        with pytest.raises(UserError, match=r"prv .* choose rdp"):
            epsilon([(noise, 1.0, 1)], delta, "prv")


def test_the_rounds_are_counted_with_their_noise_and_over_a_restart() -> None:
    run = private(GaussianMechanism(noise_multiplier=fl.linear(1.0, 2.0, 2)))
    first, second = PrivacyAccountant(run), PrivacyAccountant(run)
    for accountant in (first, first, second):
        if accountant is second:
            second.load_state_dict(first.state_dict())
        metrics = run.train_round()
        accountant.on_round_end(run, metrics)
    assert second.history == [(1.0, 0.5, 1), (1.5, 0.5, 1), (2.0, 0.5, 1)]
    assert metrics["privacy/epsilon"] == epsilon(second.history, 1e-5, "rdp")


def test_a_resumed_run_has_the_noise_and_the_epsilon_of_one_made_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--algorithm", "dp_fedavg", "--sampling", "bernoulli", "--participation", "0.5"]
    argv += ["--accelerator", "cpu", "--run-dir", str(tmp_path / "run")]
    experiment(*argv, "--rounds", "2").run()
    experiment(*argv, "--rounds", "4", "--resume").run()
    column = pd.read_csv(tmp_path / "run" / "metrics.csv")["privacy/epsilon"]
    expected = [epsilon([(1.0, 0.5, k)], 1e-5, "rdp") for k in (1, 2, 3, 4)]
    assert column.tolist() == pytest.approx(expected, rel=1e-9)
    assert f"epsilon {column.iloc[-1]:.4g} at delta 1e-05" in capsys.readouterr().out
    experiment(*argv[:-1], str(tmp_path / "whole"), "--rounds", "4").run()
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def report(self: Any, w: Tensor, v: Any) -> Any:
    return w - v.origin


def by_cohort(self: Any, delta: Tensor, mean: Any, v: Any) -> Tensor:
    return delta * v.participation


def remembers(self: Any, delta: Tensor, mean: Any, v: Any) -> Tensor:
    v.m = delta
    return delta


def weighs(self: Any, delta: Tensor, v: Any) -> Tensor:
    v.weight = v.weight * 2
    return delta


NOISY = GaussianMechanism()


@pytest.mark.parametrize(
    ("terms", "options", "words"),
    [
        ([NOISY], {"sampler": BernoulliSampling(0.5)}, "bernoulli"),
        ([NOISY], {"sampler": lambda *_: [0, 1]}, "bernoulli"),
        ([NOISY], {"on_divergence": "skip-client"}, "on-divergence"),
        ([NOISY], {"module": classifier()}, "running_mean"),
        ([term(send=weighs), NOISY], {}, "weight"),
        ([NOISY], {"weight": fl.by_size}, "weight"),
        ([term(report=report), NOISY], {}, "message"),
        ([NOISY, term(report=report)], {}, "message"),
        ([NOISY, Krum()], {}, "what Krum makes"),
        ([NOISY, Personal("head")], {}, "after it was clipped"),
        ([NOISY, NOISY], {}, "after it was clipped"),
        ([term(update=remembers, server={"m": zeros}), NOISY], {}, "before the noise"),
        ([NOISY, term(update=by_cohort)], {}, "size of the cohort"),
    ],
)
def test_what_the_noise_does_not_cover_is_refused(
    terms: list[Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        check_private(private(*terms, **options))


def test_what_it_covers_is_not_refused() -> None:
    check_private(private(SAM(), Personal("head"), NOISY, ServerMomentum()))
    check_private(private(algorithms.dp_fedavg(quantile=0.5).terms[0]))
    without_statistics = nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3))
    check_private(private(module=without_statistics.double()))


def test_without_the_extra_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy, "find_spec", lambda name: None)
    argv = ["--algorithm", "dp_fedavg", "--sampling", "bernoulli"]
    assert "pip install 'fl-lightning[privacy]'" in refused(capsys, tmp_path / "run", *argv)
    with pytest.raises(UserError, match="opacus"):
        fl.FederatedTrainer("dp_fedsam", sampling="bernoulli")


def test_a_trainer_needs_independent_clients() -> None:
    data = fl.FederatedData(rows(24), clients=torch.arange(24) % 3)
    trainer = fl.FederatedTrainer("dp_fedavg", rounds=1, accelerator="cpu")
    with pytest.raises(UserError, match="sampling bernoulli"):
        trainer.fit(nn.Linear(6, 3), data)
