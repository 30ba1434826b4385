"""Recipes of random networks: plain JSON, drawn from a seed, that say all that a case is made of.

Invariant: the same seed draws the same recipe, and a recipe holds every choice; what build.py and check.py draw besides
(weights, centres, points) comes from the seeds it holds. A layer that is dropped leaves the weights of others as they
were, since each has its own seed.
"""

from __future__ import annotations

import random
from typing import Any

Recipe = dict[str, Any]
Layer = dict[str, Any]

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "leaky", "erf", "abs", "clamp", "relu6")
SAFE = (
    *("log1", "sqrt1", "reciprocal1", "exp_tanh", "exp_minus_square", "rsqrt1", "power3", "softmax", "logsoftmax"),
    *("divide", "logsumexp", "softmax_tokens", "mish", "sqrt_relu", "variance", "norm", "power4", "where", "mean"),
)
NORMS = ("layer", "rms", "layer_hand", "rms_hand", "batch", "group", "l2")
ATTENTIONS = ("sdpa", "mha", "hand", "hand_exp", "hand_transposed", "einsum", "multi_query", "cross", "gqa", "pooled")
MASKS = ("none", "none", "causal", "bool", "float", "one_key", "big", "diagonal")
POOLS = ("mean", "first", "last", "max", "sum", "flatten", "attention")
SCALES = (1e-6, 1e-3, 0.1, 3.0, 10.0, 100.0, 1e3)
RADII = (0.0, 1e-9, 1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.03, 0.1, 0.1, 0.2, 0.3, 0.5, 1.0, 10.0, 1e3)
OPSETS = (("legacy", 14), ("legacy", 17), ("dynamo", 18), ("dynamo", 20), ("dynamo", 23))
EXTRAS = ("boxes", "single", "float32", "chunk", "repeat", "goal", "onnx", "options", "certificate")


def random_recipe(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    start, layers = _opening(rng)
    for _ in range(rng.choice((1, 1, 2, 2, 3, 3, 4, 5))):
        layers.append(_layer(rng, tokens=len(start) > 1 or bool(layers)))
    extras = [name for name in EXTRAS if rng.random() < (0.6 if name == "boxes" else 0.25)]
    style, opset = rng.choice(OPSETS)
    return {
        "seed": seed,
        "input": start,
        "layers": layers,
        "pool": rng.choice(POOLS),
        "head": rng.random() < 0.9,
        "classes": rng.choice((2, 2, 3, 4)),
        "set": _set(rng, start),
        "batch": rng.choice((1, 1, 2, 3)),
        "steps": rng.choice((1, 2, 4)),
        "onnx": {"style": style, "opset": opset},
        "options": _options(rng),
        "extras": extras,
    }


def _opening(rng: random.Random) -> tuple[list[int], list[Layer]]:
    """The input's shape and the layers that make tokens of it."""
    d = rng.choice((2, 4, 4, 6, 8))
    kind = rng.random()
    if kind < 0.15:
        size = rng.choice((1, 2))
        image = [rng.choice((1, 2)), 2 * size, 2 * size]
        return image, [{"op": "patches", "out": d, "size": size, "norm": rng.random() < 0.3, **_weights(rng)}]
    if kind < 0.3:
        tokens = rng.choice((1, 2, 3))
        return [tokens * d], [{"op": "split", "tokens": tokens}]
    return [rng.choice((1, 1, 2, 3, 4, 5)), d], []


def _weights(rng: random.Random) -> Layer:
    scale = rng.choice(SCALES) if rng.random() < 0.2 else 1.0
    return {"seed": rng.randrange(1 << 30), "scale": scale}


def _layer(rng: random.Random, *, tokens: bool, inner: bool = False) -> Layer:
    """One layer; most are of attention."""
    draw = rng.random()
    if tokens and draw < 0.32:
        return _attention(rng)
    if tokens and draw < 0.4 and not inner:
        return {
            "op": "encoder",
            "heads": rng.choice((1, 2)),
            "hidden": rng.choice((1, 4, 8)),
            "norm_first": rng.random() < 0.5,
            "activation": rng.choice(("relu", "gelu")),
            "mask": rng.choice(("none", "none", "causal", "padding")),
            "eps": _eps(rng),
            **_weights(rng),
        }
    if draw < 0.52:
        return _norm(rng)
    if draw < 0.64 and not inner:
        count = rng.choice((1, 2, 3))
        return {"op": "residual", "layers": [_layer(rng, tokens=tokens, inner=True) for _ in range(count)]}
    if draw < 0.72:
        return {"op": "linear", "out": rng.choice((1, 2, 4, 6, 8)), "bias": rng.random() < 0.7, **_weights(rng)}
    if draw < 0.82:
        return {"op": "activation", "kind": rng.choice(ACTIVATIONS)}
    if draw < 0.87:
        return {"op": "gate", "kind": rng.choice(("silu", "sigmoid", "gelu", "relu", "none")), **_weights(rng)}
    if draw < 0.93:
        return {"op": "safe", "kind": rng.choice(SAFE), **_weights(rng)}
    return {"op": "move", "kind": rng.choice(MOVES), **_weights(rng)}


MOVES = (
    "flip",
    "slice",
    "cat",
    "double_tokens",
    "class_token",
    "positions",
    "mix_tokens",
    "drop_token",
    "cumsum",
    "maximum",
    "minimum",
    "scale",
    "chunk_sum",
    "select",
    "stack",
    "outer",
    "permute",
    "gram",
    "least",
    "convolution",
    "average_pool",
    "roll",
    "branches",
    "left",
    "rotary",
)


def _eps(rng: random.Random) -> float:
    return float(rng.choice((2.0**-17, 2.0**-17, 2.0**-10, 2.0**-40, 1.0)))


def _norm(rng: random.Random) -> Layer:
    return {
        "op": "norm",
        "kind": rng.choice(NORMS),
        "eps": _eps(rng),
        "affine": rng.random() < 0.7,
        **_weights(rng),
    }


def _attention(rng: random.Random) -> Layer:
    loud = rng.choice((1e-3, 10.0, 100.0)) if rng.random() < 0.2 else 1.0
    return {
        "op": "attention",
        "style": rng.choice(ATTENTIONS),
        "heads": rng.choice((1, 2, 2)),
        "mask": rng.choice(MASKS),
        "loud": loud,
        "residual": rng.random() < 0.5,
        **_weights(rng),
    }


def _set(rng: random.Random, shape: list[int]) -> Layer:
    kinds = ("linf", "linf", "linf", "clip", "box", "token") if len(shape) == 2 else ("linf", "clip", "box")
    return {
        "kind": rng.choice(kinds),
        "eps": rng.choice(RADII),
        "spread": rng.choice((1.0, 1.0, 1.0, 0.0, 1e-3, 30.0)),
        "same_tokens": rng.random() < 0.1,
        "seed": rng.randrange(1 << 30),
    }


def _options(rng: random.Random) -> Layer:
    """Options that differ from the default, for the extra `options`."""
    choices: list[tuple[str, Any]] = [
        ("scores", "interval"),
        ("preactivations", "stream"),
        ("suffix", "best"),
        ("suffix", "optimised"),
        ("product", 1.0),
        ("product", 0.0),
        ("centred", False),
        ("generators", False),
        ("pieces", 4),
        ("pieces", 1),
        ("box_ascent", 2),
    ]
    return dict(rng.sample(choices, rng.choice((1, 2, 3))))
