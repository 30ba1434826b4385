"""Networks and properties whose answers are known before anyone asks: `planted(kind, depth, norm, seed)`.

Every instance is an ONNX model (float32), a VNNLIB property and the truth, "sat" or "unsat", in real arithmetic over
the stored weights. Nothing here uses the package but to write the property's text; values come from onnxruntime, exact
minima from closed forms, checked in float64 with onnx's reference evaluator. Seeds are any integers ≥ 0, everything is
a function of the four arguments. Sizes: `depth` blocks of 1 to 6, 3 to 6 tokens, width 4 to 8 (`hull` with norms: 3
per block), 1 or 2 heads, MLP of ReLU or GELU, LayerNorm (as an operator, or spelled out) before every part or none.

BUMPS (truth sat): a random transformer, and a hat, relu(1 − k Σ|x − x°|) or as a minimum or product, that breaks the
property around x° only, less than 1e-6 of the box. inside; corner; spacing (as wide as a few float32); two_sided (≤ or
≥); boxes (one of three has it); both (a conjunction whose rows hold on half of the box each, and together near x°);
linear (a row over all outputs that is no margin); through (the hat goes through all blocks, not to a logit).
EXACT (truth by the limit's side of the exact minimum, at `DISTANCES` relative to it): hull (softmax over boxes of
scores with known values: its minimum is at a vertex, all are enumerated; block on block with monotone maps between);
zero (the perturbed inputs have weights 0); monotone (the minimum is at a known corner). With norms, the scores and the
inputs are LayerNorm's numbers, whose range over (h₀, others in one interval) is ∓a/√(a²/(d−1) + ε). bound (unsat only):
any transformer, then a last LayerNorm, |y₀| < √(d−1), or a last softmax over known values.
GRID (truth sat): torch models exported, 2 to 4 perturbed inputs, the limit above the least value on a fine grid.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import warnings
from fractions import Fraction
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from vertex_lab.soundness.planted_nets import (
    EPSILON,
    Array,
    Builder,
    Sizes,
    Whole,
    activate,
    attend,
    exact_values,
    hat,
    layer_norm,
    single,
    transformer,
    values,
)
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property
from vertex_softmax.specs.vnnlib import write_vnnlib

BUMPS = ("inside", "corner", "spacing", "two_sided", "boxes", "both", "linear", "through")
EXACT = ("hull", "zero", "monotone", "bound")
KINDS = (*BUMPS, *EXACT, "grid")
DISTANCES = (1e-1, 1e-2, 1e-3, 1e-5)
CLEAR = 1e-3
"""By how much a planted counterexample breaks the property, at least, where the kind does not say."""
Rows = list[tuple[dict[int, Fraction], Fraction]]
"""A conjunction: Σ coefficient·y ≤ limit, each."""


@dataclasses.dataclass(frozen=True)
class Planted:
    """One instance; boxes (tokens·width,) of float32 and conjunctions, of which any in any box breaks the property."""

    kind: str
    name: str
    model: bytes
    boxes: list[tuple[Array, Array]]
    conjunctions: list[Rows]
    outputs: int
    truth: str
    witness: Array | None
    facts: dict[str, object]

    @property
    def text(self) -> str:
        """The property as VNNLIB."""
        parts = tuple(Conjunction(tuple(Inequality(*row) for row in rows)) for rows in self.conjunctions)
        ends = [(low.astype(np.float64), high.astype(np.float64)) for low, high in self.boxes]
        cases = tuple(Case(low, high, low, high, parts) for low, high in ends)
        return write_vnnlib(Property(cases, len(cases[0].lower), self.outputs))

    def wrong(self, status: str) -> bool:
        """Is it the opposite of the truth?"""
        return {status, self.truth} == {"sat", "unsat"}

    def breach(self, x: Array, y: Array) -> Fraction | None:
        """By how much (x, y) breaks the property, exactly; None if it does not."""
        flat = [Fraction(float(v)) for v in np.asarray(x).reshape(-1)]
        out = [Fraction(float(v)) for v in np.asarray(y).reshape(-1)]
        if not any(
            all(Fraction(float(a)) <= v <= Fraction(float(b)) for v, a, b in zip(flat, *box, strict=True))
            for box in self.boxes
        ):
            return None
        short = max(min(d - sum(a * out[k] for k, a in c.items()) for c, d in rows) for rows in self.conjunctions)
        return short if short >= 0 else None


def finish(s: Sizes, kind: str, model: bytes, boxes: list[Any], conjunctions: list[Rows], **rest: Any) -> Planted:
    """The instance, after a look at its witness: it has to break the property by `least`, unless that is None."""
    least, witness, truth = rest.pop("least", CLEAR), rest.pop("witness", None), rest.pop("truth")
    name = f"{kind}-{s.depth}-{'norm' if s.norm else 'plain'}-{s.seed}"
    boxes = [(np.asarray(a, np.float32).reshape(-1), np.asarray(c, np.float32).reshape(-1)) for a, c in boxes]
    facts = {"tokens": s.tokens, "width": s.width, "heads": s.heads, "activation": s.activation, **rest}
    outputs = int(facts.pop("outputs"))
    made = Planted(kind, name, model, boxes, conjunctions, outputs, truth, witness, facts)
    if witness is not None and least is not None:
        broken = made.breach(witness, values(model, witness[None])[0])
        if broken is None or broken < least:
            raise AssertionError(f"{name}: the planted counterexample is none")
    return made


# Bumps ---------------------------------------------------------------------------------------------------------------


def _spot(kind: str, s: Sizes) -> tuple[Array, float, list[tuple[Array, Array]], Array]:
    """The perturbed places, their radius, the boxes (tokens·width,), and where in one of them the hat is."""
    rng, size = s.rng, s.tokens * s.width
    places = np.sort(rng.permutation(size)[: int(rng.integers(3, 6))])
    centre = np.round(rng.normal(size=size) * 64) / 64
    radius = np.zeros(size)
    radius[places] = eps = 2.0 ** -int(rng.integers(2, 5))
    u = rng.uniform(0.25, 0.8, size) * rng.choice([-1, 1], size)
    u = np.sign(u) if kind == "corner" else u
    shift = np.zeros((3 if kind == "boxes" else 1, size))
    shift[:, places[0]] = 3 * eps * np.arange(len(shift))
    boxes = [(centre + d - radius, centre + d + radius) for d in shift]
    grain = 2.0**20 if kind == "spacing" else 2.0**12
    spot = np.round((centre + shift[rng.integers(len(shift))] + radius * u) * grain) / grain
    return places, eps, boxes, spot.astype(np.float32).reshape(s.tokens, s.width)


def _rows(row: Array, low: float, high: float | None) -> list[Rows]:
    """row · y ≤ low, or row · y ≥ high if there is one."""
    coefficients = {k: Fraction(float(a)) for k, a in enumerate(row) if a}
    rows: list[Rows] = [[(coefficients, Fraction(float(np.float32(low))))]]
    if high is not None:
        rows.append([({k: -a for k, a in coefficients.items()}, -Fraction(float(np.float32(high))))])
    return rows


def bump(kind: str, s: Sizes, slope: float | None = None) -> Planted:
    """A random transformer with a hat; `slope` is the hat's, by default 256 per radius of the box."""
    rng, shape, outputs = s.rng, (s.tokens, s.width), int(s.rng.integers(2, 5))
    size = s.tokens * s.width
    places, eps, boxes, spot = _spot(kind, s)
    slope = slope or (2.0**22 if kind == "spacing" else 256 / eps)
    form = int(rng.integers(4))
    row = np.zeros(outputs)
    row[:2] = (1, -1)
    if kind in ("linear", "through"):
        row = np.round(rng.uniform(0.25, 2, outputs) * 64) / 64 * rng.choice([-1, 1], outputs)
    state = rng.bit_generator.state
    height, turn = np.zeros(max(outputs, s.width)), 0
    while True:  # first without the hat, to know what it has to reach; `through` may need a higher one
        rng.bit_generator.state = state
        b = Builder(shape, s.opset)
        top = hat(b, spot, places, slope, form)
        h = b.affine("x", s.weights(s.width, s.width))
        if kind == "through":
            h = b.op("Add", h, b.op("MatMul", b.op("Reshape", top, [0, 1, 1]), height[None, : s.width]))
        y = b.affine(transformer(b, s, h), s.weights(s.width, outputs, scale=1.5), s.weights(outputs))
        if kind == "both":
            tilt = np.zeros((size, outputs))
            tilt[places[0], :2] = (1 / eps, -1 / eps)
            y = b.op("Add", y, b.op("MatMul", b.op("Reshape", "x", [0, size]), tilt))
        if kind != "through":
            y = b.op("Add", y, b.op("MatMul", top, height[None, :outputs]))
        seen = values(b.model(y, outputs, "n"), _samples(boxes, shape, np.random.default_rng(s.seed)))
        here = values(b.model(y, outputs), spot[None])[0].astype(np.float64)
        if turn == 0:
            base, least, most = here, (seen @ row).min(), (seen @ row).max()
            gap = 0.05 + 0.1 * (most - least)
        if turn > 0 and (kind != "through" or abs((here - base) @ row) > 4 * (most - least + gap)):
            break
        turn += 1
        if kind == "through":
            direction = np.random.default_rng(s.seed + 7 * turn).normal(size=len(height))
            height = single(2.0 ** min(turn, 12) * direction).astype(np.float64)
        elif kind == "both":
            level = np.median(seen[:, 0])
            limits = (level, (seen[:, 0] + seen[:, 1]).min() - gap - level)
            height[:2] = [min(0.0, limit - v - 0.25) for limit, v in zip(limits, here, strict=False)]
        else:
            up = kind == "two_sided" and s.seed % 2 == 0
            drop = (most + gap + 0.25 - base @ row) if up else (least - gap - 0.25 - base @ row)
            height[0] = drop / row[0]
    if kind == "both":
        rows = [[({k: Fraction(1)}, Fraction(float(np.float32(limits[k])))) for k in (0, 1)]]
    else:
        if kind == "through" and (here - base) @ row > 0:
            row, least, most = -row, -most, -least
        rows = _rows(row, least - gap, most + gap if kind == "two_sided" else None)
    n = len(places)
    share = (1 / (slope * eps)) ** n / (math.factorial(n) if form in (0, 1) else 1) / len(boxes)
    if not share < 1e-6:
        raise AssertionError(f"{kind}: the bump fills {share} of the box")
    return finish(
        s, kind, b.model(y, outputs), boxes, rows, truth="sat", witness=spot, outputs=outputs, share=share, form=form
    )


