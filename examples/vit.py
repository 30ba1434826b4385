"""A small vision transformer like those of VNN-COMP, trained on digits here and certified by several methods.

    python examples/vit.py            # under a minute on one core
    python examples/vit.py --quick    # seconds

The model is an ordinary nn.Module: patches by a convolution, a class token, pre-norm blocks with BatchNorm, ReLU.
Nothing in it knows that it will be verified.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import vertex_softmax as vx
from vertex_softmax.runs.certify import load
from vertex_softmax.runs.demo.digits import digits
from vertex_softmax.runs.demo.training import accuracy, one_thread, train
from vertex_softmax.search.attack import pgd

METHODS = ("ibp", "crown", "vertex", "hybrid", "joint")


class Norm(nn.Module):
    """BatchNorm over the channels of (batch, tokens, d); in eval mode it is affine."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, d) to the same."""
        y: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return y


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = Norm(d), Norm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, d) to the same."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class ViT(nn.Module):
    """Images (batch, 1, 8, 8) to ten class scores."""

    def __init__(self, d: int = 16, heads: int = 2, blocks: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, d, 4, 4)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, d))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 5, d))
        self.blocks = nn.Sequential(*(Block(d, heads) for _ in range(blocks)))
        self.head = nn.Linear(d, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores, (batch, 10)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        scores: Tensor = self.head(self.blocks(x)[:, 0])
        return scores


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, certify, attack, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eps", type=float, default=0.025, help="how far each pixel may move")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--quick", action="store_true", help="less training, one block, fewer images")
    asked = parser.parse_args(arguments)
    epochs, blocks, images = (3, 1, 2) if asked.quick else (20, 2, asked.images)

    data = digits()
    with one_thread():
        torch.manual_seed(0)
        model = ViT(blocks=blocks)
        train(model, data.train_images, data.train_labels, epochs=epochs, batch=64, lr=5e-3, adversarial=0.05)
        x, labels = data.eval_images[:images], data.eval_labels[:images]
        ball = vx.LinfBall(x, asked.eps, clip=(0, 1))
        graph = load(model, ball)  # read once, for all methods
        title = f"ViT of depth {blocks}, {len(x)} digits, each pixel ± {asked.eps:g}"
        share = accuracy(model, data.eval_images, data.eval_labels)
        table = Table("method", "certified", "mean bound", "s per image", title=title, caption=f"accuracy {share:.1%}")
        attack = pgd(model, ball, labels)
        for method in METHODS:
            begin = time.perf_counter()
            result = vx.certify(graph, ball, labels, method, attack=None)
            each = (time.perf_counter() - begin) / len(x)
            if not bool((result.worst <= attack.worst + 1e-9).all()):
                raise SystemExit(f"{method} bounds a margin above what the attack reached: please report this")
            table.add_row(
                method, f"{result.certified.double().mean():.0%}", f"{result.worst.mean():+.2f}", f"{each:.3f}"
            )
        table.add_section()
        held = (attack.worst > 0).double().mean()
        table.add_row("attack", f"≤ {held:.0%}", f"≤ {attack.worst.mean():+.2f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
