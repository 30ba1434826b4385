"""The methods that bound a network: how each makes its intermediate boxes and its final bounds.

Invariant: `lower_bounds` returns numbers that no input of the walk's set falls below, to rounding, or NaN.
- `ibp`: interval arithmetic alone.
- `crown`: linear bounds, softmax by its linear (LSE) bounds.
- `alpha-crown`: the same boxes, and the free parameters of the last pass optimised.
- `vertex`: linear bounds, and the exact score-box optimum at every attention (METHOD.md section 5, on the objective).
- `hybrid`: at least `crown` and `vertex`, by construction: both run, their boxes are met and tightened by the affine
  vertex rule at its default slopes (section 7); over those boxes the best of all rules per objective.
- `joint`: at least `hybrid` and `alpha-crown`, by construction: the affine vertex rule throughout, over boxes with the
  tightenings of section 8, and the free parameters of the last pass optimised together.
- `bab`: at least `joint`; where that does not decide, branch and bound over its boxes (bounds/branch_and_bound.py).
"""

from __future__ import annotations

import dataclasses
import math
import time

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import Walk
from vertex_softmax.bounds.branch_and_bound import Search, branch_and_bound
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.bounds.generate import most_numbers
from vertex_softmax.bounds.memory import LEAST, MOST_GENERATOR_NUMBERS, Memory, needed, needed_once
from vertex_softmax.bounds.optimize import Ascent, ascended_box, optimized_bound
from vertex_softmax.bounds.slack import attained
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.ir import Graph, Node
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
    product: float = 0.5
    """The McCormick mix of products (`Rules.product`): 0.5 is best; 1 is what CROWN implementations take."""
    ascent: Ascent = dataclasses.field(default_factory=Ascent)
    """Of the free parameters of the last pass, where a method optimises them."""
    centred: bool = True
    """`joint`: bound the scores less their weighted mean too (METHOD.md section 3, and 8.4)."""
    generators: bool = True
    """`joint`: generators and ellipsoids of what is not affine in the input (METHOD.md section 8.2 and 8.3)."""
    pieces: int = 2
    """Of the affine vertex rule in the ascent: into how many parts the range of lse(s) is cut."""
    box_ascent: Ascent | None = None
    """`joint`: optimise the boxes of undecided pre-activations too; None: do not."""
    goal: float | None = None
    """Stop as soon as every bound is above this, or cannot be: 0 is enough for a verdict. None: the best bounds."""
    search: Search = dataclasses.field(default_factory=Search)
    """`bab`: how long to branch, for each input, and how."""
    batch: int | None = None
    """How many inputs to bound together; None: 16 on a CPU, 256 on a GPU, fewer where generators would be too large."""
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
        if self.pieces < 1:
            raise InvalidValueError(f"pieces is {self.pieces}; at least one is needed")
        if self.goal is not None and math.isnan(self.goal):
            raise InvalidValueError("goal is NaN; give a number, or None for the best bounds")
        if self.batch is not None and self.batch < 1:
            raise InvalidValueError(f"batch is {self.batch}; at least one input is bounded at a time")

    def together(self, graph: Graph, method: str, device: torch.device, dtype: torch.dtype = torch.float64) -> int:
        """How many inputs to bound together on a device, so that they fit into the memory if there is a limit."""
        size = self._together(graph, method, device)
        if self.memory.total is None:  # most often, and the estimate would be for nothing
            return size
        fitting = self.memory.most_inputs(*self._needed(graph, method, device, dtype))
        return size if fitting is None else min(size, fitting)

    def _needed(self, graph: Graph, method: str, device: torch.device, dtype: torch.dtype) -> tuple[int, int]:
        """Bytes for every input, and once."""
        names = _parts(method)
        rules = {rule for name in names for rule in (*METHODS[name].boxes, *METHODS[name].last)}
        walks = len({METHODS[name].boxes for name in names if METHODS[name].boxes}) + len(names) // 4
        need = needed(graph, dtype.itemsize, walks=walks, linear=bool(rules), tables=bool(rules & {"lse", "rows"}))
        if any(METHODS[name].tightened for name in names) and self.generators:
            need += GENERATED * dtype.itemsize * most_numbers(graph)
        once = LEAST + (self.search.memory if METHODS[method].branched else 0)
        if rules:
            once += needed_once(graph, dtype.itemsize, self.memory.limit(device))
        return need, once

    def _together(self, graph: Graph, method: str, device: torch.device) -> int:
        if METHODS[method].branched:
            return 1
        if self.batch is not None:
            return self.batch
        most = 16 if device.type == "cpu" else 256
        if METHODS[method].tightened and self.generators:
            room = MOST_GENERATOR_NUMBERS if device.type == "cpu" else 16 * MOST_GENERATOR_NUMBERS
            return max(1, min(most, room // max(1, most_numbers(graph))))
        return most


@dataclasses.dataclass(frozen=True)
class Method:
    """Attention rules (ops/attention.py): one backward pass each, the best of them counts."""

    parts: tuple[str, ...] = ()
    """methods that run too: their boxes are met, and the bound is never below theirs"""
    boxes: tuple[str, ...] = ()
    """for the intermediate boxes"""
    last: tuple[str, ...] = ()
    """for the objective; none: intervals only"""
    optimised: tuple[str, ...] = ()
    """for the objective, with their free parameters optimised"""
    tightened: bool = False
    """boxes with all that METHOD.md section 8 has, as far as the options allow"""
    branched: bool = False
    """what the parts do not decide is split; its own rules are those of the first part"""


METHODS: dict[str, Method] = {
    "ibp": Method(),
    "crown": Method(boxes=("lse",), last=("lse",)),
    "alpha-crown": Method(boxes=("lse",), last=("lse",), optimised=("lse",)),
    "vertex": Method(boxes=("vertex",), last=("vertex",)),
    "hybrid": Method(("crown", "vertex"), ("affine",), ("lse", "vertex", "affine", "rows")),
    "joint": Method(("hybrid", "alpha-crown"), ("affine",), ("affine", "vertex"), ("affine",), tightened=True),
    "bab": Method(("joint",), branched=True),
}


GENERATED = 6
"""How many arrays of the size of a node's generators are alive at once: queries, keys, values, and copies."""


def _parts(method: str) -> set[str]:
    """The method and all that it is made of."""
    return {method}.union(*(_parts(part) for part in METHODS[method].parts))


def make_boxes(walk: Walk, rules: tuple[str, ...], options: Options, tightened: bool = False) -> None:
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
            _refine(walk, at, kind, rules, options, tightened=tightened, everywhere=at is not node)
        if at is not node:
            for later in walk.nodes[walk.position[at] + 1 : walk.position[node] + 1]:
                walk.tighten(later, walk.interval(later))
        walk.spent(kind, begin)

    walk.run(refine)


def _refine(
    walk: Walk, node: Node, kind: str, rules: tuple[str, ...], options: Options, *, tightened: bool, everywhere: bool
) -> None:
    """Tighten one node's box, by its generators if it is to have them, else by a pass per rule."""
    mixed = has_attention(walk, node)
    if tightened and options.generators and walk.generates(node):
        found = walk.generate(node, Rules(attention="affine", exact=False))
        if found is not None:
            found = walk.generators[node] = found.within(walk.boxes[node])
            walk.tighten(node, found.box())
            return
    if not mixed:  # without an attention on the way all rules are one, and a part has done it
        rules = () if walk.known else rules[:1]
    for rule in rules:
        walk.tighten(
            node,
            walk.box_by_pass(node, Rules(attention=rule, product=options.product, exact=False), everywhere=everywhere),
        )
    if tightened and options.centred:
        walk.centre(node, Rules(attention=rules[0] if rules else "affine", exact=False))
    if tightened and options.box_ascent is not None and mixed and kind == "pre-activations":
        walk.tighten(node, ascended_box(walk, node, Rules(attention="affine"), options.box_ascent))


def lower_bounds(walk: Walk, objectives: Tensor, method: str, options: Options) -> Tensor:
    """Lower bounds of objectives (batch, S, *output shape) on the output, (batch, S)."""
    how, output = METHODS[method], walk.graph.output
    if how.branched:
        return _branched(walk, objectives, how.parts[0], options)
    if not how.last:
        walk.run(lambda _walk, _node: None)
        return _by_box(walk, output, objectives)
    return _Run(walk, objectives, method, options).bound(method)


def _by_box(walk: Walk, output: Node, objectives: Tensor) -> Tensor:
    """Lower bounds of objectives (batch, S, *output shape) over the output's box, (batch, S)."""
    lower, upper = (x.unsqueeze(1) for x in walk.boxes[output])
    return torch.where(objectives >= 0, objectives * lower, objectives * upper).flatten(2).sum(-1)


def _branched(walk: Walk, objectives: Tensor, method: str, options: Options) -> Tensor:
    """The method's bounds, and for what is not above the goal (0 if there is none) those of branch and bound."""
    goal = 0.0 if options.goal is None else options.goal
    run = _Run(walk, objectives, method, options)
    known = run.bound(method)
    if walk.batch != 1 or walk.problems or bool((known > goal).all()) or bool(run.hopeless.any()):
        return known
    rules = Rules(attention=METHODS[method].optimised[0], pieces=options.pieces, product=options.product)
    goals = torch.full_like(known[0], goal)
    found = branch_and_bound(run.best_walk(method), objectives[0], rules, options.search, known=known[0], goals=goals)
    return found.bound.unsqueeze(0)


class _Run:
    """The walks and bounds of the methods that one method is made of; each is made once."""

    def __init__(self, walk: Walk, objectives: Tensor, method: str, options: Options) -> None:
        self.whole, self.objectives, self.options = walk, objectives, options
        self.top = METHODS[method]
        self.output = walk.graph.output
        self.walks: dict[tuple[object, ...], Walk] = {}
        self.bounds: dict[str, Tensor] = {}
        self.hopeless = torch.zeros(walk.batch, dtype=torch.bool, device=walk.device)
        """inputs with an objective that is known not to reach the goal everywhere"""

    def bound(self, method: str) -> Tensor:
        """The method's bounds, at least those of its parts."""
        how, goal = METHODS[method], self.options.goal
        if method not in self.bounds:
            first: Tensor | None = None
            if goal is not None and how.parts and how is self.top:  # its own walk first; all the rest if that is not it
                alone = dataclasses.replace(how, parts=())
                first = self._own(alone, self._walk(alone))
                if bool((first > goal).all(1).logical_or(self.hopeless).all()):
                    return first
            best = _larger(first, self._own(how, self._walk(how)))
            for part in how.parts:
                best = _larger(best, self.bound(part))
            self.bounds[method] = best
        return self.bounds[method]

    def best_walk(self, method: str) -> Walk:
        """The walk with the method's boxes."""
        return self._walk(METHODS[method])

    def _walk(self, how: Method) -> Walk:
        """A walk with the method's boxes, met with those of its parts."""
        key = (how.parts, how.boxes, how.tightened)
        if key not in self.walks:
            mine = how.boxes == self.top.boxes and how.tightened == self.top.tightened
            walk = self.whole if mine and self.whole not in self.walks.values() else self.whole.again()
            for part in how.parts:
                walk.start_from(self._walk(METHODS[part]))
            make_boxes(walk, how.boxes, self.options, how.tightened)
            self.walks[key] = walk
            if walk is not self.whole:
                self.whole.account(walk)
        return self.walks[key]

    def _own(self, how: Method, walk: Walk) -> Tensor:
        """The best of the method's own rules over a walk."""
        begin = time.perf_counter()
        options, mixed = self.options, has_attention(walk, self.output)
        found: Tensor | None = None
        slopes = ("adaptive", "zero", "one") if options.suffix == "best" else ("adaptive",)
        for rule in how.last if mixed else how.last[:1]:
            for relu in slopes:
                bound = walk.bound(
                    self.output,
                    Part(self.objectives),
                    Rules(attention=rule, relu=relu, product=options.product, sums=True),
                )
                found = _larger(found, bound)
        if how.parts:  # at least what intervals give, which is more where a network only grows or is saturated
            by_box = _by_box(walk, self.output, self.objectives)
            found = _larger(found, by_box.where(by_box.isfinite(), -torch.inf))
        optimised = how.last if options.suffix == "optimised" else how.optimised
        for rule in optimised if mixed else optimised[:1]:
            rules = Rules(attention=rule, pieces=options.pieces, product=options.product)
            found = _larger(found, self._ascended(walk, rules, found))
        self.whole.spent("objective", begin)
        if found is None:
            raise InvalidValueError(f"{how} has no rule for the objective")
        return found

    def _ascended(self, walk: Walk, rules: Rules, found: Tensor | None) -> Tensor | None:
        """The bounds after the ascent; none if all are above the goal already."""
        goal = self.options.goal
        if goal is not None and found is not None and bool((found > goal).all()):
            return None
        ceiling = None
        if goal is not None:
            ceiling = attained(walk, self.output, self.objectives, rules)
            self.hopeless |= (ceiling <= goal).any(1)
        return optimized_bound(
            walk, self.output, self.objectives, rules, self.options.ascent, known=found, goal=goal, ceiling=ceiling
        )


def _larger(found: Tensor | None, other: Tensor | None) -> Tensor:
    """The larger of two bounds, if there are two; NaN if one is, so that it is not overlooked."""
    if found is None or other is None:
        only = other if found is None else found
        if only is None:
            raise InvalidValueError("no bound was made")
        return only
    return torch.maximum(found, other)


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


def has_attention(walk: Walk, node: Node) -> bool:
    """Does a backward pass from this node meet an attention?"""
    return any(at.op.stage for at in walk.above(node))
