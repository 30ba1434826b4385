"""Whole networks: what is left of the values of several nodes at once, at points of the input set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_lab.fuzz.directions.attack import TOLERANCE, Outcome, finite_numbers
from vertex_lab.fuzz.directions.families import Values, known_part, products_at
from vertex_lab.fuzz.directions.membership import Sums, crude_direction, sums, worst_direction
from vertex_softmax.bounds import zonotopes
from vertex_softmax.bounds.boxes import by_intervals
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops import elementwise
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.unknowns import InputUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.sets.region import BoxRegion

ACTIVATIONS: dict[str, elementwise.Elementwise | None] = {
    "relu": elementwise.Relu(),
    "gelu": elementwise.Gelu(),
    "gelu tanh": elementwise.Gelu(tanh=True),
    "silu": elementwise.Silu(),
    "tanh": elementwise.Tanh(),
    "sigmoid": elementwise.Sigmoid(),
    "exp": elementwise.Exp(),
    "none": None,
}
MOST_NUMBERS = 150
"""of the nodes that are looked at together"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A transformer, an input set, and how its zonotopes are made smaller."""

    depth: int
    heads: int
    tokens: int
    width: int
    inputs: int
    norm: str
    eps: float
    activation: str
    gated: bool
    mask: str
    fused: bool
    gain: float
    scale: float
    radius: float
    still: float
    """the share of input numbers that do not vary"""
    batch: int
    dtype: torch.dtype
    merge: int
    """zonotopes of more numbers are merged; 0: none"""
    products: bool


