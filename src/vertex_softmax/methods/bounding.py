"""The methods that bound a network: how each makes its intermediate boxes and its final bounds.

Invariant: `lower_bounds` returns numbers that no input of the walk's set falls below, to rounding, or NaN.
- `ibp`: interval arithmetic alone.
- `crown`: linear bounds, softmax by its linear (LSE) bounds.
- `vertex`: linear bounds, and the exact score-box optimum at every attention (METHOD.md section 5, on the objective).
- `hybrid`: every intermediate box from both, and the better of the two per objective.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Memory, Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.errors import InvalidValueError
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.registry import Rules


@dataclasses.dataclass(frozen=True)
class Options:
    """The published variants, and the memory for coefficients. The defaults are tightest at one pass each."""

    scores: str = "pass"
    """Score boxes: pass (a backward pass per score) or interval (the product of the boxes of queries and keys)."""
    preactivations: str = "pass"
    """Boxes of other nonlinearities: pass, or interval (from the box of the residual stream before them)."""
    suffix: str = "adaptive"
    """Lower slopes of ReLUs in the last pass: adaptive, or best (of adaptive, 0 and 1, per objective)."""
    memory: Memory = dataclasses.field(default_factory=Memory)

    def __post_init__(self) -> None:
        choices = {
            "scores": ("pass", "interval"),
            "preactivations": ("pass", "interval"),
            "suffix": ("adaptive", "best"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InvalidValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(known)}")


METHODS: dict[str, tuple[str, ...]] = {"ibp": (), "crown": ("lse",), "vertex": ("vertex",), "hybrid": ("lse", "vertex")}
"""A method's attention rules; its bound is the best of theirs."""


def make_boxes(walk: Walk, rules: tuple[Rules, ...], options: Options) -> None:
    """All boxes of the walk, tightened by one backward pass per rule where a nonlinearity wants them."""

    def refine(walk: Walk, node: Node) -> None:
        kind = stage(walk, node)
        if (kind == "scores" and options.scores == "interval") or (
            kind == "pre-activations" and options.preactivations == "interval"
        ):
            return
        begin = time.perf_counter()
        for rule in rules if has_attention(walk, node) else rules[:1]:
            walk.tighten(node, walk.box_by_pass(node, dataclasses.replace(rule, exact=False)))
        walk.spent(kind, begin)

    walk.run(refine)


def lower_bounds(walk: Walk, objectives: Tensor, method: str, options: Options) -> Tensor:
    """Lower bounds of objectives (batch, S, *output shape) on the output, (batch, S)."""
    rules = tuple(Rules(attention=rule) for rule in METHODS[method])
    output = walk.graph.output
    if not rules:
        walk.run(lambda _walk, _node: None)
        lower, upper = (x.unsqueeze(1) for x in walk.boxes[output])
        return torch.where(objectives >= 0, objectives * lower, objectives * upper).flatten(2).sum(-1)
    make_boxes(walk, rules, options)
    begin = time.perf_counter()
    slopes = ("adaptive", "zero", "one") if options.suffix == "best" else ("adaptive",)
    found: Tensor | None = None
    for rule in rules if has_attention(walk, output) else rules[:1]:
        for relu in slopes:
            bound = walk.bound(output, Part(objectives), dataclasses.replace(rule, relu=relu))
            found = bound if found is None else torch.maximum(found, bound)
    walk.spent("objective", begin)
    return found if found is not None else torch.full(objectives.shape[:2], torch.nan)


def stage(walk: Walk, node: Node) -> str:
    """What a refined node is for: scores, values, or the input of another nonlinearity."""
    for user in walk.users(node):
        if user.op.stage and node in user.inputs:
            return "scores" if user.inputs[0] is node else "values"
    return "pre-activations"


def has_attention(walk: Walk, node: Node) -> bool:
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


Refine = Callable[[Walk, Node], None]
