from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torch.nn.functional as F
import torchvision
from pretrained_networks import assert_same_but_the_head, saved, tiny_vit_b32
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fl_lightning.core.vector import Layout
from fl_lightning.models import (
    char_lstm,
    char_transformer,
    fedavg_cnn,
    lenet,
    mlp,
    resnet18,
    resnet18_bn,
    resnet18_gn,
    sl_vit,
    vgg11,
    vit_b32,
    vit_tiny,
)
from fl_lightning.models.trimmed_conv import with_trimmed_convs


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


NETWORKS = [
    pytest.param(lambda: mlp(784, 7), (1, 28, 28), id="mlp"),
    pytest.param(lambda: mlp(20, 7, hidden=()), (20,), id="linear"),
    pytest.param(lambda: lenet(7, channels=1, size=28), (1, 28, 28), id="lenet-28"),
    pytest.param(lambda: lenet(7, size=16), (3, 16, 16), id="lenet-16"),
    pytest.param(lambda: fedavg_cnn(7, channels=1, size=7), (1, 7, 7), id="fedavg_cnn-7"),
    pytest.param(lambda: fedavg_cnn(7, size=4), (3, 4, 4), id="fedavg_cnn-4"),
    pytest.param(lambda: vgg11(7, channels=1, size=8), (1, 8, 8), id="vgg11"),
    pytest.param(lambda: resnet18_gn(7, channels=1), (1, 12, 12), id="resnet18_gn"),
    pytest.param(lambda: resnet18_bn(7, channels=1), (1, 12, 12), id="resnet18_bn"),
    pytest.param(lambda: resnet18_bn(7, statistics=True), (3, 12, 12), id="resnet18_bn-statistics"),
    pytest.param(lambda: resnet18(7, channels=1, weights=None), (1, 32, 32), id="resnet18"),
    pytest.param(lambda: sl_vit(7, channels=1, size=8), (1, 8, 8), id="sl_vit"),
    pytest.param(lambda: vit_tiny(7, size=8), (3, 8, 8), id="vit_tiny"),
    pytest.param(lambda: tiny_vit_b32(7, size=64, weights=None), (3, 64, 64), id="vit_b32"),
]


@pytest.mark.parametrize(
    ("model", "parameters", "head"),
    [
        (lambda: mlp(784, 10), 199_210, "classifier"),
        (lambda: mlp(784, 10, hidden=(100, 100)), 89_610, "classifier"),
        (lambda: lenet(), 797_962, "classifier"),
        (lambda: lenet(100), 815_332, "classifier"),
        (lambda: fedavg_cnn(), 2_156_490, "classifier"),
        (lambda: fedavg_cnn(size=28), 1_664_970, "classifier"),
        (lambda: fedavg_cnn(9, size=28), 1_664_457, "classifier"),
        (lambda: vgg11(), 9_750_922, "classifier"),
        (lambda: vgg11(size=28), 9_750_922, "classifier"),
        (lambda: resnet18_gn(), 11_181_642, "fc"),
        (lambda: resnet18_gn(100), 11_227_812, "fc"),
        (lambda: resnet18_bn(), 11_173_962, "fc"),
        (lambda: resnet18_bn(100, statistics=True), 11_220_132, "fc"),
        (lambda: resnet18(65, weights=None), 11_209_857, "fc"),
        (lambda: resnet18(345, weights=None), 11_353_497, "fc"),
        (lambda: sl_vit(), 6_176_275, "mlp_head"),
        (lambda: sl_vit(9, size=28), 6_132_432, "mlp_head"),
        (lambda: vit_tiny(), 5_380_132, "heads"),
        (lambda: vit_tiny(depth=6), 2_710_948, "heads"),
        (lambda: vit_b32(65, weights=None), 87_505_217, "heads"),
        (lambda: vit_b32(345, weights=None), 87_720_537, "heads"),
    ],
)
def test_parameter_counts_and_the_last_childs_name_are_the_papers(
    model, parameters: int, head: str
):
    with torch.device("meta"):
        made = model()
    assert (num_parameters(made), [*made.named_children()][-1][0]) == (parameters, head)


