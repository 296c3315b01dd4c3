"""Recipes on texts and tables: losses, metrics, and clients that the data bring."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from refusals import sentence
from torch.nn import functional as F

from fl_lightning import FederatedData, Partition, UserError
from fl_lightning.data.row_sources import synthetic, table, text_folder, topics
from fl_lightning.experiment import Experiment
from fl_lightning.models import char_lstm, char_transformer, mlp
from fl_lightning.runs.chosen import Chosen, build_data
from fl_lightning.runs.run import Run

USERS = 5


def frame() -> pd.DataFrame:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(100, 3, generator=g)
    made = pd.DataFrame(x.numpy(), columns=["a", "b", "c"])
    made["score"] = 2 * made.a - made.b + 3
    made["user"] = [f"user {k % USERS}" for k in range(len(made))]
    return made


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    frame().to_csv(tmp_path / "file.csv", index=False)
    return tmp_path / "file.csv"


def trained(folder: Path, *argv: str, source=table, model=mlp) -> Run:
    short = "--rounds", "4", "--participation", "1", "--run-dir", str(folder)
    partition = {"partition": "by_domain", "clients": None}
    Experiment([source], [model], argv=[*short, *argv], **partition).run()
    return Run.read(folder)


def columns(file: Path) -> tuple[str, ...]:
    return "--data", str(file), "--data.target", "score", "--data.clients", "user"


def test_a_table_is_fitted_and_scored_by_its_own_metrics(csv, tmp_path, capsys):
    run = trained(tmp_path / "run", *columns(csv), "--loss", "mse", "--metric", "rmse,r2,mae")
    _, test = run.data()
    errors = run.model()(test.x).flatten() - test.y
    last = {tag: values[4] for tag, values in run.scalars.items()}
    assert last["test/loss"] == pytest.approx(errors.square().mean().item(), rel=1e-5)
    deviation = frame().score.std(ddof=0)
    assert test.unit[1] == pytest.approx(deviation, rel=0.1)
    in_points = test.unit[1] * errors
    assert last["test/rmse"] == pytest.approx(in_points.square().mean().sqrt().item(), rel=1e-5)
    assert last["test/mae"] == pytest.approx(in_points.abs().mean().item(), rel=1e-5)
    explained = 1 - errors.square().mean() / test.y.var(correction=0)
    assert last["test/r2"] == pytest.approx(explained.item())
    assert "test/accuracy" not in last
    said = capsys.readouterr().out
    assert f"{USERS} clients, 100% a round" in said
    assert f"test rmse {last['test/rmse']:.4g}" in said


def test_whole_numbers_of_a_table_are_classes_if_these_are_named(csv, tmp_path):
    made = frame()
    made.assign(score=(made.score > 3).astype(int)).to_csv(csv, index=False)
    named = "--data.classes", "low,high"
    run = trained(tmp_path / "run", *columns(csv), *named, "--metric", "auroc")
    train, test = run.data()
    assert train.classes == test.classes == ("low", "high")
    right = (run.model()(test.x).argmax(1) == test.y).double().mean().item()
    assert run.scalars["test/accuracy"][4] == pytest.approx(right)


def test_the_table_of_a_run_is_that_of_the_folder_where_it_was_trained(csv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path / "run", *columns(Path("file.csv")), "--loss", "mse")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    frame().assign(score=0.5).to_csv("file.csv", index=False)
    assert run.data()[1].unit[1] == pytest.approx(frame().score.std(ddof=0), rel=0.1)


@pytest.mark.parametrize("name", ["{csv}", "table, file: {csv}"])
def test_a_configuration_names_a_table_and_a_flag_another_one(name, csv, tmp_path):
    options = "target: score, clients: user, test: 0.5"
    config = tmp_path / "mine.yaml"
    config.write_text(f"data: {{name: {name.format(csv=csv)}, {options}}}\n")
    for flags, file in ((), csv), (("--data", "OTHER.CSV"), "OTHER.CSV"):
        experiment = Experiment([table], [mlp], argv=["--config", str(config), *flags])
        shown = {k: experiment.config[f"data.{k}"] for k in ("file", "target", "clients", "test")}
        assert shown == {"file": str(file), "target": "score", "clients": "user", "test": 0.5}


def test_a_loss_of_ones_own_with_options(csv, tmp_path):
    own = tmp_path / "huber.py"
    own.write_text(
        "from torch.nn.functional import huber_loss\n\n\n"
        "def huber(out, y, delta: float = 1.0):\n"
        "    return huber_loss(out.flatten(), y, delta=delta)\n"
    )
    run = trained(tmp_path / "run", *columns(csv), "--loss", f"{own}:huber:delta=0.5")
    _, test = run.data()
    expected = F.huber_loss(run.model()(test.x).flatten(), test.y, delta=0.5).item()
    assert run.scalars["test/loss"][4] == pytest.approx(expected, rel=1e-5)
    assert run.config["loss"] == f"{own}:huber:delta=0.5"
    assert [file.name for file in (run.path / "own").rglob("*.py")] == ["huber.py"]


@pytest.mark.filterwarnings("ignore:.*splits the samples of 5 owners")
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--data.target scor --loss mse", "no column 'scor'"),
        ("", "of a table, name the classes"),
        ("--loss binary_cross_entropy", "give --data.standardize-target false"),
        ("--loss binary_cross_entropy --data.standardize-target false", "from 0 to 1"),
        ("--loss mze", "mse"),
        ("--loss mse --metric rms", "rmse"),
        ("--loss mse --partition iid", "--clients"),
        ("--loss mse --partition iid --clients 3 --finetune-epochs 1", "classes"),
        ("--loss mse --callback class_accuracy", "classes"),
    ],
)
def test_what_does_not_fit_a_table_is_refused(argv, said, csv, tmp_path, capsys):
    assert said in sentence(capsys, trained, tmp_path / "run", *columns(csv), *argv.split())


def test_a_text_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("Käse ".encode("latin-1") * 40)
    with pytest.raises(UserError, match=r"a\.txt is not in UTF-8"):
        text_folder(tmp_path)


def test_a_text_shorter_than_two_samples_is_left_out_with_a_warning(tmp_path):
    for name, text in {"a": "abcd" * 9, "b": "abcd"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    with pytest.warns(UserWarning, match="1 of 2 texts .* 'b'"):
        assert [*text_folder(tmp_path, length=4).names] == ["a"]


@pytest.mark.parametrize("model", [char_lstm, char_transformer])
def test_next_characters_of_texts_are_learned_with_parallel_clients_too(model, tmp_path):
    texts = {"a": "abcd " * 40, "b": "dcba " * 30, "c": "abab " * 20}
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    small = ["--model.hidden", "16"] if model is char_lstm else ["--model.width", "16"]
    options = ["--data-dir", str(folder), "--data.length", "8", "--metric", "accuracy,perplexity"]
    options += [*small, "--lr", "0.5", "--clip-norm", "1", "--local-epochs", "3"]
    given = {"source": text_folder, "model": model}
    run, stacked = (
        trained(tmp_path / executor, *options, "--executor", executor, **given)
        for executor in ("sequential", "stacked")
    )
    one, several = (each.scalars["test/perplexity"] for each in (run, stacked))
    assert one[4] < one[1] < len("abcd ") * 1.2
    assert several[4] == pytest.approx(one[4], rel=1e-3)
    train, test = run.data()
    out = run.model()(test.x)
    loss = F.cross_entropy(out.flatten(0, 1), test.y.flatten()).item()
    assert math.log(one[4]) == pytest.approx(loss, rel=1e-4)
    right = (out.argmax(-1) == test.y).double().mean().item()
    assert run.scalars["test/accuracy"][4] == pytest.approx(right)
    assert train.domain_names == ("a", "b", "c")


def test_synthetic_data_have_the_moments_of_their_source():
    data, iid = synthetic(clients=8, seed=1), synthetic(clients=8, seed=1, iid=True)
    means = torch.stack([data.train[0][rows].mean(0) for rows in data.partition])
    assert means.std(0).mean() == pytest.approx(2**0.5, rel=0.3)  # of B_k and of v_k around it
    x, y = iid.train
    expected = torch.arange(1, 61) ** -0.6
    assert torch.allclose(x.std(0), expected, rtol=0.1)
    assert x.mean(0).abs().max() < 0.1
    assert not torch.equal(data.train[0], synthetic(clients=8, seed=2).train[0])
    assert len(y) == sum(data.partition.sizes) + sum(data.parts["test"].sizes)
    assert min(data.partition.sizes) >= 45
    with pytest.raises(UserError, match="alpha of synthetic"):
        synthetic(alpha=-1)


def test_topics_are_clients_and_targets_the_characters_that_follow():
    data = topics(length=32)
    assert data.num_clients > 70
    x, y = data.train
    assert torch.equal(x[:, 1:], y[:, :-1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clients": [0, 1] * 4, "validation": 0.25, "test": 0.25}, "validation part"),
        # as many rows held as there are, but twice
        ({"clients": Partition.from_lists([range(4), range(4)])}, "hold the same rows"),
    ],
)
def test_rows_that_a_recipe_would_drop_or_mix_up_are_refused(options, said):
    x = torch.arange(8.0)[:, None]
    data = FederatedData((x, x[:, 0]), **{"test": (x[:1], x[:1, 0]), **options})
    with pytest.raises(UserError, match=said):
        build_data(Chosen("own", lambda: data, {}), Path())
