"""The layers of recipes that are not attention: norms, activations, gates, moves, and expressions that are safe.

Invariant: a layer is a function of (batch, ..., d), defined and finite at every finite input, in real arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Function = Callable[[Tensor], Tensor]

ACTIVATION: dict[str, Function] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky": lambda x: functional.leaky_relu(x, 0.125),
    "erf": torch.erf,
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "relu6": functional.relu6,
    "none": lambda x: x,
}
SAFE: dict[str, Function] = {
    "log1": lambda x: torch.log(1 + x * x),
    "sqrt1": lambda x: torch.sqrt(x * x + 0.5),
    "reciprocal1": lambda x: 1 / (1 + torch.exp(-x)),
    "exp_tanh": lambda x: torch.exp(torch.tanh(x)),
    "exp_minus_square": lambda x: torch.exp(-(x**2)),
    "rsqrt1": lambda x: x * torch.rsqrt(x.pow(2) + 1),
    "power3": lambda x: x**3,
    "softmax": lambda x: x.softmax(-1),
    "logsoftmax": lambda x: functional.log_softmax(x, dim=-1),
    "divide": lambda x: x / (1 + x.abs()),
    "logsumexp": lambda x: x - torch.logsumexp(x, dim=-1, keepdim=True),
    "softmax_tokens": lambda x: x.softmax(1) * x,
    "mish": lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
    "sqrt_relu": lambda x: torch.sqrt(torch.relu(x) + 0.25),
    "variance": lambda x: x / (1 + x.var(-1, unbiased=False, keepdim=True)),
    "norm": lambda x: x / (1 + torch.linalg.vector_norm(x, dim=-1, keepdim=True)),
    "power4": lambda x: (0.5 * x) ** 4,
    "where": lambda x: torch.where((torch.arange(x.shape[-1]) % 2 == 0).to(x.device), x, -0.5 * x),
    "mean": lambda x: x - x.mean(1, keepdim=True) * x.sum(-1, keepdim=True),
}


class Applied(nn.Module):
    """A function of the table, by name."""

    def __init__(self, kind: str, table: dict[str, Function]) -> None:
        super().__init__()
        self.kind, self.table = kind, table

    def forward(self, x: Tensor) -> Tensor:
        """f(x)"""
        return self.table[self.kind](x)


class Norm(nn.Module):
    """A norm over the last dimension (`batch`: of channels; `group`: of channels and tokens)."""

    def __init__(self, kind: str, d: int, eps: float, affine: bool) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps
        if kind == "layer":
            self.norm: nn.Module = nn.LayerNorm(d, eps=eps, elementwise_affine=affine)
        elif kind == "rms":
            self.norm = nn.RMSNorm(d, eps=eps, elementwise_affine=affine)
        elif kind == "batch":
            self.norm = nn.BatchNorm1d(d, eps=eps, affine=affine)
        elif kind == "group":
            self.norm = nn.GroupNorm(2 if d % 2 == 0 else 1, d, eps=eps, affine=affine)
        self.weight_norm = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        """The norm of x."""
        if self.kind in ("layer", "rms"):
            return self.norm(x)  # type: ignore[no-any-return]
        if self.kind in ("batch", "group"):
            return self.norm(x.transpose(-1, -2)).transpose(-1, -2) if x.dim() == 3 else self.norm(x)  # type: ignore[no-any-return]
        if self.kind == "layer_hand":
            centred = x - x.mean(-1, keepdim=True)
            return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight_norm
        if self.kind == "rms_hand":
            return self.weight_norm * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))
        return x / torch.sqrt((x * x).sum(-1, keepdim=True) + self.eps)


class Gate(nn.Module):
    """f(a x) · (b x)"""

    def __init__(self, kind: str, d: int) -> None:
        super().__init__()
        self.a, self.b, self.kind = nn.Linear(d, d), nn.Linear(d, d), kind

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        y: Tensor = ACTIVATION[self.kind](self.a(x)) * self.b(x)
        return y


class Residual(nn.Module):
    """x + f(x)"""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        y: Tensor = x + self.inner(x)
        return y


class Encoder(nn.Module):
    """torch's own encoder layer, with a mask of its kind."""

    causal: Tensor
    padding: Tensor

    def __init__(
        self, tokens: int, d: int, heads: int, hidden: int, norm_first: bool, activation: str, mask: str, eps: float
    ) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            d, heads, hidden, 0.0, activation, eps, batch_first=True, norm_first=norm_first
        )
        self.mask = mask
        self.register_buffer("causal", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))
        self.register_buffer("padding", (torch.arange(tokens) == tokens - 1)[None] & torch.tensor(tokens > 1))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        if self.mask == "causal":
            return self.layer(x, src_mask=self.causal)  # type: ignore[no-any-return]
        if self.mask == "padding":
            return self.layer(x, src_key_padding_mask=self.padding.expand(x.shape[0], -1))  # type: ignore[no-any-return]
        return self.layer(x)  # type: ignore[no-any-return]


