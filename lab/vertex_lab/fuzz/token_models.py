"""Small models of token ids, with the habits that real ones have: masks from the ids, positions that skip padding,
scaled or shared tables, several tables, a last token that depends on the sentence; and a few of transformers' own.

Invariant: `get_input_embeddings()` is the table of words; every model is a function of its ids alone, sentence by
sentence.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_lab.fuzz.asking import UnfitError
from vertex_lab.fuzz.recipe import Layer

FILLS = {"-inf": -math.inf, "least": torch.finfo(torch.float32).min, "-1e9": -1e9, "-1e4": -1e4}


class ScaledEmbedding(nn.Embedding):
    """A table whose rows leave it scaled, as Gemma's and BART's."""

    def __init__(self, count: int, d: int, scale: float) -> None:
        super().__init__(count, d)
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        """scale · rows"""
        return super().forward(ids) * self.scale


class TokenModel(nn.Module):
    """One block of attention over words, with the habits that a recipe asks for."""

    def __init__(self, how: Layer) -> None:
        super().__init__()
        self.how, d, vocab = how, how["d"], how["vocab"]
        inside = how["scale"] == "inside"
        self.words: nn.Embedding = ScaledEmbedding(vocab, d, d**0.5) if inside else nn.Embedding(vocab, d)
        self.kinds = nn.Embedding(vocab, d)
        self.positions = nn.Embedding(how["length"] + 3, d)
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.head = nn.Linear(d, how["classes"])

    def get_input_embeddings(self) -> nn.Module:
        """The table of words."""
        return self.words

    def _embedded(self, ids: Tensor) -> Tensor:
        how = self.how
        kinds = self.kinds(ids) if how["table"] == "before" else None
        h: Tensor = self.words(ids)
        if how["table"] == "twice":
            h = h + 0.5 * self.words(ids).flip(1)
        if how["table"] == "after":
            kinds = self.kinds(ids)
        if how["scale"] == "outside":
            h = h * how["d"] ** 0.5
        if kinds is not None:
            h = h + kinds
        if how["positions"] == "learned":
            h = h + self.positions(torch.arange(ids.shape[1], device=ids.device))
        if how["positions"] == "cumsum":
            real = (ids != how["pad"]).int()
            h = h + self.positions(torch.cumsum(real, 1) * real + 1)
        return h

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, classes)."""
        how, real = self.how, ids != self.how["pad"]
        h = self._embedded(ids)
        s = self.q(h) @ self.k(h).transpose(1, 2) / how["d"] ** 0.5
        if how["mask"] != "none":
            s = s + torch.zeros_like(s).masked_fill(~real[:, None, :], FILLS[how["mask"]])
        if how["causal"]:
            ones = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
            s = s.masked_fill(ones & (how["mask"] == "none"), -math.inf)
        h = h + self.out(torch.softmax(s, -1) @ self.v(h))
        h = functional.gelu(h) if how["gelu"] else h
        logits: Tensor = self.head(self._pooled(h, real))
        return logits

    def _pooled(self, h: Tensor, real: Tensor) -> Tensor:
        pool = self.how["pool"]
        if pool == "last":
            places = torch.arange(h.shape[1], device=h.device)
            last = (places * real.int()).argmax(1)
            return h[torch.arange(h.shape[0], device=h.device), last]
        if pool == "masked":
            weights = real.to(h.dtype)[..., None]
            return (h * weights).sum(1) / weights.sum(1).clamp(min=1)
        return h[:, 0] if pool == "first" else h.mean(1)


def stock(name: str, how: Layer) -> nn.Module:
    """A tiny model of transformers."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise UnfitError("transformers is not here") from error
    d, pad = how["d"] * 2, how["pad"]
    common: dict[str, Any] = {"vocab_size": how["vocab"], "pad_token_id": pad, "num_labels": how["classes"]}
    bert: dict[str, Any] = {
        "hidden_size": d,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": d,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
    }
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    if name == "gpt2":
        config: Any = transformers.GPT2Config(n_embd=d, n_layer=1, n_head=2, n_positions=16, **ends, **common)
        return _module(transformers.GPT2ForSequenceClassification(config))
    if name == "roberta":
        return _module(
            transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**bert, **ends, **common))
        )
    if name == "bert":
        return _module(transformers.BertForSequenceClassification(transformers.BertConfig(**bert, **common)))
    if not hasattr(transformers, "Gemma3TextForSequenceClassification"):
        raise UnfitError("this transformers has no Gemma 3")
    config = transformers.Gemma3TextConfig(
        hidden_size=d,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=d // 2,
        intermediate_size=d,
        max_position_embeddings=16,
        **ends,
        **common,
    )
    return _module(transformers.Gemma3TextForSequenceClassification(config))


def _module(made: Any) -> nn.Module:
    found: nn.Module = made
    return found


def model_of(recipe: Layer) -> nn.Module:
    """In eval mode and float64, with weights that a seed gives."""
    how = recipe["model"]
    model = stock(how["stock"], how) if how["stock"] else TokenModel(how)
    generator = torch.Generator().manual_seed(recipe["seed"])
    with torch.no_grad():
        for name, p in model.named_parameters():
            wide = p.dim() > 1 and "words" not in name and "wte" not in name and "embed" not in name
            drawn = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            drawn = drawn * (p.shape[-1] ** -0.5 if wide else 0.5 if p.dim() > 1 else 0.1)
            norm = p.dim() == 1 and name.endswith("weight")
            p.copy_((drawn + 1 if norm and "gemma" not in str(how["stock"]) else drawn).float())
    return model.double().eval()
