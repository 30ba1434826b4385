"""The networks of VNN-COMP's `vit` as PyTorch modules, from the weights of the ONNX files: what peers are given.

`FileViT` is the file op by op: a convolution that cuts patches, BatchNorms, scores scaled after the product. `ViT` is
the same function made easy for tools that do not simplify: a linear map of patches, the BatchNorms folded into the
linear maps after them, and 1/√width into the queries.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

EPSILON = 9.999999747378752e-06
"""of the BatchNorms, as the files have it"""


class Block(nn.Module):
    """x + out(attention(x)), then x + f2(relu(f1(x))); 1/√width is folded into the queries."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.f1, self.f2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        split = (batch, tokens, self.heads, self.width)
        q, k, v = (f(x).reshape(split).transpose(1, 2) for f in (self.q, self.k, self.v))
        rows = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        x = x + self.out(rows.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.f2(torch.relu(self.f1(x)))


class ViT(nn.Module):
    """The network of an ONNX file of this benchmark on patches, BatchNorms folded into the linear maps after them.

    The convolution that cuts the patches is a linear map of them: the peer spends three quarters of its time in that
    convolution's transpose otherwise (float32, torch 2.13).
    """

    def __init__(self, path: Path, heads: int = 3) -> None:
        super().__init__()
        weights, products = _weights(path)
        dim, patch = weights["0.cls_token"].shape[0], weights["0.projection.weight"].shape[-1]
        self.patch, self.embed = patch, nn.Linear(3 * patch * patch, dim)
        _set(self.embed, weights["0.projection.weight"].flatten(1).T, weights["0.projection.bias"])
        self.register_buffer("first", weights["0.cls_token"].reshape(1, 1, dim))
        self.register_buffer("position", weights["0.positions"])
        self.blocks = nn.Sequential()

        def norm(name: str) -> tuple[Tensor, Tensor]:
            scale = weights[f"{name}.weight"] / torch.sqrt(weights[f"{name}.running_var"] + EPSILON)
            return scale, weights[f"{name}.bias"] - weights[f"{name}.running_mean"] * scale

        for i in range(_depth(weights)):
            attention, mlp = f"1.{i}.0.fn", f"1.{i}.1.fn"
            block = Block(dim, heads, weights[f"{mlp}.1.0.bias"].shape[0])
            before, after = norm(f"{attention}.0.norm"), norm(f"{mlp}.0.norm")
            root = 1 / math.sqrt(dim // heads)
            _set(block.q, next(products), weights[f"{attention}.1.query.bias"], before, root)
            _set(block.k, next(products), weights[f"{attention}.1.key.bias"], before)
            _set(block.v, next(products), weights[f"{attention}.1.value.bias"], before)
            _set(block.out, next(products), weights[f"{attention}.1.out.bias"])
            _set(block.f1, next(products), weights[f"{mlp}.1.0.bias"], after)
            _set(block.f2, next(products), weights[f"{mlp}.1.3.bias"])
            self.blocks.append(block)
        self.classifier = nn.Linear(dim, 10)
        _set(self.classifier, weights["2.2.weight"].T, weights["2.2.bias"], norm("2.1"))
        self.eval().requires_grad_(False)

    def given(self, x: Tensor) -> Tensor:
        """What the module takes for images (batch, 3, 32, 32): their patches, (batch, patches, 3 patch²)."""
        side = x.shape[-1] // self.patch
        cut = x.reshape(x.shape[0], 3, side, self.patch, side, self.patch).permute(0, 2, 4, 1, 3, 5)
        return cut.reshape(x.shape[0], side * side, -1)

    def forward(self, patches: Tensor) -> Tensor:
        x = self.embed(patches)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.classifier(self.blocks(x).mean(dim=1))


class FileBlock(nn.Module):
    """x + out(attention(norm(x))), then x + f2(relu(f1(norm(x))))."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.norm1, self.norm2 = (nn.BatchNorm1d(dim, eps=EPSILON) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.f1, self.f2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        y = self.norm1(x.transpose(1, 2)).transpose(1, 2)
        split = (batch, tokens, self.heads, self.width)
        q, k, v = (f(y).reshape(split).transpose(1, 2) for f in (self.q, self.k, self.v))
        rows = torch.softmax(q @ k.transpose(-1, -2) * self.width**-0.5, dim=-1) @ v
        x = x + self.out(rows.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.f2(torch.relu(self.f1(self.norm2(x.transpose(1, 2)).transpose(1, 2))))


class FileViT(nn.Module):
    """The network of an ONNX file of this benchmark on images, op by op."""

    def __init__(self, path: Path, heads: int = 3) -> None:
        super().__init__()
        weights, products = _weights(path)
        projection = weights["0.projection.weight"]
        dim, patch = projection.shape[0], projection.shape[-1]
        self.cut = nn.Conv2d(3, dim, patch, stride=patch)
        self.cut.weight.data, self.cut.bias.data = projection, weights["0.projection.bias"]
        self.register_buffer("first", weights["0.cls_token"].reshape(1, 1, dim))
        self.register_buffer("position", weights["0.positions"])
        self.blocks = nn.Sequential()
        for i in range(_depth(weights)):
            attention, mlp = f"1.{i}.0.fn", f"1.{i}.1.fn"
            block = FileBlock(dim, heads, weights[f"{mlp}.1.0.bias"].shape[0])
            _copy_norm(block.norm1, weights, f"{attention}.0.norm")
            _copy_norm(block.norm2, weights, f"{mlp}.0.norm")
            named = {"query": block.q, "key": block.k, "value": block.v, "out": block.out}
            for name, layer in named.items():
                _set(layer, next(products), weights[f"{attention}.1.{name}.bias"])
            _set(block.f1, next(products), weights[f"{mlp}.1.0.bias"])
            _set(block.f2, next(products), weights[f"{mlp}.1.3.bias"])
            self.blocks.append(block)
        self.norm, self.classifier = nn.BatchNorm1d(dim, eps=EPSILON), nn.Linear(dim, 10)
        _copy_norm(self.norm, weights, "2.1")
        _set(self.classifier, weights["2.2.weight"].T, weights["2.2.bias"])
        self.double().eval().requires_grad_(False)

    def given(self, x: Tensor) -> Tensor:
        """What the module takes for images (batch, 3, 32, 32)."""
        return x

    def forward(self, images: Tensor) -> Tensor:
        x = self.cut(images)
        x = x.reshape(x.shape[0], x.shape[1], -1).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.classifier(self.norm(self.blocks(x).mean(dim=1)))


def _weights(path: Path) -> tuple[dict[str, Tensor], Iterator[Tensor]]:
    """The file's tensors by name, and the matrices of its products in their order."""
    import onnx
    from onnx import numpy_helper

    file = onnx.load_from_string(gzip.decompress(path.read_bytes()))
    weights = {i.name: torch.tensor(numpy_helper.to_array(i)).double() for i in file.graph.initializer}
    return weights, (weights[n.input[1]] for n in _products(file.graph.node, weights))


def _depth(weights: dict[str, Tensor]) -> int:
    return sum(bool(re.fullmatch(r"1\.\d+\.0\.fn\.1\.query\.bias", name)) for name in weights)


def _copy_norm(norm: nn.BatchNorm1d, weights: dict[str, Tensor], name: str) -> None:
    norm.weight.data, norm.bias.data = weights[f"{name}.weight"], weights[f"{name}.bias"]
    norm.running_mean, norm.running_var = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]


def _products(nodes: Any, weights: dict[str, Tensor]) -> Iterator[Any]:
    return (n for n in nodes if n.op_type == "MatMul" and n.input[1] in weights)


def _set(layer: nn.Linear, W: Tensor, b: Tensor, norm: tuple[Tensor, Tensor] | None = None, scale: float = 1.0) -> None:
    """layer(x) = scale · ((x · g + c) W + b) with norm = (g, c)."""
    if norm is not None:
        g, c = norm
        W, b = g[:, None] * W, b + c @ W
    layer.weight.data, layer.bias.data = (W.T * scale).contiguous(), b * scale
