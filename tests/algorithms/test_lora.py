"""Methods for adapters: what they train, send and keep, and what becomes of the base."""

from functools import partial
from typing import Any

import pytest
import torch
from adapters import RANK, LoRALinear, adapted, adapted_federation, frozen_weights, whole_weights
from every_algorithm import LORA
from executors import STACKED, TRACED, assert_agree
from problems import (
    COHORTS,
    Left,
    classification,
    federation,
    hard,
    round_after_round,
    rows,
    term,
)
from torch import Tensor, nn
from torch.optim import SGD

from fl_lightning import Algorithm, ClientData, TermError, algorithms
from fl_lightning.algorithms import modifiers
from fl_lightning.core.vector import Layout
from fl_lightning.federation.sampling import BernoulliSampling
from fl_lightning.terms import SAM, ControlVariate

A, B = RANK * (6 + 8), RANK * (8 + 3)
"""Numbers of both A and of both B."""


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


@pytest.mark.parametrize("name", LORA)
def test_executors_agree_on_adapters(name: str, traces: list[Any]) -> None:
    algorithm = hard(LORA[name])
    expected = round_after_round(adapted_federation(algorithm), 2)
    for executor in (STACKED, partial(TRACED, width=2)):
        run = round_after_round(adapted_federation(algorithm, executor=executor), 2)
        assert_agree(run, expected)
        for mine, theirs in zip(frozen_weights(run), frozen_weights(expected), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "up", "down", "kept"),
    [
        ("fedit", A + B, A + B, 0),
        ("ffa_lora", B, B, 0),
        ("rolora", A, A + B, 0),  # A's round is the larger one
        ("fedsa_lora", A, A, B),
        ("fedex_lora", A + B, A + B + 6 * 8 + 8 * 3, 0),
        ("flora", A + B, A + B + 6 * 8 + 8 * 3, 0),
        ("hetlora", (A + B) / 2, A + B, 0),  # the rehearsed client has rank 2 of 4
    ],
)
def test_what_adapters_cost(name: str, up: float, down: int, kept: int) -> None:
    """A message that the server can make of the adapters that it receives costs nothing."""
    cost = adapted_federation(LORA[name], rounds=2).cost
    assert (cost.uplink, cost.downlink, cost.client_state) == (up, down, kept)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fedex_makes_the_global_model_the_mean_of_the_clients_models(dtype: torch.dtype) -> None:
    module, clients = adapted(dtype), classification(dtype=dtype)
    local = partial(SGD, lr=1.0, momentum=0.9)
    algorithm = algorithms.fedex_lora().replace(local=local).with_outer_terms(Left())
    run = adapted_federation(algorithm, module=module, clients=clients, decays=False)
    for cohort in COHORTS:
        before, bases = run.w.detach().clone(), frozen_weights(run)
        run.train_round()
        models = [whole_weights(run, rows(run, "u")[i], bases) for i in cohort]
        means = [torch.stack(of_layer).mean(0) for of_layer in zip(*models, strict=True)]
        naive = whole_weights(run, bases=bases)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        for exact, mean, inexact in zip(whole_weights(run), means, naive, strict=True):
            torch.testing.assert_close(exact, mean, rtol=0, atol=tolerance)
            assert (inexact - mean).abs().max() > 1e-3
        assert not run.w.equal(before)


def test_flora_puts_the_mean_of_the_products_into_the_base_and_begins_anew() -> None:
    run = adapted_federation(algorithms.flora().with_outer_terms(Left()), decays=False)
    begun = frozen_weights(run)
    run.train_round()
    weights = [run.clients.sizes[i] for i in COHORTS[0]]
    models = [whole_weights(run, rows(run, "u")[i], begun) for i in COHORTS[0]]
    for exact, *clients in zip(whole_weights(run), *models, strict=True):
        mean = sum(n * m for n, m in zip(weights, clients, strict=True)) / sum(weights)
        torch.testing.assert_close(exact, mean, rtol=0, atol=1e-12)
    named = run.layout.named(run.w.detach())
    for layer in run.layout.lora:
        torch.testing.assert_close(named[layer.B], torch.zeros_like(named[layer.B]))
        assert 0 < named[layer.A].abs().max() <= named[layer.A].shape[1] ** -0.5


def test_a_full_rank_adapter_moves_the_weight_along_its_gradient() -> None:
    """With A = I and B = 0 the first step moves W + s B A by -lr s^2 times W's gradient."""
    plain = nn.Sequential(nn.Linear(6, 3)).double()
    lora = LoRALinear(nn.Linear(6, 3).double(), rank=6).double()
    with torch.no_grad():
        lora.base_layer.load_state_dict(plain[0].state_dict())
        lora.lora_A["default"].weight.copy_(torch.eye(6))
        lora.lora_B["default"].weight.zero_()
    clients: ClientData = classification((12,), batch_size=12)
    begun = lora.whole().detach().clone()
    options = {"clients": clients, "rounds": 1, "sampler": lambda *_: [0], "decays": False}
    whole = federation(algorithms.ffa_lora(), module=nn.Sequential(lora), **options)
    expected = federation(Algorithm(), module=plain, **options)
    for run in (whole, expected):
        run.train_round()
        run.load_global()
    torch.testing.assert_close(lora.whole() - begun, 0.25 * (plain[0].weight - begun))


