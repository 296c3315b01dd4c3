"""Clients' own models: what fine-tuning is, what neighbors vote for, and how both are scored."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import exp, isnan
from pathlib import Path
from typing import Any
from weakref import ref

import jobs
import problems
import pytest
import torch
from problems import EXECUTORS, STACKED, classification, everything, federation, rows, vec
from torch import Tensor, nn

from fl_lightning import Algorithm, DivergenceError, Federation, algorithms
from fl_lightning.algorithms.registry import ALGORITHMS
from fl_lightning.callbacks import Personalization, PersonalModels
from fl_lightning.core.prediction import NearestNeighbors, PersonalModel
from fl_lightning.core.vector import Layout
from fl_lightning.data import Partition, matched_test_split
from fl_lightning.federation.fine_tuning import FineTuning, personal_model

LR = 0.05


def test_epochs_are_scored_once_each_and_in_order(tmp_path):
    _, test = jobs.digits()
    assert Personalization(PersonalModels(test), (5, 1, 5), tmp_path).epochs == [0, 1, 5]


def trained(algorithm: Algorithm, **options: Any) -> Federation:
    return problems.trained(problems.hard(algorithm), **options)


plain = partial(problems.classifier, norm=False, dropout=0.0)
"""A model that a plain loop trains as an executor does."""


def tuned(
    run: Federation, clients: Sequence[int] = range(6), epochs: float = 1
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    return list(FineTuning(run, LR).models(clients, epochs))


@pytest.mark.parametrize("epochs", [1, 3])
def test_fine_tuning_is_plain_local_sgd_from_the_global_model(epochs):
    """Without the algorithm's terms and clipping, with the optimizer's momentum and decay."""
    run = trained(algorithms.scaffold(), module=plain())
    for client, (w, _) in zip([1, 4], tuned(run, [1, 4], epochs), strict=True):
        Layout(module := plain()).load(module, run.w.detach())
        sgd = torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9, weight_decay=0.01)
        for x, y in run.clients.lasting(epochs).visit(client, run.round):
            sgd.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            sgd.step()
        torch.testing.assert_close(w, Layout(module).read(module), rtol=0, atol=1e-12)
        assert (w - run.w).norm() > 0.01


def test_rows_are_read_only_where_a_term_has_a_use_for_them(monkeypatch):
    run, own = trained(algorithms.feddyn()), trained(algorithms.local_only())
    assert torch.stack([w for w, _ in tuned(own, epochs=0)]).equal(rows(own, "w_i"))
    monkeypatch.setattr(run.store, "read", None)
    assert torch.equal(personal_model(run, 1)[0], run.w)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbabu", "local_only", "scaffold"])
def test_fine_tuning_leaves_the_federation_as_it_was(algorithm):
    run = trained(ALGORITHMS[algorithm]())
    before = {name: kept.clone() for name, kept in everything(run).items()}
    tuned(run)
    after = everything(run)
    assert all(after[name].equal(kept) for name, kept in before.items())
    run.train_round()  # the head may be frozen again
    assert not run.w.detach().equal(before["model"]) or algorithm == "local_only"


def test_fedbabu_trains_the_body_and_fine_tunes_the_head_too():
    drawn = dict(plain().named_parameters())
    run, layout = trained(algorithms.fedbabu(), module=plain()), Layout(plain())
    assert all(not name.startswith("outer") for name in run.layout.names)
    whole, now = (layout.named(tuned(run, [0], epochs)[0][0]) for epochs in (0, 1))
    for name in ("outer.weight", "outer.bias"):
        assert whole[name].equal(drawn[name])
        assert not now[name].equal(drawn[name])
    assert not whole["inner.weight"].equal(drawn["inner.weight"])


def test_fine_tuning_is_at_the_rate_of_the_next_round_or_at_its_own(tmp_path):
    run = trained(algorithms.fedavg(), module=plain(dropout=0.25))
    assert FineTuning(run).lr == pytest.approx(0.1 * 0.9**3)
    still, moved = (scored(run, tmp_path / "a.csv", (1,), lr) for lr in (1e-300, LR))
    assert still["personal/accuracy_1"] == still["personal/accuracy_0"]
    assert moved["personal/accuracy_1"] != still["personal/accuracy_0"]


def test_dropout_in_fine_tuning_is_each_clients_own():
    """Two clients with the same samples in the same order."""
    clients = classification(shuffle=False)
    clients.partition = Partition.from_lists([range(10), range(10)])
    for dropout in (0.0, 0.5):
        run = federation(Algorithm(), module=plain(dropout=dropout), clients=clients)
        (one, _), (other, _) = tuned(run, [0, 1])
        assert one.equal(other) == (dropout == 0)


def test_fine_tuning_with_batchnorm_leaves_out_a_batch_of_one_sample():
    """Rounds of one step have the first batch alone; fine-tuning has the last one too."""
    clients = classification([11] * 6, steps=1)
    run = trained(algorithms.fedavg(), clients=clients)
    assert [clients.lasting(1.0).num_steps(k) for k in range(6)] == [2] * 6
    assert all(w.isfinite().all() for w, _ in tuned(run))


def test_a_client_reads_its_own_model_with_its_own_samples():
    """Features are the head's inputs; the running statistics are the client's."""
    run = trained(algorithms.fedavg(), executor=STACKED)
    tuning, data = FineTuning(run, LR), run.clients.dataset
    for client, (w, buffers) in enumerate(tuning.models([0, 1, 2], 1)):
        own, index = tuning.personal_model(client, w, buffers), run.clients.partition[client]
        assert own.x.equal(data.x[index])
        assert own.y.equal(data.y[index])
        module = problems.classifier().eval()
        module.load_state_dict({**Layout(module).named(w), **buffers})
        features, logits = own.look(data.x)
        torch.testing.assert_close(features.double(), module[:3](data.x), rtol=0, atol=1e-6)
        torch.testing.assert_close(logits.double(), module(data.x), rtol=0, atol=1e-6)


@EXECUTORS
@pytest.mark.parametrize("epochs", [0, 1])
def test_no_more_models_are_held_than_train_together(executor, epochs, monkeypatch):
    tuning = FineTuning(federation(algorithms.fedavg(), executor=executor), LR)
    initial, begun, held = tuning._initial, list[ref[Tensor]](), list[int]()

    def counted(client: int) -> Any:
        w, buffers = initial(client)
        begun.append(ref(w))
        held.append(sum(model() is not None for model in begun))
        return w, buffers

    monkeypatch.setattr(tuning, "_initial", counted)
    for model in tuning.models(range(6), epochs):
        del model
    assert (len(held), max(held)) == (6, tuning.executor.width if epochs else 1)


def scored(
    run: Federation, path: Path, epochs: tuple[int, ...] = (1, 2), lr: float = LR, **options: Any
) -> dict[str, float]:
    models = PersonalModels(run.clients.dataset, lr, **options)
    return Personalization(models, epochs, path).score(run)


def test_a_client_is_scored_on_samples_in_its_own_proportions(tmp_path):
    """Here the test set is the training set, and the scores are taken again by hand."""
    run = trained(algorithms.fedavg(), seed=3)
    metrics = scored(run, tmp_path / "personal.csv", samples=20)
    tests = matched_test_split(run.clients.dataset.y, run.clients.class_counts, 20, run.seed)
    module, data = run.load_global(), run.clients.dataset
    right = (module(data.x).argmax(1) == data.y).double()
    expected = torch.stack([right[tests[client]].mean() for client in range(6)])
    assert metrics["personal/accuracy_0"] == pytest.approx(expected.mean().item(), abs=1e-12)
    assert metrics["personal/std_0"] == pytest.approx(expected.std(correction=0).item(), abs=1e-12)
    table = read(tmp_path / "personal.csv")
    assert [float(row["accuracy_0"]) for row in table] == pytest.approx(expected.tolist())
    assert [int(row["test_samples"]) for row in table] == tests.sizes.tolist()
    names = {f"personal/{what}_{e}" for what in ("accuracy", "std") for e in (0, 1, 2)}
    assert set(metrics) == names
    as_they_are = {"personal/accuracy_0", "personal/std_0"}
    assert {*scored(run, tmp_path / "own.csv", epochs=(0,))} == as_they_are


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_neighbors_change_what_a_client_predicts(tmp_path):
    """The test set is what clients hold: a client's nearest neighbor is the sample itself."""
    votes = algorithms.knn_per(neighbors=1, mix=1.0), algorithms.knn_per(mix=0.0)
    known, ignored, fedavg = (
        scored(trained(algorithm, rounds=1), tmp_path / "personal.csv")
        for algorithm in (*votes, algorithms.fedavg())
    )
    assert ignored == fedavg
    assert known != fedavg


