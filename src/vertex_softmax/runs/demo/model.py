"""The paper's networks as ordinary PyTorch modules, without any code for verification.

PatchTransformer(patch=4, dim=16, heads=2, mlp=32)                    # one block on 8×8 images: 4 tokens
PatchTransformer(patch=2, blocks=2, norm="layer", activation="gelu")  # a small vision transformer: 16 tokens
PatchTransformer(mlp=0, residual=False)                               # attention, pooling, linear classifier
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError


@dataclass(frozen=True)
class Architecture:
    """The hyperparameters of a `PatchTransformer`: everything but its weights."""

    image: int = 8
    patch: int = 4
    channels: int = 1
    dim: int = 16
    heads: int = 2
    blocks: int = 1
    mlp: int = 32
    classes: int = 10
    norm: str | None = None
    activation: str = "relu"
    pool: str = "mean"
    residual: bool = True

    def __post_init__(self) -> None:
        sizes = ("image", "patch", "channels", "dim", "heads", "blocks")
        for name, least in (*((size, 1) for size in sizes), ("mlp", 0), ("classes", 2)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidTypeError(f"{name} is {value!r}; it must be an integer")
            if value < least:
                raise InvalidValueError(f"{name} is {value}; it must be at least {least}")
        for name, known in (
            ("norm", (None, "layer")),
            ("activation", ("relu", "gelu")),
            ("pool", ("mean", "class")),
        ):
            if getattr(self, name) not in known:
                raise InvalidValueError(
                    f"{name} is {getattr(self, name)!r}; choose one of {', '.join(map(repr, known))}"
                )
        for whole, part in (("image", "patch"), ("dim", "heads")):
            if getattr(self, whole) % getattr(self, part):
                raise InvalidValueError(
                    f"{whole} = {getattr(self, whole)} is not a multiple of {part} = {getattr(self, part)}"
                )

    @property
    def tokens(self) -> int:
        """How many tokens the attention has: one per patch, and the class token."""
        return (self.image // self.patch) ** 2 + (self.pool == "class")

    @property
    def numbers(self) -> int:
        """How many weights a network of this architecture has, computed without making one."""
        norm = 2 * self.dim if self.norm == "layer" else 0
        attention = 4 * (self.dim + 1) * self.dim + norm
        mlp = (2 * self.dim + 1) * self.mlp + self.dim + norm if self.mlp else 0
        first = (self.channels * self.patch**2 + 1) * self.dim + self.dim * (self.pool == "class")
        last = norm + (self.dim + 1) * self.classes
        return first + self.tokens * self.dim + self.blocks * (attention + mlp) + last


class SelfAttention(nn.Module):
    """Self-attention: softmax(q kᵀ/√d) v in each head, then a projection; (batch, tokens, dim) to the same shape."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attention of x on itself."""
        batch, tokens, dim = x.shape
        split = (batch, tokens, self.heads, dim // self.heads)
        q, k, v = (f(x).reshape(split).transpose(1, 2) for f in (self.q, self.k, self.v))
        rows = functional.scaled_dot_product_attention(q, k, v)
        mixed: Tensor = self.out(rows.transpose(1, 2).reshape(batch, tokens, dim))
        return mixed


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); without `residual`, attention(norm(x)), then mlp(norm(x))."""

    def __init__(self, of: Architecture) -> None:
        super().__init__()
        activation = nn.ReLU() if of.activation == "relu" else nn.GELU()
        self.residual = of.residual
        self.attention = nn.Sequential(_norm(of), SelfAttention(of.dim, of.heads))
        self.mlp = nn.Sequential()
        if of.mlp:
            self.mlp.extend([_norm(of), nn.Linear(of.dim, of.mlp), activation, nn.Linear(of.mlp, of.dim)])

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block: (batch, tokens, dim) to the same shape."""
        for part in (self.attention, self.mlp):
            if len(part):
                x = x + part(x) if self.residual else part(x)
        return x


class PatchTransformer(nn.Module):
    """Images (batch, channels, image, image) to logits (batch, classes): patches, blocks, pooling, linear classifier.

    Patches are cut by reshaping and embedded by one linear map; each position adds a learned vector. With pool="class"
    the classifier reads a learned token that is put first. mlp=0 leaves the MLP out. With norm="layer" there is a
    LayerNorm before every part and one before the classifier. The initial weights depend on `seed` alone, and torch's
    global random state is not changed.
    """

    # More than six parameters: they are the fields of `Architecture`, so that a network is written in one call.
    def __init__(
        self,
        image: int = 8,
        patch: int = 4,
        channels: int = 1,
        dim: int = 16,
        heads: int = 2,
        blocks: int = 1,
        mlp: int = 32,
        classes: int = 10,
        norm: str | None = None,
        activation: str = "relu",
        pool: str = "mean",
        residual: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.architecture = of = Architecture(
            image=image,
            patch=patch,
            channels=channels,
            dim=dim,
            heads=heads,
            blocks=blocks,
            mlp=mlp,
            classes=classes,
            norm=norm,
            activation=activation,
            pool=pool,
            residual=residual,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Linear(channels * patch * patch, dim)
            self.position = nn.Parameter(torch.randn(of.tokens, dim) / 10)
            self.first = nn.Parameter(torch.randn(1, 1, dim) / 10) if pool == "class" else None
            self.blocks = nn.Sequential(*(Block(of) for _ in range(blocks)))
            self.norm = _norm(of)
            self.classifier = nn.Linear(dim, classes)

    @classmethod
    def of(cls, architecture: Architecture, seed: int = 0) -> PatchTransformer:
        """A network of this architecture, with initial weights that depend on `seed`."""
        return cls(**asdict(architecture), seed=seed)

    def tokens(self, x: Tensor) -> Tensor:
        """The embedded patches with their position vectors: (batch, tokens, dim), an affine function of x."""
        of = self.architecture
        side, batch = of.image // of.patch, x.shape[0]
        cut = x.reshape(batch, of.channels, side, of.patch, side, of.patch).permute(0, 2, 4, 1, 3, 5)
        embedded: Tensor = self.embed(cut.reshape(batch, side * side, of.channels * of.patch * of.patch))
        if self.first is not None:
            embedded = torch.cat([self.first.expand(batch, -1, -1), embedded], dim=1)
        return embedded + self.position

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, channels, image, image)."""
        x = self.blocks(self.tokens(x))
        pooled = x.mean(dim=1) if self.first is None else x[:, 0]
        logits: Tensor = self.classifier(self.norm(pooled))
        return logits


def _norm(of: Architecture) -> nn.Module:
    return nn.LayerNorm(of.dim) if of.norm == "layer" else nn.Identity()
