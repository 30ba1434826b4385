"""The methods that bound a network: how each makes its intermediate boxes and its final bounds.

Invariant: `lower_bounds` returns numbers that no input of the walk's set falls below, to rounding, or NaN.
- `ibp`: interval arithmetic alone.
- `crown`: linear bounds, softmax by its linear (LSE) bounds.
- `alpha-crown`: the same boxes, and the free parameters of the last pass optimised.
- `vertex`: linear bounds, and the exact score-box optimum at every attention (METHOD.md section 5, on the objective).
- `hybrid`: at least `crown` and `vertex`, by construction: both run, their boxes are met and tightened by the affine
  vertex rule at its default slopes (section 7); over those boxes the best of all rules per objective.
- `joint`: the same from `alpha-crown` and `vertex`, and the free parameters of the last pass optimised.
"""

from __future__ import annotations

import dataclasses
import time

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Memory, Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.bounds.optimize import Ascent, optimized_bound
from vertex_softmax.errors import InvalidValueError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import Rules


@dataclasses.dataclass(frozen=True)
class Options:
    """The published variants, and the memory for coefficients. The defaults are tightest at one pass each."""

    scores: str = "pass"
    """Score boxes: pass (a backward pass per score) or interval (the product of the boxes of queries and keys)."""
    preactivations: str = "pass"
    """Boxes of other nonlinearities: pass, or stream (by intervals from a passed box of the residual stream, H⁺)."""
    suffix: str = "adaptive"
    """Lower slopes of ReLUs in the last pass: adaptive, best (of adaptive, 0 and 1, per objective) or optimised."""
    ascent: Ascent = dataclasses.field(default_factory=Ascent)
    batch: int | None = None
    """How many inputs to bound together; None: 16 on a CPU, 256 on a GPU."""
    memory: Memory = dataclasses.field(default_factory=Memory)

    def __post_init__(self) -> None:
        choices = {
            "scores": ("pass", "interval"),
            "preactivations": ("pass", "stream"),
            "suffix": ("adaptive", "best", "optimised"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InvalidValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")
        if self.batch is not None and self.batch < 1:
            raise InvalidValueError(f"batch is {self.batch}; at least one input is bounded at a time")

    def together(self, device: torch.device) -> int:
        """How many inputs to bound together on a device."""
        return self.batch or (16 if device.type == "cpu" else 256)


@dataclasses.dataclass(frozen=True)
class Method:
    """Attention rules (ops/attention.py): one backward pass each, the best of them counts."""

    parts: tuple[str, ...] = ()
    """methods that run first: their boxes are met, and the bound is never below theirs"""
    boxes: tuple[str, ...] = ()
    """for the intermediate boxes"""
    last: tuple[str, ...] = ()
    """for the objective; none: intervals only"""
    optimised: tuple[str, ...] = ()
    """for the objective, with their free parameters optimised"""
    centred: bool = False
    """bound the scores less their mean too"""


METHODS: dict[str, Method] = {
    "ibp": Method(),
    "crown": Method(boxes=("lse",), last=("lse",)),
    "alpha-crown": Method(boxes=("lse",), last=("lse",), optimised=("lse",)),
    "vertex": Method(boxes=("vertex",), last=("vertex",)),
    "hybrid": Method(("crown", "vertex"), ("affine",), ("lse", "vertex", "affine", "rows")),
    "joint": Method(("alpha-crown", "vertex"), ("affine",), ("lse", "vertex", "affine", "rows"), ("lse", "affine")),
}


def make_boxes(walk: Walk, rules: tuple[str, ...], options: Options, centred: bool = False) -> None:
    """All boxes of the walk, tightened by one backward pass per rule where a nonlinearity wants them."""

    def refine(walk: Walk, node: Node) -> None:
        kind = stage(walk, node)
        if kind == "scores" and options.scores == "interval":
            return
        begin = time.perf_counter()
        stream = _stream(node) if kind == "pre-activations" and options.preactivations == "stream" else None
        at = node if stream is None else stream
        if at not in walk.refined:
            walk.refined.add(at)
            mixed = has_attention(at)  # without an attention on the way all rules are one, and a part has done it
            for rule in rules if mixed else (() if walk.known else rules[:1]):
                fast = Rules(attention=rule, exact=False)
                walk.tighten(at, walk.box_by_pass(at, fast, everywhere=at is not node))
                if kind == "scores" and centred:
                    walk.centre(at, fast)
        if at is not node:
            for later in walk.nodes[walk.position[at] + 1 : walk.position[node] + 1]:
                walk.tighten(later, walk.interval(later))
        walk.spent(kind, begin)

    walk.run(refine)


def lower_bounds(walk: Walk, objectives: Tensor, method: str, options: Options) -> Tensor:
    """Lower bounds of objectives (batch, S, *output shape) on the output, (batch, S)."""
    how, output = METHODS[method], walk.graph.output
    if not how.last:
        walk.run(lambda _walk, _node: None)
        lower, upper = (x.unsqueeze(1) for x in walk.boxes[output])
        return torch.where(objectives >= 0, objectives * lower, objectives * upper).flatten(2).sum(-1)
    found: Tensor | None = None
    for part in how.parts:
        first = walk.again()
        bound = lower_bounds(first, objectives, part, options)
        found = bound if found is None else torch.maximum(found, bound)
        walk.start_from(first)
    make_boxes(walk, how.boxes, options, how.centred)
    begin = time.perf_counter()
    slopes = ("adaptive", "zero", "one") if options.suffix == "best" else ("adaptive",)
    for rule in how.last if has_attention(output) else how.last[:1]:
        for relu in slopes:
            bound = walk.bound(output, Part(objectives), Rules(attention=rule, relu=relu))
            found = bound if found is None else torch.maximum(found, bound)
    optimised = how.last if options.suffix == "optimised" else how.optimised
    for rule in optimised if has_attention(output) else optimised[:1]:
        bound = optimized_bound(walk, output, objectives, Rules(attention=rule), options.ascent)
        found = bound if found is None else torch.maximum(found, bound)
    walk.spent("objective", begin)
    return found if found is not None else torch.full(objectives.shape[:2], torch.nan)


def stage(walk: Walk, node: Node) -> str:
    """What a refined node is for: scores, values, or the input of another nonlinearity."""
    for user in walk.users(node):
        if user.op.stage and node in user.inputs:
            return "scores" if user.inputs[0] is node else "values"
    return "pre-activations"


def _stream(node: Node) -> Node | None:
    """The nearest sum of two branches above a node, through affine ops of one input: H⁺; None if there is none."""
    at = node
    while at.op.affine and len(at.inputs) == 1:
        at = at.inputs[0]
    return at if at.op.affine and len(at.inputs) == 2 and at is not node else None


def has_attention(node: Node) -> bool:
    """Does a backward pass from this node meet an attention?"""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        if at.op.stage:
            return True
        stack.extend(at.inputs)
    return False
