"""Sapiens, a RoBERTa of four layers for sequences of antibodies (PyPI's sapiens 1.0.5; fairseq's checkpoint).

The checkpoint is inside the package. It is read without fairseq and without running any code it may hold
(`weights_only`), into an ordinary module that maps vectors of tokens to the scores of one position's residue.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_softmax.foundation.errors import InvalidValueError

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
FIRST, LAST, BEFORE = 0, 2, 4
"""The ids of <s>, of </s>, and of the first residue."""
FIRST_POSITION = 2
"""fairseq counts positions from the padding's id + 1."""
DIM, HEADS, HIDDEN, LAYERS = 128, 8, 256, 4
NAMES = (
    (r"^decoder\.sentence_encoder\.", ""),
    (r"^decoder\.lm_head\.(weight|bias)$", r"scores.\1"),
    (r"^decoder\.lm_head\.", "head_"),
    (r"self_attn\.([kqv])_proj", r"\1"),
    (r"self_attn\.out_proj", "out"),
    (r"self_attn_layer_norm", "after_attention"),
    (r"final_layer_norm", "after_mlp"),
)
"""What the checkpoint's names are called here, in the order in which they are replaced."""


class RobertaBlock(nn.Module):
    """Self-attention and an MLP with GELU, each added to its input and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(DIM, HIDDEN), nn.Linear(HIDDEN, DIM)
        self.after_attention, self.after_mlp = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same shape."""
        batch, tokens, _ = x.shape
        q, k, v = (f(x).reshape(batch, tokens, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        rows = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, DIM)
        x = self.after_attention(x + self.out(rows))
        found: Tensor = self.after_mlp(x + self.fc2(functional.gelu(self.fc1(x))))
        return found


class Sapiens(nn.Module):
    """Vectors of tokens (batch, tokens, dim) to the scores of the residue at `position`, (batch, 25)."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position
        self.embed_tokens, self.embed_positions = nn.Embedding(25, DIM), nn.Embedding(146, DIM)
        self.emb_layer_norm = nn.LayerNorm(DIM)
        self.layers = nn.ModuleList(RobertaBlock() for _ in range(LAYERS))
        self.head_dense, self.head_layer_norm = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.scores = nn.Linear(DIM, 25)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the residue at `position`."""
        places = self.embed_positions.weight[FIRST_POSITION : FIRST_POSITION + x.shape[1]]
        x = self.emb_layer_norm(x + places)
        for block in self.layers:
            x = block(x)
        found: Tensor = self.scores(self.head_layer_norm(functional.gelu(self.head_dense(x[:, self.position]))))
        return found


def ids_of(sequence: str) -> list[int]:
    """<s>, the residues and </s> as the rows of the table."""
    unknown = sorted(set(sequence) - set(RESIDUES))
    if unknown:
        raise InvalidValueError(f"{', '.join(unknown)} are no residues; the letters are {RESIDUES}")
    return [FIRST, *(BEFORE + RESIDUES.index(letter) for letter in sequence), LAST]


def read_sapiens(path: Path, position: int) -> Sapiens:
    """The network of a checkpoint (checkpoint_vh.pt in the package) that scores one position."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        weights = torch.load(path, weights_only=True, map_location="cpu")["model"]
    model = Sapiens(position)
    named = {}
    for name, weight in weights.items():
        here = name
        for pattern, word in NAMES:
            here = re.sub(pattern, word, here)
        named[here] = weight
    model.load_state_dict(named)
    return model.requires_grad_(False).eval()
