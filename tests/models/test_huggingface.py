"""Models of transformers with peft's adapters; skipped where the extra `lora` is missing."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from executors import STACKED, assert_agree
from problems import federation
from torch import Tensor, nn

from fl_lightning import ClientData, DeviceDataset, Partition, UserError, algorithms, models
from fl_lightning.core.vector import Layout
from fl_lightning.federation.sanity_checks import check_terms
from fl_lightning.training.task import labels_loss

needs_peft = pytest.mark.usefixtures("peft")
warns = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
SMALL = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 11}


@pytest.fixture
def peft() -> Any:
    pytest.importorskip("transformers")
    return pytest.importorskip("peft")


def texts(targets: Tensor | None = None) -> ClientData:
    g = torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (24, 9), generator=g)
    y = tokens[:, 1:].clone() if targets is None else targets
    data = DeviceDataset(tokens[:, :-1].clone(), y, ("a", "b") if targets is not None else ())
    owners = torch.arange(24) % 6
    return ClientData(data, Partition.from_owners(owners, 6), batch_size=2, epochs=1)


def small(type: str = "llama", **options: Any) -> Any:
    torch.manual_seed(0)
    return models.huggingface(type, lora_rank=4, **{**SMALL, **options}).double()


@needs_peft
@warns
@pytest.mark.parametrize("type", ["llama", "gpt2"])
@pytest.mark.parametrize("method", ["fedex_lora", "hetlora", "fedsa_lora"])
def test_executors_agree_on_peft(type: str, method: str) -> None:
    make = getattr(algorithms, method)
    runs = [
        federation(make(), module=small(type), clients=texts(), rounds=2, **options)
        for options in ({}, {"executor": STACKED})
    ]
    for run in runs:
        run.train_round()
        run.train_round()
    assert_agree(*runs, tolerance=1e-7)  # Llama's rotary tables are float32
    moved = [[*run.server.frozen.values()] for run in runs]
    torch.testing.assert_close(moved[0], moved[1], rtol=0, atol=1e-7)


@needs_peft
@warns
def test_the_product_of_an_adapter_is_what_peft_merges(peft: Any) -> None:
    config = peft.LoraConfig(r=2, target_modules=["0"])
    convolution = peft.get_peft_model(nn.Sequential(nn.Conv2d(4, 6, 3)), config).double()
    for model in small("llama"), small("gpt2"), convolution:
        layout = Layout(model)
        with torch.no_grad():
            for p in layout.parameters(model):
                p.normal_()
        named = layout.named(layout.read(model))
        bases = {layer.base: model.get_parameter(layer.base).clone() for layer in layout.lora}
        products = {layer.base: layer.product(named) for layer in layout.lora}
        model.merge_adapter()
        assert bases
        for base, before in bases.items():
            merged = model.get_parameter(base)
            torch.testing.assert_close(merged, before + products[base])


@warns
def test_adapters_of_other_layers_than_lora_methods_know_are_refused(peft: Any) -> None:
    layers = [nn.Linear(4, 4), nn.Conv2d(4, 6, 3, groups=2), nn.Embedding(5, 4)]
    for other, name in (("1", r"1\.lora_A"), ("2", r"2\.lora_embedding_A")):
        config = peft.LoraConfig(r=2, target_modules=["0", other])
        model = peft.get_peft_model(nn.Sequential(*deepcopy(layers)), config)
        with pytest.raises(UserError, match=rf"{name}\.default.* is of another kind"):
            check_terms(algorithms.hetlora(), Layout(model))
        check_terms(algorithms.fedit(), Layout(model))


@needs_peft
@warns
def test_a_classifiers_head_trains_besides_its_adapters() -> None:
    layout = Layout(small("bert", task="classes", classes=2))
    others = [name for name in layout.names if "lora_" not in name]
    assert others == [f"base_model.model.classifier.{part}" for part in ("weight", "bias")]


@needs_peft
@warns
def test_a_configuration_and_arguments_of_peft_are_taken() -> None:
    import transformers

    config = transformers.AutoConfig.for_model(
        "llama",
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=11,
    )
    model = models.huggingface(config, lora={"r": 2, "target_modules": ["q_proj"]})
    assert [tuple(shape) for shape in Layout(model).shapes] == [(2, 16), (16, 2)]


@needs_peft
@warns
def test_models_of_next_tokens_shift_their_labels() -> None:
    types = {"llama": True, "gpt2": True, "bert": False}
    for type, shifted in types.items():
        task = "tokens" if shifted else "classes"
        assert labels_loss(small(type, task=task, classes=2)).shifted == shifted


@needs_peft
@warns
def test_classes_are_those_that_were_asked_for(tmp_path: Path) -> None:
    """Of a configuration of two, and of a checkpoint of two, whose body stays."""
    saved = models.huggingface("bert", task="classes", classes=2, **SMALL)
    saved.save_pretrained(tmp_path)
    for given in (saved.config, str(tmp_path)):
        made = models.huggingface(given, task="classes", classes=5)
        assert made.classifier.weight.shape == (5, 16)
    assert saved.config.num_labels == 2
    assert made.bert.pooler.dense.weight.equal(saved.bert.pooler.dense.weight)


@needs_peft
@warns
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lora_rank": 4, "lora_targets": ("nope",)}, "targets among its layers"),
        ({"width": 15}, "15"),
        ({"lora_targets": ("q_proj",)}, "without lora_rank"),
        ({"lora_rank": 4, "lora": {"r": 2}}, "lora_rank"),
        ({"task": "classes"}, "classes is 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        models.huggingface("llama", **{**SMALL, **options})


def test_a_missing_extra_is_named(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'fl-lightning\[lora\]'"):
        models.huggingface("llama")
