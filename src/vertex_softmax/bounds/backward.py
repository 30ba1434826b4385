"""Linear bound propagation backward (CROWN): objectives on a node become linear bounds in the input, and those boxes.

Invariant: for every input x in the set, Σ A·node(x) ≥ the number returned for A, to rounding.

Every nonlinearity's input gets its box from its own backward pass, met with the interval forward; nothing ever widens.
The walk asks an op only for what registry.py promises.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.bounds.coefficients import Part, dense, diagonal_dimension, merge
from vertex_softmax.bounds.generate import generate
from vertex_softmax.bounds.interval import node_interval
from vertex_softmax.bounds.linear import Linear
from vertex_softmax.bounds.memory import MOST_FORM_NUMBERS, Memory
from vertex_softmax.foundation.errors import OutOfTimeError, UnsupportedModelError
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.registry import ROUNDING, AffineForm, Centred, Interval, Place, Rules, Step

CROSSING = {torch.float64: 1e-7, torch.float32: 1e-2}
"""Bounds that cross by more than this, relative to their size, are a fault and not rounding."""
HELD = ("at_least", "at_most")
"""Names of the multipliers, on a node, of its own box's two sides (`Walk.back`)."""
TARGETS = ("target_at_least", "target_at_most")
"""Names of what the coefficients on the node are to be, NaN where they may be anything: more multiplier, if need be."""


def require_dimensions(graph: Graph) -> None:
    """Raise unless every tensor that depends on the input has a dimension: bounds are of rows of numbers."""
    for node in graph.nodes():
        if not node.shape and not isinstance(node.op, Constant):
            what = {graph.input: "the input", graph.output: "the output"}.get(node, f"the tensor {node.name!r}")
            raise UnsupportedModelError(
                f"{what} of the network is a single number without dimensions; bounds need one: give it the shape "
                "(1,), by reshape, unsqueeze or keepdims"
            )


class Problem(NamedTuple):
    """Why no answer may be drawn from a walk, for some of its inputs."""

    node: Node
    where: Tensor
    """(batch,) bool"""
    text: str