def test_scores_that_are_not_a_number_are_wrong(tmp_path):
    lost = Algorithm(predict=lambda own: lambda x: own.look(x)[1] * torch.nan)
    assert scored(trained(lost), tmp_path / "personal.csv")["personal/accuracy_0"] == 0


def test_fine_tuning_that_diverges_is_an_error_or_skipped(tmp_path):
    """Of client 4 alone, in the samples that it has now."""
    run = trained(algorithms.fedavg())
    run.clients.dataset.x[run.clients.partition[4]] = torch.nan
    models = PersonalModels(run.clients.dataset, LR)
    at_end = Personalization(models, (1,), tmp_path / "personal.csv")
    message = r"fine-tuning of clients? 4 .* learning rate, 0.05.*the rounds are done and saved"
    with pytest.raises(DivergenceError, match=message):
        at_end.on_fit_end(run)
    run.on_divergence = "skip-client"
    metrics = scored(run, tmp_path / "personal.csv")
    column = [float(row["accuracy_1"]) for row in read(tmp_path / "personal.csv")]
    others = [value for value in column if value == value]
    assert len(others) == 5
    assert metrics["personal/accuracy_1"] == pytest.approx(sum(others) / 5)
    run.clients.dataset.x.fill_(torch.nan)  # and then of all clients
    metrics = scored(run, tmp_path / "personal.csv")
    assert isnan(metrics["personal/accuracy_1"])
    assert isnan(metrics["personal/std_1"])


