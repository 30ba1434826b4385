"""Families of Hugging Face's `transformers`, each from a tiny config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from torch import nn

from vertex_lab.families.family import Family, Question, pixels, seeded, words

ENCODER = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12)
TEXT = dict(vocab_size=20, max_position_embeddings=16, num_labels=3, pad_token_id=0)
IMAGE = dict(image_size=8, patch_size=4, num_labels=3)
GROUPED = dict(ENCODER, num_key_value_heads=1)
SPECIAL = dict(bos_token_id=1, eos_token_id=3, pad_token_id=0)


def made(model: str, config: str, **settings: Any) -> nn.Module:
    """The model of this class with random weights, from a config of this class."""
    return seeded(lambda: getattr(transformers, model)(getattr(transformers, config)(**settings)))


def _image(
    name: str, model: str, config: str, *, side: int = 8, eps: float = 1e-3, quick: bool = False, **settings: Any
) -> Family:
    def make() -> Question:
        return pixels(made(model, config, **settings), 3, side, eps)

    return Family(name=name, model=model, library="transformers", moves="pixels", make=make, quick=quick)


def _text(
    name: str,
    model: str,
    config: str,
    *,
    eps: float = 1e-3,
    position: int | None = None,
    quick: bool = False,
    make: Callable[[], Question] | None = None,
    **settings: Any,
) -> Family:
    def built() -> Question:
        return words(made(model, config, **settings), eps, position)

    return Family(name=name, model=model, library="transformers", moves="embeddings", make=make or built, quick=quick)


FAMILIES = (
    _text("BERT", "BertForSequenceClassification", "BertConfig", **ENCODER, **TEXT),
    _text(
        "DistilBERT",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        dim=8,
        hidden_dim=12,
        n_layers=2,
        n_heads=2,
        **TEXT,
    ),
    _text("RoBERTa", "RobertaForSequenceClassification", "RobertaConfig", **ENCODER, **TEXT),
    _text("ALBERT", "AlbertForSequenceClassification", "AlbertConfig", embedding_size=6, **ENCODER, **TEXT),
    _text("ELECTRA", "ElectraForSequenceClassification", "ElectraConfig", embedding_size=6, **ENCODER, **TEXT),
    _text(
        "DeBERTa-v2",
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        **ENCODER,
        **TEXT,
    ),
    _text(
        "ModernBERT",
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        **ENCODER,
        **TEXT,
        **{k: v for k, v in SPECIAL.items() if k != "pad_token_id"},
    ),
    _text(
        "T5 encoder",
        "T5ForTokenClassification",
        "T5Config",
        position=0,
        vocab_size=20,
        d_model=8,
        d_kv=4,
        d_ff=12,
        num_layers=2,
        num_heads=2,
        num_labels=3,
    ),
    _text(
        "GPT-2, a classifier",
        "GPT2ForSequenceClassification",
        "GPT2Config",
        vocab_size=20,
        n_positions=16,
        n_embd=8,
        n_layer=2,
        n_head=2,
        num_labels=3,
        **SPECIAL,
    ),
    _text("Llama, a classifier", "LlamaForSequenceClassification", "LlamaConfig", **GROUPED, **TEXT),
    _text("Qwen2, a classifier", "Qwen2ForSequenceClassification", "Qwen2Config", **GROUPED, **TEXT),
    _text(
        "Gemma 3, a classifier",
        "Gemma3TextForSequenceClassification",
        "Gemma3TextConfig",
        head_dim=4,
        **GROUPED,
        **TEXT,
    ),
    _text(
        "GPT-2, the next token",
        "GPT2LMHeadModel",
        "GPT2Config",
        position=-1,
        vocab_size=20,
        n_positions=16,
        n_embd=8,
        n_layer=2,
        n_head=2,
        **SPECIAL,
    ),
    _text("Llama, the next token", "LlamaForCausalLM", "LlamaConfig", position=-1, **GROUPED, **TEXT),
    _text("Qwen2, the next token", "Qwen2ForCausalLM", "Qwen2Config", position=-1, **GROUPED, **TEXT),
    _text(
        "Gemma 3, the next token", "Gemma3ForCausalLM", "Gemma3TextConfig", position=-1, head_dim=4, **GROUPED, **TEXT
    ),
    _text(
        "BART",
        "BartForSequenceClassification",
        "BartConfig",
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        decoder_start_token_id=3,
        **TEXT,
        **{k: v for k, v in SPECIAL.items() if k != "pad_token_id"},
    ),
    _image("ViT", "ViTForImageClassification", "ViTConfig", **ENCODER, **IMAGE),
    _image("DeiT", "DeiTForImageClassification", "DeiTConfig", **ENCODER, **IMAGE),
    _image("BEiT", "BeitForImageClassification", "BeitConfig", vocab_size=20, **ENCODER, **IMAGE),
    _image(
        "DINOv2",
        "Dinov2ForImageClassification",
        "Dinov2Config",
        mlp_ratio=2,
        **{k: v for k, v in ENCODER.items() if k != "intermediate_size"},
        **IMAGE,
    ),
    _image(
        "CLIP",
        "CLIPForImageClassification",
        "CLIPConfig",
        num_labels=3,
        vision_config=dict(ENCODER, image_size=8, patch_size=4),
        text_config=dict(ENCODER, vocab_size=20, max_position_embeddings=8),
    ),
    _image(
        "SigLIP",
        "SiglipForImageClassification",
        "SiglipConfig",
        num_labels=3,
        vision_config=dict(ENCODER, image_size=8, patch_size=4),
        text_config=dict(ENCODER, vocab_size=20, max_position_embeddings=8),
    ),
    _image(
        "Swin",
        "SwinForImageClassification",
        "SwinConfig",
        image_size=16,
        patch_size=2,
        side=16,
        embed_dim=4,
        depths=[2, 2],
        num_heads=[1, 2],
        window_size=4,
        num_labels=3,
    ),
    _image(
        "ConvNeXt",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        side=16,
        hidden_sizes=[4, 8],
        depths=[1, 1],
        num_stages=2,
        patch_size=4,
        num_labels=3,
    ),
    _image(
        "MobileViT",
        "MobileViTForImageClassification",
        "MobileViTConfig",
        side=32,
        image_size=32,
        hidden_sizes=[8, 12, 16],
        neck_hidden_sizes=[4, 6, 8, 8, 12, 16, 20],
        num_labels=3,
    ),
)