def plan(generator: torch.Generator) -> Plan:
    """One of many."""

    def index(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    def one(options: Sequence[float]) -> float:
        return options[index(len(options))]

    heads = int(one([1, 1, 2]))
    single = one([0, 0, 0, 0, 0, 1]) == 1
    return Plan(
        depth=int(one([1, 1, 2, 2, 3])),
        heads=heads,
        tokens=int(one([1, 2, 3, 4])),
        width=heads * int(one([1, 2, 3, 4])),
        inputs=int(one([1, 2, 3])),
        norm=["none", "pre", "pre", "post", "rms"][index(5)],
        eps=one([0, 1e-12, 1e-5, 1e-3, 1, 100]),
        activation=list(ACTIVATIONS)[index(len(ACTIVATIONS))],
        gated=one([0, 0, 1]) == 1,
        mask=["none", "none", "causal", "padding"][index(4)],
        fused=one([1, 1, 1, 0]) == 1,
        gain=one([0, 0.3, 1, 1, 2, 4, 8]),
        scale=one([1, 1, 1, 1e-8, 1e6] if single else [1, 1, 1, 1, 1e-150, 1e-80, 1e-30, 1e30, 1e75]),
        radius=one([0, 1e-8, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.1, 0.3, 0.6, 1.5, 6]),
        still=one([0, 0, 0, 0.5, 0.8]),
        batch=int(one([1, 1, 2])),
        dtype=torch.float32 if single else torch.float64,
        merge=int(one([0, 0, 0, 60, 200, 800])),
        products=one([1, 1, 1, 0]) == 1,
    )


class Maker:
    """Draws weights and joins nodes."""

    def __init__(self, drawn: Plan, generator: torch.Generator) -> None:
        self.plan, self.generator, self.count = drawn, generator, 0

    def _name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}_{self.count}"

    def _draw(self, *dims: int) -> Tensor:
        return torch.randn(*dims, generator=self.generator, dtype=torch.float64).to(self.plan.dtype).double()

    def _linear(self, x: Node, out: int, gain: float = 1.0) -> Node:
        width = x.shape[-1]
        weight = gain * self._draw(out, width) / math.sqrt(width)
        return build.affine(x, weight, 0.3 * self._draw(out) * self._bias(), self._name("linear"))

    def _bias(self) -> float:
        return 1.0 if self.plan.norm in ("pre", "post", "rms") and self.count > 6 else self.plan.scale

    def _norm(self, x: Node) -> Node:
        eps = self.plan.eps * (self.plan.scale**2 if self.plan.scale < 1 else 1.0)
        inner = x if self.plan.norm == "rms" else build.centre(x, (-1,), self._name("centre"))
        x = build.normalize(inner, (-1,), eps, self._name("norm"))
        return build.multiply(x, build.constant(1 + 0.2 * self._draw(x.shape[-1])), self._name("scale"))

    def _heads(self, x: Node) -> Node:
        split = build.reshape(x, (x.shape[0], self.plan.heads, -1), self._name("split"))
        return build.permute(split, (1, 0, 2), self._name("heads"))

    def _attention(self, x: Node) -> Node:
        width, plan_ = x.shape[-1], self.plan
        normal = plan_.norm in ("pre", "rms")
        gain = plan_.gain if normal or plan_.scale == 1 else plan_.gain / plan_.scale
        q, k = (self._heads(self._linear(x, width, g)) for g in (gain, plan_.gain if normal else gain))
        v = self._heads(self._linear(x, width))
        scores = build.matmul(q, build.transpose(k, -2, -1, self._name("keys")), self._name("scores"))
        factor = torch.tensor((width // plan_.heads) ** -0.5, dtype=torch.float64)
        scores = build.multiply(scores, build.constant(factor), self._name("scaled"))
        tokens = x.shape[0]
        mask = None
        if plan_.mask == "causal":
            mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        elif plan_.mask == "padding" and tokens > 1:
            mask = torch.tensor([j == tokens - 1 for j in range(tokens)])
        if plan_.fused:
            out = build.apply(Attention(mask), scores, v, name=self._name("attention"))
        else:
            out = build.matmul(build.softmax(scores, -1, self._name("softmax"), mask), v, self._name("mix"))
        out = build.reshape(build.permute(out, (1, 0, 2), self._name("join")), (tokens, width), self._name("join"))
        return self._linear(out, width)

    def _mlp(self, x: Node) -> Node:
        op, hidden = ACTIVATIONS[self.plan.activation], self._linear(x, self.plan.width + 1)
        inner = hidden if op is None else build.apply(op, hidden, name=self._name("curve"))
        if self.plan.gated:
            inner = build.multiply(inner, self._linear(x, self.plan.width + 1), self._name("gate"))
        return self._linear(inner, x.shape[-1])

    def graph(self) -> Graph:
        """(tokens, inputs) → (3,)."""
        start = build.source((self.plan.tokens, self.plan.inputs))
        x = self._linear(start, self.plan.width)
        for _ in range(self.plan.depth):
            for part in (self._attention, self._mlp):
                inner = self._norm(x) if self.plan.norm in ("pre", "rms") else x
                x = build.add(x, part(inner), self._name("residual"))
                x = self._norm(x) if self.plan.norm == "post" else x
        return Graph(start, self._linear(build.mean(x, (0,), False, self._name("mean")), 3))


def all_zonotopes(graph: Graph, lower: Tensor, upper: Tensor, merge: int, products: bool) -> dict[Node, Zonotope]:
    """The zonotopes of all nodes, made as bounds/zonotopes.py makes them."""
    question = Question.over(graph, BoxRegion(lower, upper))
    start = zonotopes.input_zonotope(question.given, graph.input.name)
    found = {graph.input: zonotopes._with_products(start, question) if products else start}
    boxes = {graph.input: question.given.box}
    for node in graph.nodes():
        if node is graph.input:
            continue
        boxes[node] = by_intervals(node, boxes)
        made = zonotopes.propagated(node, found, boxes)
        if merge > 0:
            made = zonotopes.merged(made, merge * 3 // 4, f"ops before {node.name}")
            made = zonotopes.reduced(made, 2 * merge, f"less of {node.name}", rows=not isinstance(node.op, MatMul))
        found[node] = made
        boxes[node] = boxes[node].meet(made.tight_box)
    return {node: made.spread for node, made in found.items()}


def _input_set(drawn: Plan, generator: torch.Generator) -> Interval:
    shape = (drawn.batch, drawn.tokens, drawn.inputs)
    centre = torch.randn(shape, generator=generator, dtype=torch.float64)
    wide = drawn.radius * torch.rand(shape, generator=generator, dtype=torch.float64)
    wide = wide * (torch.rand(shape[1:], generator=generator, dtype=torch.float64) >= drawn.still)
    if drawn.batch > 1:
        wide[1] = wide[1] * 0.05
    ends = (drawn.scale * (centre - wide), drawn.scale * (centre + wide))
    return Interval(ends[0].to(drawn.dtype), ends[1].to(drawn.dtype))


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """Some nodes beside each other, for one input of the batch."""

    nodes: list[Node]
    claimed: list[Tensor]
    """(N) of each node"""
    errors: Sums
    more: Tensor
    """what rounding may take off, (N)"""


def _stack(found: dict[Node, Zonotope], nodes: Sequence[Node], known: set[Unknowns], b: int, size: Tensor) -> Stack:
    """Columns of the same unknowns in all of the nodes; own errors are of each node."""
    chosen = list(nodes)
    claimed = [finite_numbers(found[node])[b].flatten() for node in chosen]
    every = dict.fromkeys(u for node in chosen for u in found[node].blocks if u not in known)
    blocks = []
    for unknowns in every:
        lead = next(found[n].blocks[unknowns] for n in chosen if unknowns in found[n].blocks).shape[1:3]
        parts = [
            found[n].blocks[unknowns][b].double().flatten(2)[:, :, here]
            if unknowns in found[n].blocks
            else torch.zeros(*lead, int(here.sum()), dtype=torch.float64)
            for n, here in zip(chosen, claimed, strict=True)
        ]
        blocks.append(torch.cat(parts, 2))
    loose = torch.cat([found[n].loose[b].double().flatten()[here] for n, here in zip(chosen, claimed, strict=True)])
    share = TOLERANCE[found[chosen[0]].centre.dtype]
    more = torch.cat([size[chosen.index(n)].expand(int(here.sum())) for n, here in zip(chosen, claimed, strict=True)])
    return Stack(chosen, claimed, sums(blocks, loose + share * more), share * more)


def attack_network(seed: int, points: int = 6, rounds: int = 4) -> Outcome:
    """One random network by seed: each node by itself, and a few of them together."""
    generator = torch.Generator().manual_seed(seed)
    drawn = plan(generator)
    exact, box = Maker(drawn, generator).graph(), _input_set(drawn, generator)
    graph = exact.to(drawn.dtype)
    found = all_zonotopes(graph, box.lower, box.upper, drawn.merge, drawn.products)
    start = next(iter(found[graph.input].blocks))
    known: set[Unknowns] = {start}
    if isinstance(start, InputUnknowns):
        known |= {start.squares, start.pairs}
    count = found[graph.input].blocks[start].shape[1]
    same = dict(zip(exact.nodes(), graph.nodes(), strict=True))
    order = [node for node in graph.nodes() if node is not graph.input and found[node].blocks]
    worst, at = 0.0, ""
    with torch.no_grad():
        sizes = _sizes(found)
    plans: list[list[Node]] = [[node] for node in order if math.prod(node.shape) <= MOST_NUMBERS]
    for _ in range(4):
        some = [order[i] for i in torch.randperm(len(order), generator=generator).tolist()[:6]]
        plans.append(_limited(some))
    begin = int(torch.randint(max(len(order) - 8, 1), (), generator=generator))
    plans.append(_limited(order[begin : begin + 8]))
    picked = torch.randperm(len(plans), generator=generator).tolist()[:14]
    stacks = [
        (b, _stack(found, plans[i], known, b, torch.tensor([sizes[n] for n in plans[i]], dtype=torch.float64)))
        for i in picked if plans[i]
        for b in range(drawn.batch)
    ]  # fmt: skip
    base = torch.rand(points, drawn.batch, count, generator=generator, dtype=torch.float64) * 2 - 1
    base = torch.where(torch.rand(points, 1, 1, generator=generator) < 0.6, base.sign(), base)

    def left(xi: Tensor, b: int, stack: Stack) -> tuple[Tensor, Tensor, Tensor | None]:
        values: Values = {start: xi.unsqueeze(-1)}
        if isinstance(start, InputUnknowns):
            values.update(products_at(start, xi))
        x = known_part(found[graph.input], values)
        x = torch.maximum(torch.minimum(x, box.upper.double()), box.lower.double())
        true = {same[node]: value for node, value in exact.values(x[:, b]).items()}
        single = {} if drawn.dtype == torch.float64 else graph.values(x[:, b].detach().to(drawn.dtype))
        parts, whole, off = [], [], []
        for node, here in zip(stack.nodes, stack.claimed, strict=True):
            rest = true[node] - known_part(found[node], values)[:, b]
            parts.append(rest.flatten(1)[:, here])
            whole.append(true[node].flatten(1)[:, here])
            if single:  # what single precision makes of the network itself
                off.append((single[node].double() - true[node].detach()).abs().flatten(1)[:, here].amax(0))
        return torch.cat(parts, 1), torch.cat(whole, 1), 4 * torch.cat(off) if off else None

    looked = 0
    for b, stack in stacks:
        if stack.errors.loose.shape[0] == 0 or not bool(stack.more.isfinite().all()):
            continue
        looked += 1
        xi, length = base.clone(), 0.5
        for _ in range(rounds):
            xi = xi.detach().requires_grad_(True)
            residual, true, rounding = left(xi, b, stack)
            errors = stack.errors
            if rounding is not None:
                errors = dataclasses.replace(errors, loose=errors.loose + rounding.nan_to_num(torch.inf))
            fine = true.detach().isfinite().all(1)
            if not bool(fine.any()):
                break
            with torch.no_grad():
                eta, ratio = worst_direction(residual[fine], errors)
                other = crude_direction(residual[fine], errors)
                eta = torch.where((torch.arange(len(eta)) % 2 == 0).unsqueeze(1), eta, other)
            if float(ratio.max()) > worst:
                worst, at = float(ratio.max()), "+".join(node.name for node in stack.nodes)
            aim = (eta * residual[fine]).sum(1)
            if count == 0 or not residual.requires_grad:
                break
            (slope,) = torch.autograd.grad((aim / aim.detach().abs().clamp(min=1e-300)).sum(), xi)
            xi = (xi + length * slope.nan_to_num(0.0, 0.0, 0.0).sign()).clamp(-1, 1)
            length *= 0.6
    facts = {**{k: str(v) for k, v in dataclasses.asdict(drawn).items()}, "at": at, "looked": looked, "count": count}
    order_name = "second order" if isinstance(start, InputUnknowns) else "first order"
    return Outcome(f"network, {order_name}", worst, facts)


def _limited(nodes: Sequence[Node]) -> list[Node]:
    """As many nodes as have few numbers together."""
    found: list[Node] = []
    total = 0
    for node in nodes:
        size = math.prod(node.shape)
        if total + size <= MOST_NUMBERS:
            found.append(node)
            total += size
    return found


def _sizes(found: dict[Node, Zonotope]) -> dict[Node, float]:
    """How large the numbers are on the way to a node, for rounding: its own, and its inputs', but not through norms."""
    sizes: dict[Node, float] = {}
    for node, x in found.items():
        sizes[node] = float((x.centre.abs() + x.rough_radius).double().nan_to_num(0.0, 0.0, 0.0).amax())
    return sizes