def test_a_resnet_has_five_levels_of_features():
    assert Layout(resnet18_gn()).body_blocks() == ["bn1", "layer1", "layer2", "layer3", "layer4"]


def test_a_fresh_resnet_has_the_published_norm():
    norm = torch.cat([p.detach().flatten() for p in resnet18_gn().parameters()]).norm().item()
    assert norm == pytest.approx(111.7, abs=1)


@pytest.mark.parametrize(("model", "shape"), NETWORKS)
def test_the_output_is_that_of_the_last_child_with_parameters(model, shape: tuple[int, ...]):
    module = model()
    head = [child for child in module.children() if num_parameters(child)][-1]
    seen = []
    head.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    out = module(torch.randn(2, *shape))
    assert out.shape == (2, 7)
    assert out is seen[0]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: lenet(size=15), "size is 15, .*LeNet .*16x16"),
        (lambda: vgg11(size=33), "size is 33, .*VGG-11 .*32x32"),
        (lambda: sl_vit(size=30), "size is 30, .*multiple of 4"),
        (lambda: vit_b32(size=100), "size is 100, .*patches of 32x32"),
        (lambda: vit_tiny(size=30), "size is 30, .*4x4"),
        (lambda: vit_tiny(channels=1), "channels is 1, .*RGB"),
        (lambda: vit_tiny(depth=-1), "depth of vit_tiny .*, not -1"),
        (lambda: char_lstm(9, hidden=0), "hidden of char_lstm .*, not 0"),
        (lambda: char_transformer(9, 8, layers=0), "layers of char_transformer .*, not 0"),
        (lambda: vit_b32(channels=1), "channels is 1, .*RGB"),
    ],
)
def test_images_and_sizes_that_do_not_fit_are_refused_in_one_line(model, words: str):
    with pytest.raises(ValueError, match=f"^{words}[^\n]*$"):
        model()


@pytest.mark.parametrize(("model", "shape"), NETWORKS)
def test_gradients_under_vmap_equal_those_one_by_one(model, shape: tuple[int, ...]):
    module = model().double()
    x, y = torch.randn(2, 2, *shape).double(), torch.randint(0, 7, (2, 2))
    parameters = {
        name: torch.stack([p.detach(), 0.9 * p.detach()]) for name, p in module.named_parameters()
    }
    buffers = {name: b.clone() for name, b in module.named_buffers()}

    def loss(parameters, x, y):  # with buffers of each client
        moved = {name: b + torch.zeros_like(y[0], dtype=b.dtype) for name, b in buffers.items()}
        return F.cross_entropy(functional_call(module, (parameters, moved), (x,)), y)

    together = vmap(grad(loss))(parameters, x, y)
    second = {name: p[1] for name, p in parameters.items()}
    for name, g in grad(loss)(second, x[1], y[1]).items():
        torch.testing.assert_close(together[name][1], g, rtol=1e-6, atol=1e-9)
        assert g.any()


def test_vgg11_scales_small_images_up_to_the_nearest_pixel():
    small, large = vgg11(size=28), vgg11(size=32)
    large.load_state_dict(small.state_dict())
    x = torch.randn(2, 3, 28, 28)
    torch.testing.assert_close(small(x), large(F.interpolate(x, 32, mode="nearest")))


