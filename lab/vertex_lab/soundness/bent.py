"""Small networks with exactly known answers that bounds of the whole set do not decide: branch and bound has to.

Invariant: the margin is Σ g(a) over heads that read numbers of their own. A head's a = Σ p·v, p the softmax of scores
that move alone and v values that move alone, takes every value from its least, at a vertex of the scores and with all
values at their lower ends, to its greatest; all vertices are tried. g(a) = s·a + Σ c·f(a − t) with f ReLU, GELU or tanh
is least at an end or a bend t, or, where f is smooth, where a fine search of one number finds it. So the least margin
is known. Lines under some f and over others leave a gap, which splits close.

`side` is at DISTANCES from 0, on either side. `deep` too, with one head on another: the first adds to the values of the
second, with weights above 0, so that all of it is least together. `hat` and `valley` are robust, at the same distances,
but for a hat that attacks do not find: a hat fills less than a millionth of the set; a valley lies at one corner, and
around it nothing leads there: only minimisers of bounds are near it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.ops.contract import Op
from vertex_softmax.ops.elementwise import Gelu, Relu, Tanh
from vertex_softmax.sets import Box

KINDS = ("side", "hat", "valley", "deep")
DISTANCES = (1e-1, 1e-2, 1e-3, 1e-5)
"""Of the least margin from 0, as a share of how far the margin ranges."""
BENDS = 3
"""Of each head."""
STEEP = 256.0
"""A hat is 0 where an entry is a 256th of its radius away."""
NEAR = 0.1
"""How far from its corner the lowest point of a valley is, as a share of the radius, in every entry."""
SEEN = 500
"""Points at which what is claimed is compared with the network."""
TURNS = ("relu", "relu", "relu", "relu", "gelu", "relu", "relu", "relu", "relu", "relu", "tanh")
"""The functions in turn: curves take most of the time, and hardly any splits."""
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Op]]] = {
    "relu": (torch.relu, Relu),
    "gelu": (functional.gelu, Gelu),
    "tanh": (torch.tanh, Tanh),
}


@dataclasses.dataclass
class Head:
    """One head and its g: a = softmax(sharp · x[:, 0]) · (values + x[:, 1]), g(a) = slope·a + Σ c·f(steep·(a − t)).

    On another head its values have `share` (tokens) times the other's a more.
    """

    sharp: float
    values: Tensor
    """(tokens)"""
    share: Tensor
    """(tokens), above 0"""
    lowest: float = 0.0
    highest: float = 0.0
    """the ends of a over the box"""
    slope: float = 0.0
    steep: float = 1.0
    weights: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(BENDS, dtype=torch.float64))
    bends: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(BENDS, dtype=torch.float64))

    def read(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """a (batch) of the head's own numbers (batch, tokens, 2), and of another head's a (batch), if it is on one."""
        values = self.values + x[..., 1] + (0 if other is None else other[..., None] * self.share)
        return ((self.sharp * x[..., 0]).softmax(-1) * values).sum(-1)

    def bent(self, a: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """g(a), of the same shape."""
        return self.slope * a + (f(self.steep * (a[..., None] - self.bends)) * self.weights).sum(-1)


class Bent(nn.Module):
    """x (batch, tokens, 2 · heads) → logits (batch, 3): the margin to class 1 is Σ g(a) + shift − height · hat."""

    def __init__(self, function: str, heads: list[Head], *, deep: bool) -> None:
        super().__init__()
        self.function, self.heads, self.deep = function, heads, deep
        self.shift, self.height, self.slope = 0.0, 0.0, 0.0
        self.spot, self.places = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.long)

    def read(self, x: Tensor) -> Tensor:
        """a (batch) of the second head, which is on the first."""
        return self.heads[1].read(x[..., 2:4], self.heads[0].read(x[..., :2]))

    def hat(self, x: Tensor) -> Tensor:
        """(batch): 1 at the spot, 0 where Σ|x − spot| over the places is at least 1 / slope."""
        far = (x.flatten(1)[:, self.places] - self.spot).abs().sum(-1)
        return torch.relu(1 - self.slope * far)

    def forward(self, x: Tensor) -> Tensor:
        """The logits; the label's is the first."""
        f = FUNCTIONS[self.function][0]
        if self.deep:
            each = [self.heads[1].bent(self.read(x), f)]
        else:
            each = [head.bent(head.read(x[..., 2 * i : 2 * i + 2]), f) for i, head in enumerate(self.heads)]
        y = torch.stack(each).sum(0) + self.shift
        if len(self.places):
            y = y - self.height * self.hat(x)
        return torch.stack([y, torch.zeros_like(y), torch.zeros_like(y) - 1], -1)


