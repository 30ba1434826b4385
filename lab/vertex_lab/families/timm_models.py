"""Families of `timm`, which is no dependency of Vertex: their tests are skipped where it is not installed."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from vertex_lab.families.family import Family, Question, numbers, seeded


def _made(kind: str, settings: dict[str, Any]) -> nn.Module:
    """The model of this name in timm with random weights, made small by the settings."""
    timm = importlib.import_module("timm")
    module: nn.Module = seeded(lambda: timm.create_model(kind, pretrained=False, num_classes=3, **settings))
    return module


def _image(name: str, kind: str, side: int, settings: dict[str, Any]) -> Family:
    def make() -> Question:
        return numbers(_made(kind, settings), (3, side, side))

    return Family(name=name, model=kind, library="timm", moves="pixels", make=make)


def _mixer() -> Question:
    kind: Any = importlib.import_module("timm.models.mlp_mixer").MlpMixer

    def make() -> nn.Module:
        mixer: Any = kind(img_size=8, patch_size=4, num_blocks=2, embed_dim=8, num_classes=3)
        nn.init.normal_(mixer.head.weight)  # timm begins with zeros, and all classes would tie
        made: nn.Module = mixer
        return made

    return numbers(seeded(make), (3, 8, 8))


SMALL = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
FAMILIES = (
    _image("ViT", "vit_tiny_patch16_224", 8, SMALL),
    _image("DeiT", "deit_tiny_distilled_patch16_224", 8, SMALL),
    _image(
        "Swin",
        "swin_tiny_patch4_window7_224",
        16,
        {"img_size": 16, "patch_size": 2, "embed_dim": 4, "depths": (2, 2), "num_heads": (1, 2), "window_size": 4},
    ),
    Family(name="MLP-Mixer", model="MlpMixer", library="timm", moves="pixels", make=_mixer),
)
