from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pretrained_networks import assert_same_but_the_head, saved, tiny_vit, tiny_vit_b32
from torch import nn

from fl_lightning.models import sl_vit


def test_sl_vit_patches_see_the_image_and_its_four_shifts():
    tokens = sl_vit(channels=1, size=8).tokens
    tokens.norm = tokens.linear = nn.Identity()
    x = torch.randn(2, 1, 8, 8)
    padded = F.pad(x, (1, 1, 1, 1))
    corners = [(1, 1), (1, 0), (1, 2), (0, 1), (2, 1)]
    views = [padded[..., top : top + 8, left : left + 8] for top, left in corners]
    expected = torch.stack([F.unfold(view, 2, stride=2).transpose(1, 2) for view in views], dim=-1)
    torch.testing.assert_close(tokens(x), expected.flatten(2))


def test_sl_vit_tokens_attend_to_all_others():
    attention = sl_vit().blocks[0].attention
    assert attention.temperature.exp().item() == pytest.approx(64**-0.5)
    x, values = torch.randn(2, 5, 192), attention.qkv.weight[-12 * 64 :]
    with torch.no_grad():
        attention.qkv.weight[: -12 * 64] = 0  # all tokens look the same
    others = (x.sum(1, keepdim=True) - x) / 4
    torch.testing.assert_close(attention(x), attention.out(others @ values.T))


def test_vit_b32_computes_what_torchvisions_does():
    ours, theirs = tiny_vit_b32(7, size=64, weights=None), tiny_vit(64, num_classes=7)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 3, 64, 64)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    assert ours.heads.head.weight.any()


def test_vit_b32_reads_torchvisions_weights_also_with_the_names_of_its_download(tmp_path: Path):
    path = saved(tiny_vit(64), tmp_path)
    older = {
        n.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): t
        for n, t in torch.load(path).items()
    }
    torch.save(older, tmp_path / "older.pt")
    for weights in (path, str(tmp_path / "older.pt")):
        model = tiny_vit_b32(7, size=64, weights=weights)
        assert_same_but_the_head(model, path, head="heads")
        assert model.heads.head.weight.shape == (7, 8)


def test_pretrained_positions_are_interpolated_to_the_images_size(tmp_path: Path):
    network = tiny_vit(64)
    path = saved(network, tmp_path)
    given = torch.load(path)["encoder.pos_embedding"]
    positions = tiny_vit_b32(size=96, weights=path).encoder.pos_embedding
    square = given[:, 1:].transpose(1, 2).unflatten(2, (2, 2))
    grid = F.interpolate(square, size=3, mode="bicubic", align_corners=True)
    torch.testing.assert_close(positions[:, 1:], grid.flatten(2).transpose(1, 2))
    assert torch.equal(positions[:, 0], given[:, 0])


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("encoder.pos_embedding", None, 'Missing .*"encoder.pos_embedding"'),
        ("encoder.pos_embedding", (1, 4, 8), "seq_length is not"),
        ("conv_proj.weight", (8, 3, 16, 16), "size mismatch for conv_proj"),
    ],
)
def test_weights_of_another_vit_are_refused_in_one_line(
    name: str, shape: tuple[int, ...] | None, words: str, tmp_path: Path
):
    path = saved(tiny_vit(64), tmp_path)
    state = torch.load(path)
    del state[name]
    torch.save(state | ({name: torch.zeros(shape)} if shape else {}), path)
    with pytest.raises(ValueError, match=f"^[^\n]* VisionTransformer .{words}[^\n]*$"):
        tiny_vit_b32(size=96, weights=path)