class Walk:
    """Boxes of a graph's nodes over one input box, and the backward passes that make and use them."""

    def __init__(self, graph: Graph, lower: Tensor, upper: Tensor, *, memory: Memory | None = None) -> None:
        require_dimensions(graph)
        self.graph = graph
        self.memory: Memory = memory or Memory()
        self.nodes: list[Node] = graph.nodes()
        self.position: dict[Node, int] = {node: i for i, node in enumerate(self.nodes)}
        self.boxes: dict[Node, Interval] = {}
        self.refined: set[Node] = set()
        self.centred: dict[tuple[Node, Node], Centred] = {}
        self.generators: dict[Node, Generators] = {}
        self.tables: dict[Node, object] = {}
        self.inner: dict[Node, Interval] = {}
        """narrower boxes of what ops compute on the way (`Op.inner_box`)"""
        self._parallels: dict[Node, bool] = {}
        self._forms: dict[Node, AffineForm | None] = {}
        self._relaxed: dict[tuple[Node, Rules], object] = {}
        self._affine: set[Node] = set()
        self.start: Node = _first(graph, self.nodes)
        box = Interval(lower, upper)
        self.boxes[graph.input] = box
        self._affine.add(graph.input)
        for node in self.nodes:
            if node.op.affine and all(i in self._affine or isinstance(i.op, Constant) for i in node.inputs):
                self._affine.add(node)
        self._users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for i in node.inputs:
                self._users[i].append(node)
        self.problems: list[Problem] = []
        self.known: list[dict[Node, Interval]] = []
        self.seconds: dict[str, float] = {}
        self.deadline: float | None = None
        """on time.perf_counter's clock: a backward pass that is still under way then raises OutOfTimeError"""
        self.batch: int = lower.shape[0]
        self.dtype: torch.dtype = lower.dtype
        self.device: torch.device = lower.device

    def interval(self, node: Node) -> Interval:
        """The node's box by interval arithmetic from its inputs' boxes, all of which are known; rounded outward."""
        return node_interval(node, self.boxes)

    def run(self, refine: Callable[[Walk, Node], None]) -> None:
        """Boxes of all nodes in order; `refine` is called on every node that a nonlinearity wants a tight box of."""
        for node in self.nodes:
            if node is not self.graph.input:
                self.boxes[node] = self.interval(node)
                for other in self.known:
                    self.tighten(node, other[node])
            found = self.boxes[node]
            self._note_crossing(node, found, found)
            self.boxes[node] = found.meet(found)  # ends that rounding crossed are a point to the ops that follow
            wanted = any(node in _needed(user) for user in self.users(node))
            if wanted and not isinstance(node.op, Constant) and node is not self.graph.input:
                refine(self, node)
            self._inspect(node)

    def _inspect(self, node: Node) -> None:
        """Note every input whose box here is not finite."""
        for text, test in (("NaN", torch.isnan), ("infinite", torch.isinf)):
            bad = (test(self.boxes[node].lower) | test(self.boxes[node].upper)).flatten(1).any(1)
            if bool(bad.any()):
                self.problems.append(Problem(node, bad.expand(self.batch), f"the bounds are {text}"))

    def _note_crossing(self, node: Node, old: Interval, new: Interval) -> None:
        """Note every input for which two boxes of a node, or the ends of one, cross by more than rounding."""
        gap = torch.maximum(old.lower, new.lower) - torch.minimum(old.upper, new.upper)
        size = torch.maximum(torch.maximum(old.lower.abs(), old.upper.abs()), torch.ones_like(gap))
        crossed = (gap > CROSSING[self.dtype] * size).flatten(1).any(1)
        if bool(crossed.any()):
            text = f"two bounds cross by {float(gap.max()):.3g}, more than rounding can"
            self.problems.append(Problem(node, crossed.expand(self.batch), text))

    def spent(self, stage: str, begin: float) -> None:
        """Add the time since `begin` to a stage; the empty name is nobody's."""
        if stage:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin

    def again(self) -> Walk:
        """A new walk over the same set that knows nothing yet."""
        lower, upper = self.boxes[self.graph.input]
        other = Walk(self.graph, lower, upper, memory=self.memory)
        other.deadline = self.deadline
        return other

    def start_from(self, other: Walk) -> None:
        """Take over the boxes that another walk over the same set found."""
        self.known.append(other.boxes)

    def account(self, other: Walk) -> None:
        """Take over the problems and the times of another walk over the same set."""
        self.problems += other.problems
        for stage, seconds in other.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def above(self, node: Node) -> list[Node]:
        """The node and all that it is made of, in order."""
        seen: set[Node] = set()
        stack = [node]
        while stack:
            at = stack.pop()
            if at not in seen:
                seen.add(at)
                stack.extend(at.inputs)
        return [at for at in self.nodes if at in seen]

    def users(self, node: Node) -> list[Node]:
        """The nodes that take this one."""
        return self._users[node]

    def tighten(self, node: Node, box: Interval) -> None:
        """Meet a node's box with another sound one; what was relaxed over the old box is made anew when asked for."""
        old = self.boxes[node]
        self._note_crossing(node, old, box)
        self.boxes[node] = old.meet(box)
        for user in self.users(node):
            self._forget(user)

    def box_by_pass(
        self, node: Node, rules: Rules, *, everywhere: bool = False, weights: Tensor | None = None
    ) -> Interval:
        """The node's box by a backward pass with every entry that some op wants tighter, and its negative.

        With weights ω (batch, *shape): the box of each entry less the mean of its row by ω.
        """
        if weights is None:
            lower, upper = (x.expand(self.batch, *node.shape).clone() for x in self.boxes[node])
        else:
            lower, upper = (torch.full_like(weights, end) for end in (-torch.inf, torch.inf))
        open_ = self._undecided(node)
        if everywhere:
            open_ = torch.ones_like(open_)
        keep = diagonal_dimension(node.shape)
        for rows, unit in self.units_along(node, keep, open_):
            A = unit if weights is None else unit - unit.sum(-1, keepdim=True) * weights.unsqueeze(1)
            both = torch.cat([A, -A], 1)
            found = self.bound(node, Part(both, keep), rules, outward=True)  # (batch, 2 S · n)
            low, high = _placed(found, rows, keep, node.shape)
            lower, upper = _write(lower, upper, low, high, rows, keep, node.shape)
        return Interval(lower, upper)

    def generates(self, node: Node) -> bool:
        """Does a user want this node's generators?"""
        return any(
            node in [user.inputs[i] for i in user.op.generated()]
            for user in self.users(node)
            if not (user.op.uses_forms and node in self._affine)
        )

    def centre(self, node: Node, rules: Rules) -> None:
        """Bound the rows of a node less their means, for every user that has weights for them."""
        for user in self.users(node):
            weights = user.op.reference(user.inputs.index(node), self.boxes[node])
            if weights is not None:
                box = self.box_by_pass(node, rules, everywhere=True, weights=weights)
                self._note_crossing(node, box, box)
                if bool(box.lower.isfinite().all() & box.upper.isfinite().all()):
                    self.centred[node, user] = Centred(weights, box.meet(box))
                    self._forget(user)

    def forget(self) -> None:
        """Drop every relaxation: boxes were changed by hand."""
        self._relaxed.clear()

    def _forget(self, node: Node) -> None:
        for key in [key for key in self._relaxed if key[0] is node]:
            del self._relaxed[key]

    def _undecided(self, node: Node) -> Tensor:
        """Which entries some user wants tighter, (*shape) bool, over the whole batch."""
        box = self.boxes[node]
        wanted = torch.zeros(node.shape, dtype=torch.bool, device=self.device)
        for user in self.users(node):
            for i in user.op.needs():
                if user.inputs[i] is node:
                    mask = user.op.undecided(i, box)
                    wanted |= torch.ones_like(wanted) if mask is None else mask.any(0)
        return wanted

    def units_along(
        self, node: Node, keep: int | None, wanted: Tensor, signs: int = 2
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunks of unit objectives: (flat positions among the kept-out dimensions, A (1, S, *shape))."""
        shape = list(node.shape)
        n = 1 if keep is None else shape[keep]
        if keep is not None:
            shape[keep] = 1
            wanted = wanted.any(keep, keepdim=True)
        rows = wanted.reshape(-1).nonzero().squeeze(-1)
        widest = max(math.prod(other.shape) for other in self.nodes[: self.position[node] + 1])
        size = self.memory.chunk(signs * self.batch * n * widest * self.dtype.itemsize, self.device)
        for part in rows.split(size):
            A = torch.zeros(1, len(part), math.prod(shape), dtype=self.dtype, device=self.device)
            A[0, torch.arange(len(part), device=self.device), part] = 1
            yield part, A.reshape(1, len(part), *shape).expand(self.batch, -1, *node.shape)

    def units(self, node: Node) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunks of unit objectives on the entries that some user wants tighter: positions, A (batch, S, *shape)."""
        return self.units_along(node, None, self._undecided(node))

    def bound(
        self,
        node: Node,
        part: Part,
        rules: Rules,
        chosen: Mapping[Node, Mapping[str, Tensor]] | None = None,
        *,
        outward: bool = False,
    ) -> Tensor:
        """The least value of each objective on a node over the input set, (batch, S) or (batch, S · n).

        `chosen`: values of the free parameters of some ops' relaxations, per objective. `outward`: less what the pass
        may have rounded (ROUNDING).
        """
        outward = outward and ROUNDING[self.dtype] > 0
        back = self.back(node, part, rules, chosen, sizes=outward)
        total, form = back.constant, back.coefficients
        if outward and back.size is not None:
            total = total - ROUNDING[self.dtype] * back.size
        box = self.boxes[self.start]
        centre, radius = box.centre.flatten(1).unsqueeze(-1), box.radius.flatten(1).unsqueeze(-1)
        if form is None:
            return _number(total)
        flat = form.flatten(2)
        return _number(total + (flat @ centre).squeeze(-1) - (flat.abs() @ radius).squeeze(-1))

    def linear(
        self, node: Node, part: Part, rules: Rules, chosen: Mapping[Node, Mapping[str, Tensor]] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Constant (batch, S) and coefficients (batch, S, *shape of the start) of the linear lower bounds."""
        found = self.back(node, part, rules, chosen)
        return found.constant, found.coefficients

    def back(
        self,
        node: Node,
        part: Part,
        rules: Rules,
        chosen: Mapping[Node, Mapping[str, Tensor]] | None = None,
        columns: int = 0,
        watch: Callable[[Node, Part, Step], None] | None = None,
        sizes: bool = False,
    ) -> Linear:
        """From a node back to the start; what `linear` is made of, and under parallel rules the errors.

        `chosen` may name multipliers β, γ ≥ 0 of the two sides of a node's box too: what is sought is at least what it
        is less β·(z − l) and γ·(u − z), wherever the box holds. Where the box was cut by hand, this is how the cut is
        felt further back. With a target (TARGETS) they grow until the coefficient on z is no more (for β), or no less
        (for γ), than that.

        `columns`: how much noise to keep apart. `watch` sees every step of an op that is not affine.
        """
        waiting: dict[Node, list[Part]] = {node: [part]}
        n = 1 if part.keep is None else part.A.shape[2 + part.keep]
        found = Linear(torch.zeros(part.A.shape[0], part.A.shape[1] * n, dtype=self.dtype, device=self.device))
        for at in reversed(self.nodes[: self.position[node] + 1]):
            parts = waiting.pop(at, None)
            if parts is None:
                continue
            if self.deadline is not None and time.perf_counter() > self.deadline:
                raise OutOfTimeError("the time is spent; what was found before it was is kept")
            if chosen is not None and HELD[0] in chosen.get(at, ()):
                least, most = found.held[at] = _multipliers(chosen[at], parts)
                box = self.boxes[at]
                parts.append(Part(most - least))
                found.add((least * box.lower.unsqueeze(1) - most * box.upper.unsqueeze(1)).flatten(2).sum(-1))
            if sizes:
                found.weigh(parts, self.boxes[at])
            if at is self.start:
                found.add(coefficients=dense(merge(parts)))
                continue
            if isinstance(at.op, Constant):
                found.add((dense(merge(parts)) * at.op.value).flatten(2).sum(-1))
                continue
            for piece in _pieces(at, parts):
                begin = time.perf_counter()
                relaxed = self.relaxed(at, rules)
                if chosen is not None and at in chosen:
                    own = {name: value for name, value in chosen[at].items() if name not in (*HELD, *TARGETS)}
                    relaxed = at.op.with_parameters(relaxed, own) if own else relaxed
                step = at.op.backward(piece.A, relaxed, piece.keep)
                self.spent(at.op.stage, begin)
                _hand_on(step, at, piece, waiting)
                if watch is not None and not at.op.affine:
                    watch(at, piece, step)
                found.add(step.constant, error=step.error)
                if step.noise is not None:
                    found.hear(dense(Part(step.noise, piece.keep)).flatten(2), columns)
                if step.start is not None:  # on the deviation from the centre
                    found.add(-(step.start @ self.boxes[self.start].centre.flatten(1).unsqueeze(-1)).squeeze(-1))
                    found.add(coefficients=step.start.reshape(*step.start.shape[:2], *self.start.shape))
        return found

    def generate(self, node: Node, rules: Rules) -> Generators | None:
        """Generators of every number of a node; None where some op has no parallel rule, or they are too many."""
        return generate(self, node, rules) if self._parallel(node) else None

    def _parallel(self, node: Node) -> bool:
        """Do all ops above a node have parallel rules?"""
        if node not in self._parallels:
            for at in self.above(node):
                op = at.op
                fine = op.affine or op.parallels or isinstance(op, Constant) or at is self.graph.input
                self._parallels[at] = fine and all(self._parallels[i] for i in at.inputs)
        return self._parallels[node]

    def relaxed(self, node: Node, rules: Rules) -> object:
        """What the node's backward rule needs, made once per boxes and rules."""
        if node.op.affine:
            return None
        key = (node, rules)
        if key not in self._relaxed:
            self._relaxed[key] = node.op.relax(self.place(node, rules))
        return self._relaxed[key]

    def place(self, node: Node, rules: Rules) -> Place:
        """What is known where an op stands."""
        boxes = tuple(self.boxes[i] for i in node.inputs)
        forms = tuple(lambda i=i: self.form(i) for i in node.inputs)
        centred = tuple(self.centred.get((i, node)) for i in node.inputs)
        return Place(boxes, forms, rules, centred, self._table(node), self.inner.get(node))

    def _table(self, node: Node) -> object:
        """What an op made of its inputs' generators; they are let go when nobody needs them any more."""
        wanted = [node.inputs[i] for i in node.op.generated()]
        if node not in self.tables and wanted and all(i in self.generators for i in wanted):
            given = tuple(self.generators[i] if i in wanted else None for i in node.inputs)
            self.tables[node] = node.op.table(given)
            for i in set(wanted):
                if all(
                    user in self.tables for user in self.users(i) if i in [user.inputs[k] for k in user.op.generated()]
                ):
                    del self.generators[i]
        return self.tables.get(node)

    def form(self, node: Node) -> AffineForm | None:
        """The node as an exact affine function of the start, if it is one and small enough to write down."""
        if node not in self._forms:
            self._forms[node] = self._make_form(node) if node in self._affine else None
        return self._forms[node]

    def _make_form(self, node: Node) -> AffineForm | None:
        size, inputs = math.prod(node.shape), math.prod(self.start.shape)
        if size * inputs > MOST_FORM_NUMBERS:
            return None
        eye = torch.eye(size, dtype=self.dtype, device=self.device).reshape(1, size, *node.shape)
        constant, matrix = self.linear(node, Part(eye), Rules())
        if matrix is None:
            return None
        matrix = matrix.reshape(size, inputs)
        box = self.boxes[self.start]
        centre = (box.centre.flatten(1) @ matrix.mT + constant).reshape(self.batch, *node.shape)
        return AffineForm(centre, matrix.reshape(*node.shape, inputs), box.radius.flatten(1))


def _multipliers(values: Mapping[str, Tensor], parts: list[Part]) -> tuple[Tensor, Tensor]:
    """β and γ ≥ 0 of a node's box, (batch, S, *shape): as given, and more where the coefficients miss their target."""
    least, most = (values[name].clamp(min=0) for name in HELD)
    if TARGETS[0] in values:
        now = dense(merge(parts)) + most - least
        least = least + (now - values[TARGETS[0]]).clamp(min=0).nan_to_num(nan=0.0, posinf=0.0)
        most = most + (values[TARGETS[1]] - now).clamp(min=0).nan_to_num(nan=0.0, posinf=0.0)
    return least, most


def _number(bound: Tensor) -> Tensor:
    """A lower bound of +inf is an overflow, and no bound."""
    return torch.where(bound == torch.inf, torch.full_like(bound, torch.nan), bound)


def _needed(user: Node) -> list[Node]:
    return [user.inputs[i] for i in user.op.needs()]


def _pieces(node: Node, parts: list[Part]) -> list[Part]:
    """Parts to send through an op: one by one if it is affine, else their sum; dense where the op asks for it."""
    pieces = parts if node.op.affine else [merge(parts)]
    if len(pieces) > 1:  # parts of one kind are one
        kinds = {part.keep for part in pieces}
        pieces = [merge([part for part in pieces if part.keep == kind]) for kind in kinds]
    return [
        part if part.keep is None or node.op.carries(part.keep, node.shape) is not None else Part(dense(part))
        for part in pieces
    ]


def _hand_on(step: Step, node: Node, piece: Part, waiting: dict[Node, list[Part]]) -> None:
    """A step's coefficients to the inputs."""
    kept = (None,) * len(node.inputs) if piece.keep is None else node.op.carries(piece.keep, node.shape)
    for i, A, keep in zip(node.inputs, step.coefficients, kept or (), strict=True):
        if A is not None:
            waiting.setdefault(i, []).append(Part(A, keep))


def _first(graph: Graph, nodes: list[Node]) -> Node:
    """The node to concretise at: the input, or what mere rearrangements of it lead to."""
    at = graph.input
    while True:
        users = [n for n in nodes if at in n.inputs]
        if len(users) != 1 or not users[0].op.rearranges:
            return at
        at = users[0]


def _placed(found: Tensor, rows: Tensor, keep: int | None, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(batch, 2 S · n) → lower and upper (batch, S, n)."""
    n = 1 if keep is None else shape[keep]
    both = found.reshape(found.shape[0], 2, len(rows), n)
    return both[:, 0], -both[:, 1]


def _write(
    lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, rows: Tensor, keep: int | None, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Put what was found where it belongs."""
    batch = lower.shape[0]
    n = 1 if keep is None else shape[keep]
    out = []
    for whole, part in ((lower, low), (upper, high)):
        moved = (whole if keep is None else whole.movedim(1 + keep, -1)).reshape(batch, -1, n)
        moved = moved.index_copy(1, rows, part)
        rest = [size for d, size in enumerate(shape) if d != keep]
        back = moved.reshape(batch, *rest, n) if keep is not None else moved.reshape(batch, *shape)
        out.append(back.movedim(-1, 1 + keep) if keep is not None else back)
    return out[0], out[1]
