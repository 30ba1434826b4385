"""Families of Hugging Face's `transformers`, each from a tiny config."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vertex_lab.families.family import IDS, Family, Question, numbers, seeded, words

ENCODER = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
GROUPED = {**ENCODER, "num_key_value_heads": 1}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0}
TEXT = {"vocab_size": 20, "max_position_embeddings": 16, "num_labels": 3, **SPECIAL}
BOTH_ENDS = {"cls_token_id": 1, "sep_token_id": 3}
GPT2 = {"vocab_size": 20, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, "num_labels": 3, **SPECIAL}
T5 = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "num_labels": 3}
IMAGE = {"image_size": 8, "patch_size": 4, "num_labels": 3}
LAYERS = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION_AND_TEXT = {
    "num_labels": 3,
    "vision_config": {**ENCODER, "image_size": 8, "patch_size": 4},
    "text_config": {**ENCODER, "vocab_size": 20, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 3},
}
HALVES = {
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 12,
    "decoder_start_token_id": 3,
}
MEL, FRAMES = 4, 12


def made(model: str, config: str, settings: dict[str, Any]) -> nn.Module:
    """The model of this class with random weights, from a config of this class."""
    import transformers

    module: nn.Module = seeded(lambda: getattr(transformers, model)(getattr(transformers, config)(**settings)))
    return module


def _image(
    name: str, kind: str, settings: dict[str, Any], side: int = 8, *, eps: float = 1e-3, quick: bool = False
) -> Family:
    """`kind`: the prefix of the names of config and classifier."""

    def make() -> Question:
        return numbers(made(f"{kind}ForImageClassification", f"{kind}Config", settings), (3, side, side), eps)

    model = f"{kind}ForImageClassification"
    return Family(name=name, model=model, library="transformers", moves="pixels", make=make, quick=quick)


def _text(
    name: str,
    model: str,
    config: str,
    settings: dict[str, Any],
    position: int | None = None,
    *,
    eps: float = 1e-3,
    quick: bool = False,
) -> Family:
    def make() -> Question:
        return words(made(model, config, settings), eps, position)

    return Family(name=name, model=model, library="transformers", moves="embeddings", make=make, quick=quick)


def _bart() -> Question:
    """The encoder's words move; what the decoder is given, the ids shifted by one, stays."""
    module = made("BartForSequenceClassification", "BartConfig", {**HALVES, **TEXT})
    shifted = torch.tensor(IDS).roll(1, -1)
    return words(module, 1e-3, kwargs={"decoder_input_ids": shifted})


def _whisper() -> Question:
    """The spectrogram moves."""
    settings = {**HALVES, "num_mel_bins": MEL, "max_source_positions": FRAMES // 2, "vocab_size": 20, "num_labels": 3}
    module = made("WhisperForAudioClassification", "WhisperConfig", {**settings, **SPECIAL, "classifier_proj_size": 6})
    return numbers(module, (MEL, FRAMES))


BART = Family(
    name="BART",
    model="BartForSequenceClassification",
    library="transformers",
    moves="the encoder's embeddings; `decoder_input_ids` are given and stay",
    make=_bart,
)
WHISPER = Family(
    name="Whisper encoder",
    model="WhisperForAudioClassification",
    library="transformers",
    moves="the spectrogram",
    make=_whisper,
)
FAMILIES = (
    _text("BERT", "BertForSequenceClassification", "BertConfig", {**ENCODER, **TEXT}, quick=True),
    _text(
        "DistilBERT",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {**TEXT, "dim": 8, "hidden_dim": 12, "n_layers": 2, "n_heads": 2},
    ),
    _text("RoBERTa", "RobertaForSequenceClassification", "RobertaConfig", {**ENCODER, **TEXT}),
    _text("ALBERT", "AlbertForSequenceClassification", "AlbertConfig", {**ENCODER, **TEXT, "embedding_size": 6}),
    _text("ELECTRA", "ElectraForSequenceClassification", "ElectraConfig", {**ENCODER, **TEXT, "embedding_size": 6}),
    _text(
        "DeBERTa-v2",
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        {**ENCODER, **TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    _text(
        "ModernBERT",
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**ENCODER, **TEXT, **BOTH_ENDS},
    ),
    _text("T5 encoder", "T5ForTokenClassification", "T5Config", T5, 0),
    BART,
    _text("GPT-2, a classifier", "GPT2ForSequenceClassification", "GPT2Config", GPT2),
    _text("Llama, a classifier", "LlamaForSequenceClassification", "LlamaConfig", {**GROUPED, **TEXT}),
    _text("Qwen2, a classifier", "Qwen2ForSequenceClassification", "Qwen2Config", {**GROUPED, **TEXT}),
    _text(
        "Gemma 3, a classifier",
        "Gemma3TextForSequenceClassification",
        "Gemma3TextConfig",
        {**GROUPED, **TEXT, "head_dim": 4},
    ),
    _text("GPT-2, the next token", "GPT2LMHeadModel", "GPT2Config", GPT2, -1),
    _text("Llama, the next token", "LlamaForCausalLM", "LlamaConfig", {**GROUPED, **TEXT}, -1, quick=True),
    _text("Qwen2, the next token", "Qwen2ForCausalLM", "Qwen2Config", {**GROUPED, **TEXT}, -1),
    _text(
        "Gemma 3, the next token",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**GROUPED, **TEXT, "head_dim": 4},
        -1,
        eps=1e-5,
    ),
    _image("ViT", "ViT", {**ENCODER, **IMAGE}),
    _image("DeiT", "DeiT", {**ENCODER, **IMAGE}),
    _image("BEiT", "Beit", {**ENCODER, **IMAGE, "vocab_size": 20}),
    _image("DINOv2", "Dinov2", {**LAYERS, **IMAGE, "mlp_ratio": 2}),
    _image("CLIP", "CLIP", VISION_AND_TEXT),
    _image("SigLIP", "Siglip", VISION_AND_TEXT, quick=True),
    _image(
        "Swin",
        "Swin",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 4,
            "depths": [2, 2],
            "num_heads": [1, 2],
            "window_size": 4,
            "num_labels": 3,
        },
        16,
    ),
    _image(
        "ConvNeXt",
        "ConvNext",
        {"hidden_sizes": [4, 8], "depths": [1, 1], "num_stages": 2, "patch_size": 4, "num_labels": 3},
        16,
    ),
    _image(
        "MobileViT",
        "MobileViT",
        {
            "image_size": 32,
            "hidden_sizes": [4, 4, 8],
            "num_attention_heads": 2,
            "neck_hidden_sizes": [2, 2, 4, 4, 4, 8, 8],
            "initializer_range": 0.7,
            "num_labels": 3,
        },
        32,
        eps=1e-5,
    ),
    WHISPER,
)
