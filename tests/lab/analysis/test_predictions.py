"""Features and predictions of a model, by class and by client."""

import sys
from math import isnan

import pytest
import torch
from analyzed import blobs, network
from torch import Tensor, nn

from fl_lightning.data import DeviceDataset, Partition
from fl_lightning.lab.analysis import embedding, figures, predict, silhouette


def test_predictions_are_those_of_evaluation_mode():
    module, data = network().float(), blobs()
    data = type(data)(data.x.float(), data.y, data.classes)
    seen = predict(module, data, batch_size=7)
    assert module.training
    out = module.eval()(data.x)
    torch.testing.assert_close(seen.logits, out)
    torch.testing.assert_close(module[-1](seen.features), out)
    assert seen.confusion().sum() == len(data)
    assert seen.confusion().diag().sum() == seen.right.sum()
    assert torch.equal(seen.confusion().sum(1), data.y.bincount())
    module[-1].bias.data[0] = torch.nan
    assert not predict(module, data).right.any()


def test_predictions_of_one_score_a_sample_from_several_inputs():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(a + b).flatten()

    module, x, y = Sum(), torch.randn(2, 8, 3), torch.arange(8) % 2
    seen = predict(module, DeviceDataset((x[0], x[1]), y, ("a", "b")), batch_size=5)
    assert torch.equal(seen.predicted, (module(*x) > 0).long())
    assert torch.equal(seen.confusion().sum(1), y.bincount())


def test_clients_are_scored_on_their_samples():
    module, data = network(), blobs()
    seen = predict(module, data)
    partition = Partition.from_lists([[0, 3, 3], [], [29]])
    expected = [seen.right[[0, 3, 3]].double().mean(), torch.nan, seen.right[29].double()]
    torch.testing.assert_close(
        seen.accuracy_by_client(partition), torch.tensor(expected, dtype=torch.float64),
        equal_nan=True,
    )  # fmt: skip


def test_figures_show_each_class_by_its_name(tmp_path):
    names = "$5% to $10%", "_b"
    plane, y = torch.eye(2), torch.arange(2)
    features = figures.embeddings({"run": (plane, y)}, names)
    assert [text.get_text() for text in features.legends[0].get_texts()] == [*names]
    matrices = figures.confusions({"a run, " * 9: torch.eye(2)}, names)
    assert "\n" in matrices.axes[0].get_title()
    for figure in (features, matrices):
        figure.save(tmp_path / "classes.png")


def test_an_embedding_keeps_separate_groups_apart():
    y = torch.arange(40) % 2
    features = 20 * torch.nn.functional.one_hot(y, 5) + torch.rand(40, 5)
    plane = embedding(features)
    assert plane.shape == (40, 2)
    assert silhouette(plane, y) > 0.5
    assert torch.equal(plane, embedding(features))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ValueError, match="umap-learn"):
        embedding(torch.rand(9, 2), "umap")
    assert isnan(silhouette(torch.rand(5, 2), torch.zeros(5)))
