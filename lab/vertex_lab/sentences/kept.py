"""Trained classifiers of sentences in files: sst-LAYERS-NORM.safetensors, the weights, and .json, their history."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import safetensors.torch

from vertex_lab.sentences.data import PAD, UNKNOWN, read_sentences, read_vocabulary
from vertex_lab.sentences.model import SentenceArchitecture, SentenceClassifier
from vertex_lab.sentences.training import Recipe, accuracy, train
from vertex_softmax.foundation.files import write_whole


def name_of(of: SentenceArchitecture) -> str:
    """The name of its files, without their endings."""
    return f"sst-{of.layers}-{of.norm}"


def make(of: SentenceArchitecture, data: Path, models: Path, device: str, say: Callable[[str], None]) -> None:
    """Train one network and save it with its accuracy."""
    vocabulary = read_vocabulary(data)
    parts = {part: read_sentences(data, part, vocabulary) for part in ("train", "dev", "test")}
    special = {"pad": vocabulary[PAD], "unknown": vocabulary[UNKNOWN]}
    model, recipe, begin = SentenceClassifier(of), Recipe(), time.perf_counter()

    def said(epoch: int, loss: float, reached: float) -> None:
        seconds = time.perf_counter() - begin
        left = seconds / (epoch + 1) * (recipe.epochs - epoch - 1)
        say(f"{name_of(of)} epoch {epoch + 1}/{recipe.epochs} loss {loss:.3f} dev {reached:.3f} {left:.0f} s left")

    dev = train(model, parts, recipe, special, said, device)
    test = accuracy(model, parts["test"], special["pad"])
    models.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(model.state_dict(), models / f"{name_of(of)}.safetensors")
    record = {"architecture": asdict(of), "recipe": asdict(recipe), "dev": dev, "test": test}
    record["seconds"] = time.perf_counter() - begin
    write_whole(models / f"{name_of(of)}.json", json.dumps(record, indent=2).encode())
    say(f"{name_of(of)}: test accuracy {test:.4f}, {record['seconds']:.0f} s")


def loaded(of: SentenceArchitecture, models: Path) -> SentenceClassifier:
    """The network that `make` saved."""
    model = SentenceClassifier(of)
    model.load_state_dict(safetensors.torch.load_file(models / f"{name_of(of)}.safetensors"))
    return model.eval()