def graph_of(net: Bent, tokens: int) -> Graph:
    """The same network as the package has it, node by node; it is compared with the module when it is made."""
    width = 2 * len(net.heads)
    x = build.source((tokens, width))

    def times(a: Node, c: float | Tensor) -> Node:
        return build.multiply(a, build.constant(torch.as_tensor(c, dtype=torch.float64)), "times")

    def plus(a: Node, c: float | Tensor) -> Node:
        return build.add(a, build.constant(torch.as_tensor(c, dtype=torch.float64)), "plus")

    def bent(a: Node, op: Op) -> Node:
        return build.apply(op, a, name=type(op).__name__)

    parts, a = list[Node](), x
    for i, head in enumerate(net.heads):
        scores = build.reshape(times(build.select(x, 1, 2 * i, "score"), head.sharp), (1, tokens), "scores")
        value = plus(build.select(x, 1, 2 * i + 1, "value"), head.values)
        if net.deep and i:
            value = build.add(value, build.affine(a, head.share[:, None], None, "share"), "more")
        values = build.reshape(value, (tokens, 1), "values")
        a = build.reshape(build.matmul(build.softmax(scores, -1, "rows"), values, "read"), (1,), "a")
        if net.deep and not i:
            continue
        wide = build.affine(
            a, torch.full((BENDS, 1), head.steep, dtype=torch.float64), -head.steep * head.bends, "wide"
        )
        folds = build.affine(bent(wide, FUNCTIONS[net.function][1]()), head.weights[None], None, "folds")
        parts.append(build.add(times(a, head.slope), folds, "g"))
    y = parts[0] if len(parts) == 1 else build.add(parts[0], parts[1], "sum")
    y = plus(y, net.shift)
    if len(net.places):
        off = plus(build.take(build.reshape(x, (tokens * width,), "numbers"), 0, net.places, "places"), -net.spot)
        far = build.add(bent(off, Relu()), bent(build.negate(off, "other way"), Relu()), "far")
        inner = plus(times(build.total(far, (0,), True, "distance"), -net.slope), 1.0)
        y = build.subtract(y, times(bent(inner, Relu()), net.height), "hatted")
    ends = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)
    return simplify(Graph(x, build.affine(y, torch.eye(3, 1, dtype=torch.float64), ends, "logits")))


@dataclasses.dataclass(frozen=True)
class Instance:
    """One network and the truth about its margin over a box; label 0."""

    name: str
    module: Bent
    graph: Graph
    box: Box
    robust: bool
    least: float
    """the least margin; of a hat or a valley the margin of the witness, which is no less than that"""
    witness: Tensor
    """(1, tokens, width) of the box: its margin is `least`, to rounding"""
    facts: dict[str, object]