def own(x: Tensor, y: list[int], logits: Tensor, features: int = 1) -> PersonalModel:
    """A client whose features are its inputs, repeated, and whose logits are constant."""

    def look(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, None].repeat(1, features), logits.expand(len(x), -1)

    return PersonalModel(look, x, torch.tensor(y), len(logits))


LOGITS = vec(0.0, 1.0)
CLIENT = own(vec(0, 1, 3), [0, 1, 1], LOGITS)


def vote(knn: NearestNeighbors, x: float, client: PersonalModel = CLIENT) -> list[float]:
    return knn(client)(vec(x))[0].tolist()


NEAR, FAR = exp(-1), exp(-9)
"""Of the point 0, the neighbors 0, 1 and 3 are at squared distances 0, 1 and 9."""


@pytest.mark.parametrize(
    ("knn", "votes"),
    [
        (NearestNeighbors(2, mix=1.0), [1, NEAR]),
        (NearestNeighbors(3, mix=1.0), [1, NEAR + FAR]),
        (NearestNeighbors(7, mix=1.0), [1, NEAR + FAR]),
        (NearestNeighbors(2, mix=1.0, scale=4.0), [1, exp(-1 / 4)]),
    ],
    ids=["two", "three", "more than there are", "another scale"],
)
def test_neighbors_vote_by_nearness(knn, votes):
    assert vote(knn, 0.0) == pytest.approx([v / sum(votes) for v in votes])
    # Two equal features double the squared distance, which is divided by their number.
    wide = own(CLIENT.x, CLIENT.y.tolist(), LOGITS, features=2)
    assert vote(knn, 0.0, wide) == pytest.approx(vote(knn, 0.0))


def test_far_from_every_sample_the_nearest_decides():
    assert vote(NearestNeighbors(3, mix=1.0), 1e4) == [0, 1]
    assert vote(NearestNeighbors(3, mix=1.0), -1e4) == [1, 0]


@pytest.mark.parametrize(
    ("logits", "said"), [(False, [1 / (1 + exp(1)), exp(1) / (1 + exp(1))]), (True, [0, 1])]
)
def test_the_vote_is_mixed_with_the_models_probabilities_or_with_its_logits(logits, said):
    """Also where one output is of two classes, or outputs are more than the classes."""
    votes = [1 / (1 + NEAR), NEAR / (1 + NEAR)]
    mixed = [0.25 * v + 0.75 * p for v, p in zip(votes, said, strict=True)]
    knn = NearestNeighbors(2, mix=0.25, logits=logits)
    assert vote(knn, 0.0) == pytest.approx(mixed)
    one = replace(own(CLIENT.x, [0, 1, 1], vec(1.0)), classes=2)
    assert vote(knn, 0.0, one) == pytest.approx(mixed)
    three = replace(own(CLIENT.x, [0, 1, 1], vec(0.0, 1.0, -1e9)), classes=2)
    assert vote(knn, 0.0, three)[:2] == pytest.approx(mixed)


def test_a_store_of_limited_capacity_holds_that_many_samples_drawn_at_random_once():
    """Sample i is the only one of class i, so the votes of all neighbors tell who is stored."""
    many = own(vec(*range(300)), list(range(300)), vec(*[0.0] * 300))

    def stored(capacity: int | None) -> list[int]:
        knn = NearestNeighbors(300, 1.0, 1e9, capacity)
        return [i for i, score in enumerate(vote(knn, 0.0, many)) if score]

    assert len(stored(250)) == 250
    assert stored(250) == stored(250) != list(range(250))
    assert stored(None) == stored(1000) == list(range(300))