def without_hat(made: Planted) -> bytes:
    """The model of a bump with the hat taken off: 1 − k|…| is 0 − k|…|, nowhere above 0."""
    model = onnx.load_from_string(made.model)
    ones = {node.input[0] for node in model.graph.node if node.op_type == "Sub"}
    for constant in model.graph.initializer:
        if constant.name in ones:
            constant.CopyFrom(numpy_helper.from_array(single(0), constant.name))
    return bytes(model.SerializeToString())


def _samples(boxes: list[Any], shape: tuple[int, ...], rng: np.random.Generator, count: int = 300) -> Array:
    found = []
    for low, high in ([np.asarray(end).reshape(-1) for end in box] for box in boxes):
        t = rng.uniform(size=(count, low.size))
        found.append(low + np.where(rng.random((count, 1)) < 0.5, t, np.round(t)) * (high - low))
    return np.concatenate(found).reshape(-1, *shape).astype(np.float32)


# Exact minima --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Front:
    """Features f (batch, tokens, n) of x with known ranges, each for itself, and the corners of x that have them.

    Without norm f is x; with norm f_i is γ·LayerNorm(x_3i, x_3i+1, x_3i+2)₀ + β, others in one interval.
    """

    b: Builder
    name: str
    lower: Array
    upper: Array
    ends: tuple[Array, Array]
    """(tokens, n): the least and the greatest feature"""
    group: int

    @classmethod
    def make(cls, s: Sizes, n: int, least: int = 4) -> Front:
        """n features, from x of at least `least` numbers per token."""
        group = 3 if s.norm else 1
        s.width = max(least, group * n)
        centre = np.round(s.rng.normal(size=(s.tokens, n)) * 64) / 64
        centre = np.repeat(centre, group, axis=1)
        rest = np.zeros((s.tokens, s.width - group * n))
        radius = np.concatenate([np.full_like(centre, 2.0 ** -int(s.rng.integers(1, 4))), rest], 1)
        centre = np.concatenate([centre, rest], 1)
        low, high = centre - radius, centre + radius
        # Were the middle of the box three equal numbers, its norm would be rounding, nothing else. It is spelled out:
        # onnxruntime's operator takes E[x²] − E[x]² in float32, so far from the import that the model is refused.
        if s.norm:
            low[:, : 3 * n : 3] += radius[:, : 3 * n : 3] / 2
            high[:, : 3 * n : 3] += radius[:, : 3 * n : 3] / 2
        b = Builder((s.tokens, s.width), s.opset)
        if not s.norm:
            name = b.op("MatMul", "x", np.eye(s.width, n))
            return cls(b, name, low, high, (low[:, :n], high[:, :n]), 1)
        gamma, beta = np.float32(1 + 0.25 * s.rng.random()), np.float32(s.rng.normal() * 0.25)
        parts = []
        for i in range(n):
            own = b.op("MatMul", "x", np.eye(s.width)[:, 3 * i : 3 * i + 3])
            own = layer_norm(b, own, np.full(3, gamma), np.full(3, beta), spelled=True)
            parts.append(b.op("MatMul", own, np.eye(3)[:, :1]))
        name = b.op("Concat", *parts, axis=-1) if n > 1 else parts[0]
        ends = []
        for first, others in ((low, high), (high, low)):  # the first at one end, the others at the other
            a = (2 / 3) * (first[:, : 3 * n : 3] - others[:, 1 : 3 * n : 3])
            ends.append(float(beta) + float(gamma) * a / np.sqrt(a * a / 2 + EPSILON))
        return cls(b, name, low, high, (ends[0], ends[1]), 3)

    def corner(self, up: Array) -> Array:
        """x (tokens, width) whose features are the greatest where `up` (tokens, n), the least elsewhere."""
        first = np.arange(up.shape[1] * self.group) % self.group == 0
        wide = np.repeat(up, self.group, axis=1) == first
        at = self.lower.copy()
        at[:, : wide.shape[1]] = np.where(wide, self.upper[:, : wide.shape[1]], self.lower[:, : wide.shape[1]])
        return at