def bent(kind: str, seed: int) -> Instance:
    """The instance of these two; always the same one."""
    generator = torch.Generator().manual_seed(1_000_003 * KINDS.index(kind) + seed)

    def draw(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    deep = kind == "deep"
    tokens, heads, radius = 2 + draw(2), 2 if deep else 1 + draw(2), (0.1, 0.2, 0.4, 0.8)[draw(4)]
    function = TURNS[seed % len(TURNS)]
    centre = torch.randn(1, tokens, 2 * heads, generator=generator, dtype=torch.float64) / 2
    box = Box(centre - radius, centre + radius)
    made = [
        Head((-8.0, -2.0, 2.0, 8.0)[draw(4)], *torch.rand(2, tokens, generator=generator, dtype=torch.float64))
        for _ in range(heads)
    ]
    module = Bent(function, made, deep=deep).eval()
    witness, least, spread = centre.clone(), 0.0, 0.0
    if deep:
        ends = _ends_of_two(made, box.lower[0], box.upper[0])
        witness[0], least, high = _bend(made[1], function, module.read, ends, generator)
        spread = high - least
    for i, head in enumerate([] if deep else made):
        own = slice(2 * i, 2 * i + 2)
        ends = _ends(head, box.lower[0, :, own], box.upper[0, :, own])
        witness[0, :, own], low, high = _bend(head, function, head.read, ends, generator)
        least, spread = least + low, spread + high - low
    witness = torch.minimum(torch.maximum(witness, box.lower), box.upper)
    distance = DISTANCES[seed % len(DISTANCES)] * spread
    robust = kind in ("hat", "valley") or seed // len(DISTANCES) % 2 == 0
    module.shift = (distance if robust else -distance) - least
    claimed = least + module.shift
    if kind in ("hat", "valley"):
        robust, witness = False, _hatted(kind, module, box, spread, generator)
        with torch.no_grad():
            outputs = module(witness)[0]
        claimed = float(outputs[0] - outputs[1])
    facts: dict[str, object] = {"function": function, "heads": heads, "tokens": tokens, "radius": radius}
    found = Instance(f"{kind}-{seed}", module, graph_of(module, tokens), box, robust, claimed, witness, facts)
    _check(found, distance)
    return found


def names(seeds: int, first: int = 0) -> list[str]:
    """KIND-SEED: a side and a deep one for every seed, and for one of five each a hat and a valley."""
    return [
        f"{kind}-{seed}"
        for seed in range(first, first + seeds)
        for kind, turn in (("side", seed % 5), ("deep", seed % 5), ("hat", 1), ("valley", 3))
        if seed % 5 == turn
    ]


Ends = tuple[Tensor, Tensor]


def _ends(head: Head, lower: Tensor, upper: Tensor, other: Ends | None = None) -> Ends:
    """Where in its box (tokens, 2) a head's a is least and greatest; `other`: the ends of the other head's a, (1,)."""
    found = []
    for k, values in enumerate((lower[:, 1], upper[:, 1])):
        choices = itertools.product(*zip(lower[:, 0].tolist(), upper[:, 0].tolist(), strict=True))
        corners = torch.tensor(list(choices), dtype=torch.float64)
        points = torch.stack([corners, values.expand(len(corners), -1)], -1)
        a = head.read(points, None if other is None else other[k].expand(len(corners)))
        found.append(points[a.argmax() if k else a.argmin()])
    return found[0], found[1]


def _ends_of_two(heads: list[Head], lower: Tensor, upper: Tensor) -> Ends:
    """The same of a head on another, both in their box (tokens, 4)."""
    first = _ends(heads[0], lower[:, :2], upper[:, :2])
    inner = heads[0].read(first[0][None]), heads[0].read(first[1][None])
    second = _ends(heads[1], lower[:, 2:], upper[:, 2:], inner)
    return torch.cat([first[0], second[0]], -1), torch.cat([first[1], second[1]], -1)


def _bend(
    head: Head, function: str, read: Callable[[Tensor], Tensor], ends: Ends, generator: torch.Generator
) -> tuple[Tensor, float, float]:
    """Give a head its g; where on the way between the ends of a that is least, and its least and greatest value.

    read: a (batch) of numbers (batch, tokens, …), those of `ends`.
    """
    head.lowest, head.highest = (float(read(end[None])) for end in ends)
    reach = max(head.highest - head.lowest, 1e-6)
    shares = (0.1 + 0.8 * torch.rand(BENDS, generator=generator, dtype=torch.float64)).sort().values
    head.bends = head.lowest + reach * shares
    head.weights = torch.randn(BENDS, generator=generator, dtype=torch.float64)
    head.slope = float(torch.randn(1, generator=generator, dtype=torch.float64))
    if function != "relu":
        head.steep = 4 / reach
        head.weights = head.weights * reach / 4
    f = FUNCTIONS[function][0]
    grid = torch.cat([torch.linspace(head.lowest, head.highest, 4001, dtype=torch.float64), head.bends])
    values = head.bent(grid, f)
    best, low, high = float(grid[values.argmin()]), float(values.min()), float(values.max())
    if function != "relu":  # around the least value of the grid the function has one bottom
        left, right = max(best - reach / 4000, head.lowest), min(best + reach / 4000, head.highest)
        fine = torch.linspace(left, right, 4001, dtype=torch.float64)
        best, low = float(fine[head.bent(fine, f).argmin()]), min(low, float(head.bent(fine, f).min()))
    left, right = 0.0, 1.0  # along the way between the two ends a takes every value
    for _ in range(60):
        middle = (left + right) / 2
        less = float(read((ends[0] + middle * (ends[1] - ends[0]))[None])) < best
        left, right = (middle, right) if less else (left, middle)
    between = ends[0] + left * (ends[1] - ends[0])
    return ends[0] if best <= head.lowest else ends[1] if best >= head.highest else between, low, high


def _hatted(kind: str, module: Bent, box: Box, spread: float, generator: torch.Generator) -> Tensor:
    """Put a hat or a valley on a robust network; the point where it is lowest, (1, tokens, width)."""
    low, high = box.lower.flatten(), box.upper.flatten()
    radius = float((high - low).min()) / 2
    if kind == "hat":
        places = torch.randperm(len(low), generator=generator)[:4].sort().values
        t = 0.1 + 0.8 * torch.rand(len(places), generator=generator, dtype=torch.float64)
        slope = STEEP / radius
    else:
        places = torch.arange(len(low))
        up = torch.rand(len(low), generator=generator) < 0.5
        t = torch.where(up, 1 - NEAR / 2, NEAR / 2).double()
        slope = 0.75 / (NEAR * radius * len(places))
    witness = box.centre.clone()
    witness.view(-1)[places] = spot = low[places] + t * (high - low)[places]
    with torch.no_grad():
        before = module(witness)[0]
    module.height = float(before[0] - before[1]) + 0.25 * spread
    module.places, module.spot, module.slope = places, spot, slope
    return witness


def _check(made: Instance, distance: float) -> None:
    """Nothing seen is below what is claimed, the witness has it, and the graph is the module."""
    box, module = made.box, made.module
    shares = torch.rand(SEEN, *box.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares[::2] = shares[::2].round()
    points = torch.cat([box.lower + shares * (box.upper - box.lower), made.witness]).clamp(box.lower, box.upper)
    with torch.no_grad():
        y, graph = module(points), made.graph.evaluate(points)
        seen = y[:, 0] - y[:, 1] + (module.height * module.hat(points) if len(module.places) else 0)
    claimed = distance if len(module.places) else made.least
    if float((graph - y).abs().max()) > 1e-10:
        raise InternalError(f"{made.name}: the graph and the module are {float((graph - y).abs().max())} apart")
    if float(seen.min()) < claimed - 1e-9 or abs(float(y[-1, 0] - y[-1, 1]) - made.least) > 1e-9:
        raise InternalError(f"{made.name}: the least margin is not {claimed}: {float(seen.min())} was seen")
    if not bool(box.contains(made.witness).all()) or made.robust != (made.least > 0):
        raise InternalError(f"{made.name}: the witness is none")
