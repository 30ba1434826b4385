"""DeepT's public MNIST vision transformer (MIT), as a module in float64, and MNIST's test images.

FOLDER/deept/mnist_vit.safetensors    the weights
FOLDER/mnist/t10k-*-ubyte.gz          the images and labels
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

MEAN, DEVIATION = 0.1307, 0.3081
"""Pixels are normalised by these."""


class DeepTVit(nn.Module):
    """DeepT's ViT: 16 patches of 7 × 7 and a class token, one block of four heads, norms that only centre."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = {name.replace(".", "_"): name for name in weights}
        for name, original in self.names.items():
            self.register_buffer(name, weights[original].double())

    def _weight(self, name: str) -> Tensor:
        return self.get_buffer(name.replace(".", "_"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self._weight(f"{name}.weight") * (x - x.mean(-1, keepdim=True)) + self._weight(f"{name}.bias")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self._weight(f"{name}.weight").transpose(-2, -1) + self._weight(f"{name}.bias")

    def _attention(self, x: Tensor) -> Tensor:
        prefix, heads = "transformer.layers.0.0.fn.fn", 4
        q, k, v = (x @ self._weight(f"{prefix}.to_{name}.weight").transpose(-2, -1) for name in "qkv")
        split = (x.shape[0], x.shape[1], heads, q.shape[-1] // heads)
        q, k, v = (each.reshape(split).transpose(1, 2) for each in (q, k, v))
        mixed = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self._linear(mixed.transpose(1, 2).reshape(*x.shape[:2], -1), f"{prefix}.to_out.0")

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 28, 28) → (batch, 10)"""
        patches = ((images - MEAN) / DEVIATION).reshape(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, 16, 49)
        x = self._linear(patches, "to_patch_embedding.1")
        x = torch.cat([self._weight("cls_token").expand(len(x), 1, 64), x], 1) + self._weight("pos_embedding")
        x = x + self._attention(self._norm(x, "transformer.layers.0.0.fn.norm"))
        hidden = self._norm(x, "transformer.layers.0.1.fn.norm")
        hidden = torch.relu(self._linear(hidden, "transformer.layers.0.1.fn.fn.net.0"))
        x = x + self._linear(hidden, "transformer.layers.0.1.fn.fn.net.3")
        return self._linear(self._norm(x[:, 0], "mlp_head.0"), "mlp_head.1")


def network(data: Path) -> DeepTVit:
    """From the public weights."""
    return DeepTVit(load_file(data / "deept" / "mnist_vit.safetensors")).eval()


def test_images(data: Path) -> tuple[Tensor, Tensor]:
    """MNIST's test images (10000, 1, 28, 28) in [0, 1], and labels."""
    images = gzip.decompress((data / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((data / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
    pixels = np.frombuffer(images, np.uint8).reshape(-1, 1, 28, 28) / 255
    return torch.from_numpy(pixels), torch.from_numpy(np.frombuffer(labels, np.uint8).astype(np.int64))
