"""A classifier of sentences in the manner of BERT, as an ordinary PyTorch module without any code for verification.

Word and position vectors, post-norm blocks (x ← norm(x + attention(x)), x ← norm(x + mlp(x))), and a tanh pooler on the
first token: the networks of DeepT's experiments. `norm` is "standard" (LayerNorm) or "no-variance" (γ·(x − mean) + β).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_softmax.foundation.errors import InvalidValueError

NORMS = ("standard", "no-variance")


@dataclass(frozen=True)
class SentenceArchitecture:
    """Everything but the weights."""

    words: int
    layers: int
    norm: str
    dim: int = 128
    heads: int = 4
    mlp: int = 128
    longest: int = 32
    classes: int = 2

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise InvalidValueError(f"norm is {self.norm!r}; choose one of {', '.join(NORMS)}")


class MeanOnly(nn.Module):
    """γ·(x − mean of x) + β along the last dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) to the same shape."""
        return self.weight * (x - x.mean(-1, keepdim=True)) + self.bias


class SentenceBlock(nn.Module):
    """Self-attention and an MLP with ReLU, each added to its input and normalised."""

    def __init__(self, of: SentenceArchitecture) -> None:
        super().__init__()
        self.heads = of.heads
        self.query, self.key, self.value, self.out = (nn.Linear(of.dim, of.dim) for _ in range(4))
        self.up, self.down = nn.Linear(of.dim, of.mlp), nn.Linear(of.mlp, of.dim)
        self.after_attention, self.after_mlp = norm_of(of), norm_of(of)

    def forward(self, x: Tensor, present: Tensor | None = None, dropout: float = 0.0) -> Tensor:
        """x (batch, tokens, dim); present (batch, tokens) is False where a sentence is filled up."""
        batch, tokens, dim = x.shape
        split = (batch, tokens, self.heads, dim // self.heads)
        q, k, v = (f(x).reshape(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        mask = None if present is None else present[:, None, None]
        rows = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed = self.out(rows.transpose(1, 2).reshape(batch, tokens, dim))
        x = self.after_attention(x + functional.dropout(mixed, dropout, self.training))
        hidden = self.down(functional.relu(self.up(x)))
        found: Tensor = self.after_mlp(x + functional.dropout(hidden, dropout, self.training))
        return found


class SentenceClassifier(nn.Module):
    """Token ids (batch, tokens) to logits (batch, classes); the initial weights depend on `seed` alone."""

    def __init__(self, of: SentenceArchitecture, seed: int = 0) -> None:
        super().__init__()
        self.architecture = of
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.words, self.positions = nn.Embedding(of.words, of.dim), nn.Embedding(of.longest, of.dim)
            self.norm = norm_of(of)
            self.blocks = nn.ModuleList(SentenceBlock(of) for _ in range(of.layers))
            self.pooler, self.classifier = nn.Linear(of.dim, of.dim), nn.Linear(of.dim, of.classes)
            self._start()

    def _start(self) -> None:
        """Small branches at the beginning, the smaller the deeper the network: post-norm blocks train from scratch."""
        branch = (2 * self.architecture.layers) ** -0.5
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.1)
        with torch.no_grad():
            for block in self.blocks.children():
                for name in ("out", "down", "value", "up"):
                    block.get_submodule(name).get_parameter("weight").mul_(branch**0.5)

    def get_input_embeddings(self) -> nn.Module:
        """The table that token ids are looked up in."""
        return self.words

    def forward(self, ids: Tensor, present: Tensor | None = None, dropout: float = 0.0) -> Tensor:
        """Logits (batch, classes)."""
        return self.from_embeddings(self.words(ids), present, dropout)

    def from_embeddings(self, x: Tensor, present: Tensor | None = None, dropout: float = 0.0) -> Tensor:
        """Logits from the words' vectors (batch, tokens, dim)."""
        x = self.norm(x + self.positions.weight[: x.shape[1]])
        x = functional.dropout(x, dropout, self.training)
        for block in self.blocks:
            x = block(x, present, dropout)
        logits: Tensor = self.classifier(torch.tanh(self.pooler(x[:, 0])))
        return logits


def norm_of(of: SentenceArchitecture) -> nn.Module:
    """A norm of the kind that the architecture asks for."""
    return nn.LayerNorm(of.dim) if of.norm == "standard" else MeanOnly(of.dim)