def test_vgg11_starts_as_fedsol_does():
    convolutions = [module for module in vgg11() if isinstance(module, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [64, 128, 256, 256, 512, 512, 512, 512]
    for c in convolutions:
        assert c.weight.std().item() == pytest.approx((2 / (9 * c.out_channels)) ** 0.5, rel=0.05)
        assert not c.bias.any()


def test_batch_normalized_resnets_keep_no_statistics_and_use_the_batchs_in_tests():
    model = resnet18_bn()
    assert not list(model.buffers())
    x = torch.randn(4, 3, 12, 12)
    trained = model.train()(x)
    torch.testing.assert_close(model.eval()(x), trained)
    assert not torch.allclose(model(x[:2]), trained[:2], atol=1e-3)
    std = model.layer4[0].conv2.weight.std().item()
    assert std == pytest.approx((1 / (3 * 512 * 9)) ** 0.5, rel=0.02)


def test_resnet18_reads_torchvisions_weights_and_keeps_a_fresh_head(tmp_path: Path):
    path = saved(torchvision.models.resnet18(num_classes=5), tmp_path)
    model = resnet18(7, weights=path)
    assert_same_but_the_head(model, path, head="fc")
    assert model.fc.weight.shape == (7, 512)
    assert resnet18(5, weights=path).fc.weight.min() < 0


def test_imagenet_weights_are_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, asked = saved(torchvision.models.resnet18(), tmp_path), []

    def download(url: str, **options):
        asked.append((url, options))
        return torch.load(path)

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    assert_same_but_the_head(resnet18(1000), path, head="fc")
    ((url, options),) = asked
    assert url == torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url
    assert options["weights_only"]


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    def download(url: str, **options):
        raise URLError("no network")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    with pytest.raises(ValueError, match=r"^the weights imagenet .*no network.*resnet18.*\.pth$"):
        resnet18()


RESNET = resnet18(weights=None).state_dict()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"pixels", "Weights only load failed"),
        (torch.zeros(3), "'Tensor' object"),
        ({"state_dict": {"conv1.weight": torch.zeros(3)}}, "Missing"),
        ({"conv1.weight": torch.zeros(64, 3, 7, 7)}, 'Missing .*"bn1.weight"'),
        ({**RESNET, "conv9": torch.zeros(1)}, 'Unexpected .*"conv9"'),
        ({**RESNET, "conv1.weight": torch.zeros(1)}, "size mismatch for conv1.weight"),
    ],
)
def test_files_that_do_not_fit_are_refused_in_one_line(content: object, words: str, tmp_path: Path):
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    said = f"^the weights [^\n]*weights.pt do not fit ResNet [^\n]*{words}[^\n]*$"
    with pytest.raises(ValueError, match=said):
        resnet18(weights=str(path))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (7, 2, 3), (5, 1, 4)]
)
def test_leaving_out_what_only_meets_padding_changes_neither_outputs_nor_gradients(
    size: int, kernel: int, stride: int, padding: int
) -> None:
    plain = nn.Conv2d(3, 4, kernel, stride, padding).double()
    shorter = with_trimmed_convs(deepcopy(plain))
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    for conv in (plain, shorter):
        conv(x).square().sum().backward()
    torch.testing.assert_close(shorter(x), plain(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(shorter.weight.grad, plain.weight.grad, rtol=0, atol=1e-10)


def test_resnets_last_stage_computes_with_the_centres_of_its_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used, plain = set(), F.conv2d

    def noting(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        used.add(tuple(weight.shape))
        return plain(x, weight, *rest)

    monkeypatch.setattr(F, "conv2d", noting)
    resnet18_gn()(torch.zeros(2, 3, 32, 32))
    assert used >= {(512, 512, 1, 1), (512, 256, 2, 2)}


def test_nor_does_it_where_clients_are_stacked() -> None:
    plain = nn.Conv2d(3, 4, 3, padding=1).double()
    weights = {name: torch.randn(5, *p.shape).double() for name, p in plain.named_parameters()}
    x = torch.randn(5, 2, 3, 1, 2).double()

    def gradients(conv: nn.Module) -> Any:
        def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(conv, weights, x).square().sum()

        return vmap(grad(loss))(weights, x)

    shorter = gradients(with_trimmed_convs(deepcopy(plain)))
    torch.testing.assert_close(shorter, gradients(plain), rtol=0, atol=1e-10)