def test_rolora_rests_a_and_b_in_turn_under_momentum_and_decay() -> None:
    run = adapted_federation(hard(algorithms.rolora()))
    metrics = []
    for resting, count in (("lora_A", B), ("lora_B", A), ("lora_A", B)):
        before = run.w.detach().clone()
        metrics.append(run.train_round()["comm/uplink_mb"])
        rests = run.layout.mask(resting, run.w) > 0
        assert run.w[rests].equal(before[rests])
        assert not (run.w[~rests] == before[~rests]).any()
        assert metrics[-1] == pytest.approx(8e-6 * count * len(COHORTS[len(metrics) - 1]))


def test_fedsa_keeps_each_clients_b() -> None:
    run = adapted_federation(algorithms.fedsa_lora())
    begun = run.w.detach().clone()
    round_after_round(run, 3)
    mask = run.layout.mask("lora_B", run.w) > 0
    assert run.w[mask].equal(begun[mask])
    assert not (run.w[~mask] == begun[~mask]).any()
    assert len(rows(run, "w_i").unique(dim=0)) == 6


def test_hetlora_of_equal_ranks_is_fedit() -> None:
    of_ranks = partial(algorithms.hetlora, by_norm=False)
    fedit = algorithms.fedit().replace(weight=of_ranks().weight)
    equal, expected, unequal = (
        round_after_round(adapted_federation(hard(algorithm)), 3)
        for algorithm in (of_ranks((RANK, RANK + 4)), fedit, of_ranks((RANK, 1)))
    )
    torch.testing.assert_close(equal.w, expected.w, rtol=0, atol=1e-12)
    assert (unequal.w - expected.w).abs().max() > 1e-6


@pytest.mark.parametrize(("ranks", "lines"), [((2, 2), 0), ((2, 4), 1)])
def test_hetlora_says_of_which_rank_the_upload_is(ranks: tuple[int, ...], lines: int) -> None:
    said = algorithms.hetlora(ranks).summary_lines({}, {})
    assert ["of rank 2" in line for line in said] == [True] * lines


@pytest.mark.parametrize("by_norm", [False, True])
def test_hetlora_means_models_with_zeros_beyond_a_clients_rank(by_norm: bool) -> None:
    algorithm = algorithms.hetlora(ranks=(1, 3), by_norm=by_norm).with_outer_terms(Left())
    run = adapted_federation(hard(algorithm))
    run.train_round()
    models, weights = rows(run, "u")[COHORTS[0]], torch.ones(len(COHORTS[0])).double()
    for place, client in enumerate(COHORTS[0]):
        named, squares = run.layout.named(models[place]), 0.0
        for layer in run.layout.lora:
            rank = (1, 3)[client % 2]
            assert not named[layer.A][rank:].any()
            assert not named[layer.B][:, rank:].any()
            assert named[layer.A][:rank].all()
            squares += float(layer.product(named).square().sum())
        weights[place] = squares**0.5 if by_norm else 1.0
    torch.testing.assert_close(run.w.detach(), weights @ models / weights.sum())


def test_hetloras_clients_stay_in_their_rank_where_a_perturbation_does_not() -> None:
    algorithm = modifiers.toga().to(algorithms.hetlora(ranks=(1, 3))).with_outer_terms(Left())
    run = round_after_round(adapted_federation(hard(algorithm)), 3)
    for client, model in enumerate(rows(run, "u")):
        named, rank = run.layout.named(model), (1, 3)[client % 2]
        for layer in run.layout.lora:
            assert not named[layer.A][rank:].any()
            assert not named[layer.B][:, rank:].any()


@pytest.mark.parametrize("name", LORA)
def test_a_cohort_without_clients_leaves_the_whole_weights(name: str) -> None:
    nobody = BernoulliSampling(0.002, may_be_empty=True)
    run = adapted_federation(LORA[name], sampler=nobody)
    begun = whole_weights(run)
    round_after_round(run, 3)
    for weight, before in zip(whole_weights(run), begun, strict=True):
        torch.testing.assert_close(weight, before, rtol=0, atol=1e-12)


def test_methods_for_whole_models_train_adapters() -> None:
    run = adapted_federation(hard(Algorithm(SAM(0.1), ControlVariate())))
    begun = frozen_weights(run)
    run.train_round()
    assert len(run.w) == A + B
    assert all(map(torch.equal, frozen_weights(run), begun))


@pytest.mark.parametrize(
    ("hook", "name", "said"),
    [
        ("report", "inner.base_layer.weight", "only `update` may move"),
        ("update", "inner.base_layer.weight", "of shape"),
        ("update", "frozen", r"'frozen', and torch\.bfloat16 rounds"),
    ],
)
def test_only_update_moves_the_base_and_only_what_it_has(hook: str, name: str, said: str) -> None:
    def moves(self: Any, w: Tensor, *given: Any) -> Any:
        given[-1].move(name, torch.ones(2) if name == "frozen" else w)
        return w

    module, half = adapted(), torch.ones(2, dtype=torch.bfloat16)
    module.register_parameter("frozen", nn.Parameter(half, requires_grad=False))
    with pytest.raises(TermError, match=said):
        adapted_federation(Algorithm(term(**{hook: moves})), module=module)


def test_layers_are_found_by_peft_s_names() -> None:
    layout = Layout(adapted())
    first, second = layout.lora
    assert (first.A, first.base) == ("inner.lora_A.default.weight", "inner.base_layer.weight")
    assert (first.transposed, second.transposed, first.scaling) == (False, True, 0.5)
