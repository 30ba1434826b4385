"""The network: one attention-only layer that says which of k tokens is the largest; its training and its weights.

It is the Max-of-k model of Gross et al. 2024 ("Compact proofs of model performance via mechanistic interpretability"):
learned positions, one head, no LayerNorm, no MLP, logits read at the last token. With x_j the embedding of the token at
position j plus that of its position, and the last position as the query,

    logits = (x_k + Σ_j p_j (x_j W_V + b_V) W_O + b_O) W_U + b_U,
    p = softmax_j((x_k W_Q + b_Q) · (x_j W_K + b_K) / √d_head).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Numbers: TypeAlias = NDArray[np.float64]
Weights: TypeAlias = dict[str, Numbers]
"""E (vocabulary, d), P (k, d), W_Q, W_K, W_V (d, d_head), W_O (d_head, d), W_U (d, vocabulary), b_Q, b_K, b_V
(d_head,), b_O (d,), b_U (vocabulary,); float64, whose values are read as exact reals."""
NAMES = ("E", "P", "W_Q", "W_K", "W_V", "W_O", "W_U", "b_Q", "b_K", "b_V", "b_O", "b_U")


def trained(vocabulary: int, k: int, *, d: int = 32, steps: int = 3000, batch: int = 128, seed: int = 0) -> Weights:
    """Weights after `steps` of AdamW (rate 0.001) on uniformly random sequences, without biases."""
    random = torch.Generator().manual_seed(seed)
    shapes = {"E": (vocabulary, d), "P": (k, d), **dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), (d, d))}
    shapes["W_U"] = (d, vocabulary)
    weights = {
        name: (torch.randn(shape, generator=random) / math.sqrt(d)).requires_grad_() for name, shape in shapes.items()
    }
    biases = {name: torch.zeros(vocabulary if name == "b_U" else d) for name in NAMES if name.startswith("b")}
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-3)
    for _ in range(steps):
        ids = torch.randint(vocabulary, (batch, k), generator=random)
        optimizer.zero_grad()
        functional.cross_entropy(logits(weights | biases, ids), ids.amax(1)).backward()
        optimizer.step()
    return {name: (weights | biases)[name].detach().double().numpy() for name in NAMES}


def logits(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Token numbers (batch, k) to logits (batch, vocabulary)."""
    w = weights
    x = w["E"][ids] + w["P"]
    query = x[:, -1] @ w["W_Q"] + w["b_Q"]
    scores = ((x @ w["W_K"] + w["b_K"]) @ query[:, :, None])[..., 0] / math.sqrt(query.shape[-1])
    values = (scores.softmax(-1)[:, None] @ (x @ w["W_V"] + w["b_V"]))[:, 0]
    return (x[:, -1] + values @ w["W_O"] + w["b_O"]) @ w["W_U"] + w["b_U"]


@torch.no_grad()
def brute_force(weights: Weights, chunk: int = 1 << 14) -> NDArray[np.bool_]:
    """Which of all sequences the network gets right in float64, (vocabulary, …, vocabulary): every one is evaluated."""
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    vocabulary, k = len(weights["E"]), len(weights["P"])
    right = np.empty(vocabulary**k, dtype=np.bool_)
    for first in range(0, len(right), chunk):
        number = torch.arange(first, min(first + chunk, len(right)))
        ids = torch.stack([number // vocabulary**j % vocabulary for j in reversed(range(k))], 1)
        right[first : first + chunk] = (logits(tensors, ids).argmax(1) == ids.amax(1)).numpy()
    return right.reshape((vocabulary,) * k)


def digest(weights: Weights) -> str:
    """SHA-256 of all weights, by name, shape and the bytes of their float64 values."""
    found = hashlib.sha256()
    for name in NAMES:
        value = np.ascontiguousarray(weights[name], dtype="<f8")
        found.update(f"{name}{value.shape}".encode() + value.tobytes())
    return found.hexdigest()


def save(weights: Weights, path: Path) -> None:
    """Write the weights as .npz, without pickle."""
    np.savez(path, **weights)  # type: ignore[arg-type]


def load(path: Path) -> Weights:
    """Read what `save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return {name: np.asarray(file[name], dtype=np.float64) for name in NAMES}
