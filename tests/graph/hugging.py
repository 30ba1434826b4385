"""Tiny transformers of Hugging Face's library."""

from __future__ import annotations

from torch import nn


def vit(implementation: str) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        image_size=4,
        patch_size=2,
        num_labels=3,
        attn_implementation=implementation,
    )
    return ViTForImageClassification(config)


def bert(implementation: str) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=8,
        num_labels=3,
        attn_implementation=implementation,
    )
    return BertForSequenceClassification(config)
