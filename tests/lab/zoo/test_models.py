"""The networks compute what their architecture says."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.demo.model import Architecture, PatchTransformer


def images(batch: int = 3, channels: int = 1, side: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, channels, side, side, generator=generator, dtype=torch.float64)


def test_one_block_is_the_papers_formula() -> None:
    """softmax written out, for the paper's block: attention and MLP with residuals, mean pooling, linear classifier."""
    model = PatchTransformer(patch=2, dim=8, heads=2, mlp=12, seed=5).double().eval()
    x = images()
    rows = []
    for r in range(0, 8, 2):
        rows += [x[:, 0, r : r + 2, s : s + 2].reshape(3, 4) for s in range(0, 8, 2)]
    H = model.embed(torch.stack(rows, 1)) + model.position
    torch.testing.assert_close(model.tokens(x), H)
    attention = model.blocks[0].attention[1]
    Q, K, V = attention.q(H), attention.k(H), attention.v(H)
    heads = []
    for h in (slice(0, 4), slice(4, 8)):
        a = torch.softmax(Q[..., h] @ K[..., h].transpose(1, 2) / math.sqrt(4), -1)
        heads.append(a @ V[..., h])
    H = H + attention.out(torch.cat(heads, -1))
    mlp = model.blocks[0].mlp
    H = H + mlp[3](mlp[1](H).clamp(min=0))
    torch.testing.assert_close(model(x), model.classifier(H.mean(1)))


def test_layer_norm_gelu_and_the_class_token() -> None:
    model = PatchTransformer(dim=8, blocks=2, norm="layer", activation="gelu", pool="class", seed=5).double().eval()
    assert model.architecture.tokens == 5
    x = images()
    H = model.tokens(x)
    torch.testing.assert_close(H[:, 0], (model.first[0, 0] + model.position[0]).expand(3, -1))
    for block in model.blocks:
        H = H + block.attention[1](functional.layer_norm(H, (8,)))
        mlp = block.mlp
        H = H + mlp[3](functional.gelu(mlp[1](functional.layer_norm(H, (8,)))))
    torch.testing.assert_close(model(x), model.classifier(functional.layer_norm(H[:, 0], (8,))))


def test_attention_alone() -> None:
    model = PatchTransformer(mlp=0, residual=False).double().eval()
    x = images()
    torch.testing.assert_close(model(x), model.classifier(model.blocks[0].attention(model.tokens(x)).mean(1)))
    assert not any("mlp" in name for name, _ in model.named_parameters())


def test_colours_and_other_sizes() -> None:
    model = PatchTransformer(image=12, patch=3, channels=3, dim=6, heads=3, classes=7).double().eval()
    assert model(images(2, 3, 12)).shape == (2, 7)
    assert model.architecture.tokens == 16


def test_the_seed_decides_the_weights_and_torchs_own_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (PatchTransformer(seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embed.weight"], other["embed.weight"])
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_architecture_can_be_rebuilt() -> None:
    model = PatchTransformer(patch=2, dim=8, norm="layer", seed=3)
    again = PatchTransformer.of(model.architecture, seed=3)
    assert again.architecture == model.architecture == Architecture(patch=2, dim=8, norm="layer")
    assert torch.equal(again.position, model.position)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patch": 3}, "image = 8 is not a multiple of patch = 3"),
        ({"dim": 9, "heads": 2}, "dim = 9 is not a multiple of heads = 2"),
        ({"norm": "batch"}, "norm is 'batch'; choose one of None, 'layer'"),
        ({"activation": "tanh"}, "activation is 'tanh'"),
        ({"pool": "max"}, "pool is 'max'"),
        ({"blocks": 0}, "blocks is 0; it must be at least 1"),
        ({"classes": 1}, "classes is 1"),
        ({"mlp": -1}, "mlp is -1"),
    ],
)
def test_refused(arguments, message) -> None:
    with pytest.raises(InvalidValueError, match=message):
        PatchTransformer(**arguments)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mlp": 0},
        {"norm": "layer", "blocks": 3},
        {"norm": "layer", "mlp": 0, "pool": "class", "channels": 3},
        {"pool": "class", "patch": 2, "classes": 7, "activation": "gelu"},
    ],
)
def test_weights_are_counted_without_making_them(settings) -> None:
    model = PatchTransformer(**settings)
    assert model.architecture.numbers == sum(value.numel() for value in model.state_dict().values())
