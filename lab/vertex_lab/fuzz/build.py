"""A recipe as a torch module and an input set.

Invariant: every weight is a float32 number, also after `.double()`: torch and ONNX hold the same ones. A recipe whose
layers do not fit together raises `UnfitError`; so does one that the minimiser has cut wrongly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vertex_lab.fuzz import layers
from vertex_lab.fuzz.asking import UnfitError
from vertex_lab.fuzz.attentions import Attention
from vertex_lab.fuzz.recipe import Layer, Recipe
from vertex_softmax.sets import Box, InputSet, LinfBall, TokenBall


def module_of(recipe: Recipe) -> nn.Module:
    """The network in eval mode, float32."""
    shape = tuple(recipe["input"])
    parts: list[nn.Module] = []
    for layer in recipe["layers"]:
        part, shape = _made(layer, shape)
        parts.append(part)
    if len(shape) == 3:
        raise UnfitError("the image was not cut into tokens")
    if len(shape) == 2:
        pool = layers.Pool(recipe["pool"], shape[-1])
        parts.append(_weighted(pool, {"seed": recipe["seed"], "scale": 1.0}))
        shape = (math.prod(shape),) if recipe["pool"] == "flatten" else shape[-1:]
    if recipe["head"] or shape[0] < 2:
        parts.append(_weighted(nn.Linear(shape[0], recipe["classes"]), {"seed": recipe["seed"] + 1, "scale": 1.0}))
    return nn.Sequential(*parts).float().eval()


def _made(layer: Layer, shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    """A layer's module with its weights, and the shape behind it."""
    op = layer["op"]
    if op == "patches":
        if len(shape) != 3 or shape[1] % layer["size"] or shape[2] % layer["size"]:
            raise UnfitError("patches are cut from images")
        patches = layers.Patches(shape[0], layer["out"], layer["size"], layer["norm"])
        tokens = (shape[1] // layer["size"]) * (shape[2] // layer["size"])
        return _weighted(patches, layer), (tokens, layer["out"])
    if op == "split":
        if len(shape) != 1 or shape[0] % layer["tokens"]:
            raise UnfitError("vectors are split")
        return layers.Split(layer["tokens"]), (layer["tokens"], shape[0] // layer["tokens"])
    if len(shape) == 3:
        raise UnfitError("images are cut into patches first")
    if op == "residual":
        return _residual(layer, shape)
    if op == "activation":
        return layers.Applied(layer["kind"], layers.ACTIVATION), shape
    if op == "safe":
        return layers.Applied(layer["kind"], layers.SAFE), shape
    if op == "linear":
        return _weighted(nn.Linear(shape[-1], layer["out"], bias=layer["bias"]), layer), (*shape[:-1], layer["out"])
    if op == "norm":
        if layer["kind"] == "group" and math.prod(shape) // (2 if shape[-1] % 2 == 0 else 1) == 1:
            raise UnfitError("torch's GroupNorm refuses groups of one number in a batch of one")
        return _weighted(layers.Norm(layer["kind"], shape[-1], layer["eps"], layer["affine"]), layer), shape
    if op == "gate":
        return _weighted(layers.Gate(layer["kind"], shape[-1]), layer), shape
    return _of_tokens(layer, shape)


def _of_tokens(layer: Layer, shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    if len(shape) != 2:
        raise UnfitError(f"{layer['op']} needs tokens")
    tokens, d = shape
    if layer["op"] == "move":
        move = _weighted(layers.Move(layer["kind"], tokens, d), layer)
        with torch.no_grad():
            after = move(torch.zeros(1, *shape)).shape[1:]
        return move, tuple(after)
    heads = layer["heads"] if d % layer["heads"] == 0 else 1
    if layer["op"] == "attention":
        part = Attention(layer["style"], tokens, d, heads, layer["mask"], layer["seed"], layer["residual"])
        _weighted(part, layer)
        with torch.no_grad():
            for name, p in part.named_parameters():
                if name.startswith(("q.", "k.")) or "in_proj" in name:
                    p.copy_((p.double() * layer["loud"]).float())
        return part, shape
    encoder = layers.Encoder(
        tokens, d, heads, layer["hidden"], layer["norm_first"], layer["activation"], layer["mask"], layer["eps"]
    )
    return _weighted(encoder, layer), shape


def _residual(layer: Layer, shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    parts, now = [], shape
    for inner in layer["layers"]:
        part, now = _made(inner, now)
        parts.append(part)
    if now != shape:
        if now[:-1] != shape[:-1]:
            raise UnfitError("a residual has another shape")
        parts.append(_weighted(nn.Linear(now[-1], shape[-1]), {"seed": 5, "scale": 1.0}))
    return layers.Residual(nn.Sequential(*parts)), shape


def _weighted(module: nn.Module, layer: Layer) -> nn.Module:
    """Every weight and running statistic random, in float32."""
    generator = torch.Generator().manual_seed(int(layer["seed"]))
    with torch.no_grad():
        for name, p in module.named_parameters():
            wide = p.dim() > 1 and p.shape[-1] > 0
            fan = max(1, math.prod(p.shape[1:])) if wide else 1
            draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            draw = draw * (fan**-0.5 if wide else 0.3) * float(layer["scale"])
            p.copy_((draw + 1.0 if "norm" in name and name.endswith("weight") else draw).float())
        for name, b in module.named_buffers():
            if "running" in name:
                b.copy_((0.5 + torch.rand(b.shape, generator=generator, dtype=torch.float64)).float())
    return module


def set_of(recipe: Recipe) -> InputSet:
    """The input set, (batch, *input shape)."""
    how = recipe["set"]
    generator = torch.Generator().manual_seed(int(how["seed"]))
    shape = (recipe["batch"], *recipe["input"])

    def draw() -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64).float().double()

    x, eps = (2 * draw() - 1) * how["spread"], float(how["eps"])
    if how["same_tokens"] and len(shape) == 3:
        x = x[:, :1].expand(shape).clone()
    if how["kind"] == "clip":
        return LinfBall(x.clamp(-0.5, 0.5), eps, clip=(-0.5, 0.5))
    if how["kind"] == "box":
        width = eps * draw() * (draw() < 0.7)
        return Box(x - width, x + width * (draw() < 0.8))
    if how["kind"] == "token":
        return TokenBall(x, eps, tokens=[0])
    return LinfBall(x, eps)