class Move(nn.Module):
    """Rearrangements, concatenations with constants, and products of whole tensors; x is (batch, tokens, d)."""

    def __init__(self, kind: str, tokens: int, d: int) -> None:
        super().__init__()
        self.kind = kind
        self.token = nn.Parameter(torch.zeros(1, 1, d))
        self.table = nn.Parameter(torch.zeros(tokens, d))
        self.mix = nn.Linear(tokens, tokens)
        self.convolution = nn.Conv1d(d, d, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The moved tensor, with as many dimensions."""
        kind, d = self.kind, x.shape[-1]
        if kind == "flip":
            return x.flip(1) + 2 * x
        if kind == "slice":
            return x[..., : max(1, d // 2)] - x[..., d - max(1, d // 2) :]
        if kind == "cat":
            return torch.cat([x, torch.relu(x)], dim=-1)
        if kind == "double_tokens":
            return torch.cat([x, x], dim=1)
        if kind == "class_token":
            return torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        if kind == "positions":
            return x + self.table
        if kind == "mix_tokens":
            return self.mix(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]
        if kind == "drop_token":
            return x[:, 1:] if x.shape[1] > 1 else x
        if kind == "cumsum":
            return x.cumsum(1)
        if kind == "maximum":
            return torch.maximum(x, self.table)
        if kind == "minimum":
            return torch.minimum(x, -x + self.table)
        if kind == "scale":
            return x * self.table - 0.25
        if kind == "chunk_sum":
            return torch.stack(x.chunk(2, dim=-1), 0).sum(0) if d % 2 == 0 else x
        if kind == "select":
            return x[:, torch.arange(x.shape[1]).flip(0)] * 0.5
        if kind == "stack":
            return torch.stack([x, -x], dim=2).flatten(1, 2)
        if kind == "outer":
            return (x.unsqueeze(-1) * x.unsqueeze(-2)).mean(-1)
        if kind == "gram":
            return x @ x.transpose(1, 2) @ x
        if kind == "least":
            return x - x.amin(-1, keepdim=True)
        if kind == "convolution":
            return self.convolution(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]
        if kind == "average_pool":
            return functional.avg_pool1d(x, 2, 1) if d > 1 else x
        if kind == "roll":
            return torch.roll(x, 1, dims=1) - x
        if kind == "branches":
            return torch.cat([torch.relu(x + self.token), torch.tanh(x)], dim=1)
        if kind == "left":
            return self.mix.weight @ x
        if kind == "rotary":
            half = max(1, d // 2)
            turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
            return x * torch.cos(self.table) + turned * torch.sin(self.table)
        return x.permute(1, 0, 2).contiguous().permute(1, 2, 0).transpose(1, 2)


class Pool(nn.Module):
    """(batch, tokens, d) → (batch, d), or (batch, tokens · d) for `flatten`."""

    def __init__(self, kind: str, d: int) -> None:
        super().__init__()
        self.kind, self.score = kind, nn.Linear(d, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One row."""
        if self.kind == "mean":
            return x.mean(1)
        if self.kind == "sum":
            return x.sum(1)
        if self.kind == "first":
            return x[:, 0]
        if self.kind == "last":
            return x[:, -1]
        if self.kind == "max":
            return x.amax(1)
        if self.kind == "flatten":
            return x.flatten(1)
        y: Tensor = (self.score(x).softmax(1) * x).sum(1)
        return y


class Patches(nn.Module):
    """An image as tokens, by a convolution."""

    def __init__(self, channels: int, d: int, size: int, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, d, size, size)
        self.norm: nn.Module = nn.BatchNorm2d(d) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) → (batch, tokens, d)"""
        return self.norm(self.conv(x)).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class Split(nn.Module):
    """A vector as tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens · d) → (batch, tokens, d)"""
        return x.reshape(x.shape[0], self.tokens, -1)