def sided(kind: str, s: Sizes, front: Front, y: str, up: Array, closed: float | None = None) -> Planted:
    """y₀ − y₁ ≤ limit, beside the exact minimum, at the corner `up`; the seed says on which side, and how far."""
    x = front.corner(up).astype(np.float32)
    model = front.b.model(y, 2, "n" if s.seed % 5 == 4 else 1)
    least = float(np.subtract(*exact_values(model, x))) if closed is None else closed
    seen = values(front.b.model(y, 2, "n"), _samples([(front.lower, front.upper)], x.shape, np.random.default_rng(0)))
    found, size = float(np.subtract(*values(model, x[None])[0].astype(np.float64))), max(1.0, abs(least))
    if abs(found - least) > 5e-6 * size or (seen[:, 0] - seen[:, 1]).min() < least - 5e-6 * size:
        raise AssertionError(f"{kind}: {least} is not the minimum; {found}, {(seen[:, 0] - seen[:, 1]).min()}")
    truth, distance = ("unsat", "sat")[s.seed // len(DISTANCES) % 2], DISTANCES[s.seed % len(DISTANCES)]
    limit = Fraction(least + (distance if truth == "sat" else -distance) * size)
    rows = [[({0: Fraction(1), 1: Fraction(-1)}, limit)]]
    return finish(
        s, kind, model, [(front.lower, front.upper)], rows, truth=truth, witness=x if truth == "sat" else None,
        least=None if distance < 1e-4 else distance / 2, outputs=2, minimum=least, distance=distance,
    )  # fmt: skip


def hull(s: Sizes) -> Planted:
    """Attention over boxes of scores with known values, block on block."""
    front, sign = Front.make(s, s.depth), 1 if s.rng.random() < 0.5 else -1
    b, least, up, z = front.b, 0.0, [], ""
    for i in range(s.depth):
        sharp = float(s.rng.choice([0.5, 2, 8, 30])) * s.rng.choice([-1, 1])
        k = b.op("MatMul", b.op("MatMul", front.name, np.eye(s.depth)[:, i : i + 1]), np.array([[sharp, 0]]))
        q = b.op("Add", b.op("MatMul", front.name, np.zeros((s.depth, 2))), np.array([1.0, 0.5]))
        known = single(s.rng.uniform(0.1, 1, (s.tokens, 1)))
        v = b.op("Add", b.op("MatMul", front.name, np.zeros((s.depth, 1))), known)
        before = known.astype(np.float64)[:, 0]
        if z:
            share = single(s.rng.uniform(0.1, 1, (s.tokens, 1)))
            v = b.op("Add", v, b.op("Mul", z, share))
            before = before + share.astype(np.float64)[:, 0] * least
        rows = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
        z = b.op("MatMul", rows, v)
        tries = []
        for corner in itertools.product([False, True], repeat=s.tokens):
            score = sharp * np.where(corner, front.ends[1][:, i], front.ends[0][:, i])
            p = np.exp(score - score.max())
            tries.append((float(p @ before / p.sum()), corner))
        least, corner = min(tries) if sign > 0 else max(tries)
        up.append(corner)
        W, c, V = (single(s.rng.uniform(0.1, 1, n)) for n in ((1, 4), 4, (4, 1)))
        z = b.op("Add", z, b.affine(activate(b, b.affine(z, W, c), s.activation), V))
        inner = (least * W.astype(np.float64) + c)[0]
        inner = inner * [0.5 * (1 + math.erf(t / math.sqrt(2))) for t in inner] if s.activation == "gelu" else inner
        least = float(least + inner @ V.astype(np.float64)[:, 0])
    y = b.affine(b.op("ReduceMean", z, [1], keepdims=0), np.array([[sign, 0]]), np.array([0, 0.25]))
    return sided("hull", s, front, y, np.array(up).T, sign * least - 0.25)


def zero(s: Sizes) -> Planted:
    """Any transformer behind weights that are 0 on what is perturbed: one margin, which the reference tells."""
    b = Builder((s.tokens, s.width), s.opset)
    moved = s.width // 2
    W = s.weights(s.width, s.width)
    W[:moved] = 0
    h = transformer(b, s, b.affine("x", W), spelled=True)
    y = b.affine(h, s.weights(s.width, 2, scale=1.5))
    centre = np.round(s.rng.normal(size=(s.tokens, s.width)) * 64) / 64
    radius = np.zeros_like(centre)
    radius[:, :moved] = 0.5
    front = Front(b, "x", centre - radius, centre + radius, (centre, centre), 1)
    return sided("zero", s, front, y, s.rng.random((s.tokens, s.width)) < 0.5)


def monotone(s: Sizes) -> Planted:
    """Weights ≥ 0 from the features on (the first up to signs), scores that do not move: least at a corner."""
    n = int(s.rng.integers(1, 3)) if s.norm else 4
    front = Front.make(s, n)
    b, w = front.b, 4 * s.heads
    turn = s.rng.choice([-1, 1], (n, 1))

    def positive(*shape: int, scale: float = 1.0) -> Array:
        return np.abs(s.weights(*shape, scale=scale))

    first = positive(n, w)
    reach = np.maximum(np.abs(front.ends[0]), np.abs(front.ends[1])).max() * first.sum(0).max()
    h = b.affine(front.name, turn * first, np.full(w, math.ceil(reach)))  # ≥ 0, where GELU is monotone
    for _ in range(s.depth):
        still = b.op("MatMul", h, np.zeros((w, w)))
        q, k = (b.op("Add", still, s.weights(s.tokens, w)) for _ in "qk")
        v = b.affine(h, positive(w, w, scale=0.5))
        h = b.op("Add", h, b.affine(attend(b, q, k, v, s.tokens, w, s.heads), positive(w, w, scale=0.5)))
        inner = activate(b, b.affine(h, positive(w, 6, scale=0.5), positive(6)), s.activation)
        h = b.op("Add", h, b.affine(inner, positive(6, w, scale=0.5)))
    last = np.concatenate([positive(w, 1), -positive(w, 1)], 1)
    y = b.affine(b.op("ReduceMean", h, [1], keepdims=0), last / np.float32(8))
    return sided("monotone", s, front, y, np.broadcast_to(turn[:, 0] < 0, (s.tokens, n)))


def bound(s: Sizes) -> Planted:
    """Any transformer, then a LayerNorm (|y₀| < √(d−1)) or a softmax over values: below that there is nothing."""
    b = Builder((s.tokens, s.width), s.opset)
    h = transformer(b, s, b.affine("x", s.weights(s.width, s.width)))
    if s.norm:
        y = layer_norm(b, b.op("Mul", h, 4.0), np.ones(s.width), np.zeros(s.width), s.spelled)
        y, least = b.op("MatMul", y, np.eye(s.width, 2) * [1, 0]), -math.sqrt(s.width - 1)
    else:
        known = single(s.rng.uniform(-1, 1, (s.width, 1)))
        y = b.op("MatMul", b.op("Softmax", b.op("Mul", h, 4.0), axis=-1), np.concatenate([known, 0 * known], 1))
        least = float(known.min())
    centre = np.round(s.rng.normal(size=(s.tokens, s.width)) * 64) / 64
    distance = DISTANCES[s.seed % len(DISTANCES)]
    rows = [[({0: Fraction(1), 1: Fraction(-1)}, Fraction(least - distance * max(1.0, abs(least))))]]
    boxes, facts = [(centre - 0.125, centre + 0.125)], {"minimum": least, "distance": distance}
    return finish(s, "bound", b.model(y, 2), boxes, rows, truth="unsat", outputs=2, **facts)


# Grids ---------------------------------------------------------------------------------------------------------------


def grid(s: Sizes) -> Planted:
    """The least margin of a torch model on a grid, and a limit 5e-2 or 1e-2 above it: sat, by the grid's own point."""
    s.activation = "relu"
    net = Whole(s).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.from_numpy(s.rng.normal(size=p.shape) * (1.2 if p.dim() > 1 else 0.4) / math.sqrt(s.width)))
    n = int(s.rng.integers(2, 5))
    places = s.rng.permutation(s.width)[:n]  # of the token that is read
    centre = np.round(s.rng.normal(size=(s.tokens, s.width)) * 64) / 64
    radius = np.zeros_like(centre)
    radius[0, places] = 0.5
    steps = {2: 65, 3: 17, 4: 9}[n]
    ticks = np.stack(np.meshgrid(*[np.linspace(-0.5, 0.5, steps)] * n, indexing="ij"), -1).reshape(-1, n)
    points = np.repeat(centre[None], len(ticks), 0)
    points[:, 0, places] += ticks
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = net(torch.from_numpy(points).float()).double().numpy()
        torch.onnx.export(
            net,
            (torch.zeros(1, s.tokens, s.width),),
            cast(Any, file),
            input_names=["x"],
            dynamo=False,
            opset_version=17,
        )
    margin = y[:, 0] - y[:, 1]
    above = (5e-2, 1e-2)[s.seed % 2]
    rows = [[({0: Fraction(1), 1: Fraction(-1)}, Fraction(float(margin.min() + above)))]]
    spot, boxes = points[margin.argmin()].astype(np.float32), [(centre - radius, centre + radius)]
    facts = {"outputs": 3, "perturbed": n, "range": float(np.ptp(margin)), "above": above}
    return finish(s, "grid", file.getvalue(), boxes, rows, truth="sat", witness=spot, **facts)


def planted(kind: str, depth: int, norm: bool, seed: int) -> Planted:
    """The instance of these four; always the same one."""
    rng = np.random.default_rng([KINDS.index(kind), depth, int(norm), seed])
    s = Sizes(rng, depth, norm, seed)
    makers = {"hull": hull, "zero": zero, "monotone": monotone, "bound": bound, "grid": grid}
    return bump(kind, s) if kind in BUMPS else makers[kind](s)
