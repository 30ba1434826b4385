"""Models of two inputs, and products of sets for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vertex_softmax.sets import Box, InputSet, LinfBall, LpBall, Product

PATCHES, WIDTH, WORDS, CLASSES = 5, 3, 4, 3


class Affine(nn.Module):
    """A·image + B·text + c: its least margins are known."""

    def __init__(self, first: tuple[int, ...] = (PATCHES, WIDTH), second: tuple[int, ...] = (WORDS,)) -> None:
        super().__init__()
        sizes = [int(torch.tensor(shape).prod()) for shape in (first, second)]
        self.image, self.text = nn.Linear(sizes[0], CLASSES), nn.Linear(sizes[1], CLASSES, bias=False)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        found: Tensor = self.image(image.flatten(1)) + self.text(text.flatten(1))
        return found


class Crossed(nn.Module):
    """A vector attends to patches: cross attention, then a residual and ReLU."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.patch, self.vector = nn.Linear(WIDTH, d), nn.Linear(WORDS, d)
        self.q, self.k, self.v, self.head = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, CLASSES)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        x, y = self.patch(image), self.vector(text).unsqueeze(1)
        seen = torch.softmax(self.q(y) @ self.k(x).mT / 2, -1) @ self.v(x)
        found: Tensor = self.head((y + seen).squeeze(1).relu())
        return found


class Mixed(nn.Module):
    """Patches and the vector are tokens of one self-attention: scores are products of both inputs."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.patch, self.vector = nn.Linear(WIDTH, d), nn.Linear(WORDS, d)
        self.q, self.k, self.v, self.head = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, CLASSES)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        y = self.vector(text).unsqueeze(1)
        x = torch.cat([self.patch(image) + 0.3 * y, y], 1)
        x = x + torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)
        found: Tensor = self.head(x.mean(1))
        return found


class Normed(nn.Module):
    """Two blocks with LayerNorm and GELU: boxes come from zonotopes."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.patch, self.vector = nn.Linear(WIDTH, d), nn.Linear(WORDS, d)
        kinds = [nn.TransformerEncoderLayer(d, 2, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True) for _ in "ab"]
        self.blocks, self.head = nn.ModuleList(kinds), nn.Linear(d, CLASSES)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        x = torch.cat([self.patch(image), self.vector(text).unsqueeze(1)], 1)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x.mean(1))
        return found


def made(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind().double().eval()


def inputs(count: int = 2, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, PATCHES, WIDTH, generator=generator, dtype=torch.float64),
        torch.randn(count, WORDS, generator=generator, dtype=torch.float64),
    )


KINDS = (
    "boxes",
    "l2 and box",
    "l1 and box",
    "l2 and l2",
    "l1 and l1",
    "l1 and l2",
    "tokens and l1",
    "clipped",
    "point",
)


def pair(kind: str, size: float = 1.0, count: int = 2) -> tuple[InputSet, InputSet]:
    """A set for each input."""
    image, text = inputs(count)
    found: dict[str, tuple[InputSet, InputSet]] = {
        "boxes": (LinfBall(image, 0.1 * size), LinfBall(text, 0.2 * size)),
        "l2 and box": (LpBall(image, 0.4 * size, 2), LinfBall(text, 0.2 * size)),
        "l1 and box": (LpBall(image, 0.6 * size, 1), LinfBall(text, 0.2 * size)),
        "l2 and l2": (LpBall(image, 0.4 * size, 2), LpBall(text, 0.3 * size, 2)),
        "l1 and l1": (LpBall(image, 0.6 * size, 1), LpBall(text, 0.5 * size, 1)),
        "l1 and l2": (LpBall(image, 0.6 * size, 1), LpBall(text, 0.3 * size, 2)),
        "tokens and l1": (LpBall(image, 0.2 * size, 2, per_token=True), LpBall(text, 0.5 * size, 1)),
        "clipped": (LpBall(image, 0.4 * size, 2, clip=(-3, 3)), Box(text - 0.1 * size, text + 0.3 * size, text)),
        "point": (LpBall(image, 0.4 * size, 2), Box(text, text)),
    }
    return found[kind]


def product(kind: str, size: float = 1.0, count: int = 2) -> Product:
    return Product(*pair(kind, size, count))
