"""Training is repeatable to the last bit, learns, and its results are kept without pickle."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from vertex_lab.zoo.datasets import digits
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.runs.demo import training
from vertex_softmax.runs.demo.model import Architecture, PatchTransformer
from vertex_softmax.runs.demo.training import MOST_BYTES, accuracy, describe, load, prepared, save, train
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall

DATA = digits()


def trained(**settings) -> PatchTransformer:
    model = PatchTransformer(dim=16, mlp=16, seed=settings.get("seed", 0))
    train(model, DATA.train_images, DATA.train_labels, **{"epochs": 1, **settings})
    return model


def same(a: PatchTransformer, b: PatchTransformer) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("extra", [{}, {"noise": 0.1}, {"adversarial": 0.05}])
def test_the_same_seed_gives_the_same_weights_whatever_the_threads(extra) -> None:
    threads = torch.get_num_threads()
    first = trained(seed=1, **extra)
    torch.set_num_threads(threads + 1)
    try:
        torch.rand(3)
        assert same(first, trained(seed=1, **extra))
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert not same(first, trained(seed=2, **extra))
    assert not first.training


def test_noise_and_adversaries_change_what_is_learned() -> None:
    plain = trained()
    assert not same(plain, trained(noise=0.1))
    assert not same(plain, trained(adversarial=0.05))


def test_it_learns_and_adversarial_training_makes_it_harder_to_fool() -> None:
    x, y = DATA.eval_images[:100], DATA.eval_labels[:100]
    held = {}
    for adversarial in (0.0, 0.1):
        model = PatchTransformer(dim=16, mlp=32)
        reached = train(
            model, DATA.train_images, DATA.train_labels, epochs=20, batch=64, lr=5e-3, adversarial=adversarial
        )
        assert reached > 0.85
        assert accuracy(model, DATA.eval_images, DATA.eval_labels) > 0.8
        with training.one_thread():
            worst = pgd(model, LinfBall(x, 0.1, (0, 1)), y, steps=10, restarts=2).worst
        held[adversarial] = float((worst > 0).double().mean())
    assert held[0.1] > held[0.0] + 0.1


def test_the_worse_point_is_within_reach_and_worse() -> None:
    model, x, y = trained(), DATA.train_images[:64].float(), DATA.train_labels[:64]
    moved = training._adversarial(model, x, y, 0.1, torch.Generator().manual_seed(0))
    assert (moved - x).abs().max() <= 0.1 + 1e-6
    assert moved.min() >= 0
    assert moved.max() <= 1
    loss = torch.nn.functional.cross_entropy
    assert loss(model(moved), y) > loss(model(x), y)


def test_progress_is_told_by_epoch() -> None:
    seen: list[tuple[int, int]] = []
    train(PatchTransformer(dim=8), DATA.train_images, DATA.train_labels, epochs=2, progress=lambda *a: seen.append(a))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_comes_back(tmp_path: Path, dtype) -> None:
    model = PatchTransformer(patch=2, dim=8, blocks=2, norm="layer", pool="class", seed=4).to(dtype)
    save(model, tmp_path / "deep" / "small.v1", describe(DATA, seed=4, epochs=0))
    assert {p.name for p in (tmp_path / "deep").iterdir()} == {"small.v1.safetensors", "small.v1.json"}
    again, record = load(tmp_path / "deep" / "small.v1")
    assert same(model, again)
    assert again.embed.weight.dtype == dtype
    assert not again.training
    assert record["checksum"] == DATA.checksum
    assert record["training"] == {"seed": 4, "epochs": 0}


def test_prepared_trains_once(tmp_path: Path, monkeypatch) -> None:
    architecture, settings = Architecture(dim=8), {"epochs": 1, "seed": 6}
    model, record = prepared(tmp_path / "m", architecture, DATA, settings)
    assert record["accuracy"] == accuracy(model, DATA.eval_images, DATA.eval_labels)
    assert set(record) > {"train_accuracy", "architecture", "sha256", "data", "torch"}
    runs = []
    monkeypatch.setattr(training, "train", lambda *_, **k: runs.append(k) or 0.5)
    assert same(model, prepared(tmp_path / "m", architecture, DATA, settings)[0])
    assert not runs
    prepared(tmp_path / "m", architecture, DATA, {**settings, "epochs": 2})  # other settings: trained again
    prepared(tmp_path / "m", Architecture(dim=16), DATA, settings)
    (tmp_path / "m.safetensors").write_bytes(b"damaged")
    prepared(tmp_path / "m", Architecture(dim=16), DATA, settings)
    assert len(runs) == 3


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"m\.json cannot be read \(No such file.*two files"):
        load(tmp_path / "m")
    save(PatchTransformer(dim=8), tmp_path / "m", {})
    text = (tmp_path / "m.json").read_text()
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(InvalidValueError, match="does not describe a model"):
        load(tmp_path / "m")
    (tmp_path / "m.json").write_text(json.dumps({**json.loads(text), "architecture": {"width": 3}}))
    with pytest.raises(InvalidValueError, match="does not describe a model"):
        load(tmp_path / "m")
    other = {**json.loads(text), "architecture": {"dim": 16}}
    (tmp_path / "m.json").write_text(json.dumps(other))
    with pytest.raises(InvalidValueError, match="does not fit the architecture"):
        load(tmp_path / "m")
    (tmp_path / "m.json").write_text(text)
    (tmp_path / "m.safetensors").write_bytes((tmp_path / "m.safetensors").read_bytes()[:-1])
    with pytest.raises(InvalidValueError, match=r"is not the file that m\.json describes"):
        load(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epochs": 0}, InvalidValueError, "epochs is 0"),
        ({"batch": 0}, InvalidValueError, "batch is 0"),
        ({"lr": float("nan")}, InvalidValueError, "lr is nan"),
        ({"noise": -0.1}, InvalidValueError, "noise is -0.1"),
        ({"adversarial": float("inf")}, InvalidValueError, "adversarial is inf"),
        ({"labels": DATA.train_labels.double()}, InvalidTypeError, "labels has dtype"),
        ({"labels": DATA.train_labels[:5]}, InvalidValueError, "1437 images and 5 labels"),
    ],
)
def test_refused(change, error, message) -> None:
    arguments = {"images": DATA.train_images, "labels": DATA.train_labels, "epochs": 1, **change}
    with pytest.raises(error, match=message):
        train(PatchTransformer(dim=8), **arguments)


@pytest.mark.parametrize("weights", [b"", b"\x00" * 64, safetensors.torch.save({})])
def test_weights_that_are_no_weights_are_refused(tmp_path, weights) -> None:
    path = tmp_path / "model"
    save(PatchTransformer(), path, {})
    path.with_suffix(".safetensors").write_bytes(weights)
    record = json.loads(path.with_suffix(".json").read_text())
    record["sha256"] = hashlib.sha256(weights).hexdigest()
    path.with_suffix(".json").write_text(json.dumps(record))
    with pytest.raises(InvalidValueError, match="does not fit the architecture"):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": 10**9}, "numbers, and .* are needed"),
        ({"dim": 2**40, "heads": 1}, "numbers, and .* are needed"),
        ({"image": 2**30, "patch": 1}, "numbers, and .* are needed"),
        ({"classes": 10**15}, "numbers, and .* are needed"),
        ({"dim": 16.0}, "dim is 16.0; it must be an integer"),
        ({"mlp": True}, "mlp is True; it must be an integer"),
        ({"image": "8"}, "image is '8'; it must be an integer"),
    ],
)
def test_no_network_is_made_that_the_weights_do_not_fill(tmp_path: Path, change, message) -> None:
    """Terabytes, had they been made."""
    save(PatchTransformer(dim=8), tmp_path / "m", {})
    record = json.loads((tmp_path / "m.json").read_text())
    record["architecture"] |= change
    (tmp_path / "m.json").write_text(json.dumps(record))
    with pytest.raises(InvalidValueError, match=message):
        load(tmp_path / "m")


def test_other_hostile_models_are_refused(tmp_path: Path, monkeypatch) -> None:
    model = PatchTransformer(dim=8)
    with torch.no_grad():
        model.classifier.bias[0] = torch.nan
    save(model, tmp_path / "m", {})
    with pytest.raises(InvalidValueError, match="not finite"):
        load(tmp_path / "m")
    (tmp_path / "m.json").write_text("[" * 100_000)
    with pytest.raises(InvalidValueError, match="does not describe a model"):
        load(tmp_path / "m")
    save(PatchTransformer(dim=8), tmp_path / "m", {})
    monkeypatch.setitem(MOST_BYTES, "safetensors", 100)
    with pytest.raises(InvalidValueError, match="files up to 100 bytes are read"):
        load(tmp_path / "m")
