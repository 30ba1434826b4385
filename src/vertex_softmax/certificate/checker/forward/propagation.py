"""The forward proof of a network: the form of every node from those of its inputs, from the input to the output.

Invariant: for every input of the set each node is in its form, with the same unknowns in all of them, and in its box.
A number whose form is not finite, or says less than the box that is known, is taken from the box. Forms are dropped
when nothing reads them any more; boxes are met into what is known, and the forms of the output and of what the
last norm reads (last_norm.py) are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..file import Rejected
from ..rounding import MORE, Array, ProvedInterval, rounding
from . import affine, attention, curves, norms, products
from .choices import Choices
from .ellipsoids import around, with_error
from .forms import (
    CROSS,
    FIRST,
    LINES,
    PAIRS,
    SQUARES,
    Bools,
    Form,
    chosen,
    constant,
    image,
    joined,
    lengths,
    of_box,
    total,
)

if TYPE_CHECKING:
    from ..input_sets import CheckedSet
    from ..network import Known

MOST_PAIRS = 1 << 26
"""Products of the input's unknowns are kept if no node has more coefficients of them than this."""
MOST_UNKNOWNS = 2000
"""Nor if there are more unknowns than this."""
MOST_NUMBERS = 1 << 25
"""The most coefficients of a node, but for those of products."""
SLOTS = 16
"""How many keys of blocks a node has for itself."""


def start(given: CheckedSet) -> Form:
    """The input: of a box one unknown for each number that varies, else the balls of the set (../unknowns.py)."""
    if given.balls:
        return _of_balls(given)
    middle, reach = _ranges(given.box)
    live = np.flatnonzero(reach)
    columns = np.zeros((len(live), middle.size))
    columns[np.arange(len(live)), live] = reach.ravel()[live]
    zero = np.zeros_like(middle)
    blocks = {LINES: columns.reshape(len(live), 1, *middle.shape)} if len(live) else {}
    return Form(centre=middle, blocks=blocks, own=zero, slack=zero)


def _of_balls(given: CheckedSet) -> Form:
    """The input as centre + balls: all numbers of the columns stand for themselves."""
    shape, n = given.lower.shape, given.lower.size
    widest = max(len(ball.places) for ball in given.balls)
    if n * max(n, len(given.balls) * widest) > MOST_NUMBERS:
        raise Rejected("the balls of the input set have too many numbers for a forward proof")
    every = given.columns(np.eye(n)).T  # products with 0 and 1: exact; (P, n)
    blocks: dict[int, Array] = {}
    for key, norm in ((LINES, 2), (CROSS, 1)):
        places = [ball.places for ball in given.balls if ball.norm == norm]
        most = max(map(len, places), default=0)
        columns = np.zeros((len(places), most, n))
        for k, at in enumerate(places):
            columns[k, : len(at)] = every[at]
        if places:
            blocks[key] = columns.reshape(*columns.shape[:2], *shape)
    return Form(
        centre=given.centre.reshape(shape), blocks=blocks, own=np.zeros(shape), slack=given.slack.reshape(shape)
    )


def _ranges(box: ProvedInterval) -> tuple[Array, Array]:
    """The middle and the reach of a box; a number that does not vary has a reach of 0, exactly."""
    fixed, middle = box.lo == box.hi, box.middle()
    middle = np.where(fixed, box.lo, middle)
    return middle, np.where(fixed, 0.0, box.reach(middle))


def run(known: Known, choices: Choices) -> Form:
    """Prove a box for every node, meet it into what is known, and return the form of the output."""
    nodes = known.nodes
    left = Counter(i for node in nodes for i in node.inputs)
    read = _read_by_curves(known)
    count = _unknowns(known)
    norm = last_norm(known)
    forms: dict[int, Form] = {}
    for number, node in enumerate(nodes):
        known.reach(number)
        _charge(known, number, forms, count)
        found = start(known.given) if number == 0 else _propagated(known, number, forms, count, choices)
        if node.op not in ("Input", "Move"):
            found = _within(found, known.boxes[number], choices, number)
        forms[number] = reduced(found, FIRST + SLOTS * number + SLOTS - 1, shared=left[number] > 1)
        if node.op not in ("Input", "Move"):
            _meet(known, number, forms[number], tight=number in read or number == len(nodes) - 1)
        elif node.op == "Move":
            known.boxes[number] = known.image(number).meet(known.boxes[number])
        if number == norm:
            known.before_norm = (number, forms[node.inputs[0]])
        for i in node.inputs:
            left[i] -= 1
            if left[i] == 0:
                del forms[i]
    return forms[len(nodes) - 1]


def lowest(form: Form, A: Array) -> Array:
    """Lower bounds of Σ A·node over a form, (S, *shape) → (S,)."""
    flat = A.reshape(len(A), -1)
    dims, size = form.centre.ndim, np.abs(flat)
    found = image(
        form,
        lambda x: x.reshape(*x.shape[: x.ndim - dims], -1) @ flat.T,
        lambda x: x.reshape(*x.shape[: x.ndim - dims], -1) @ size.T,
        flat.shape[1] + 2,
    )
    return found.box().lo


def work(form: Form, objectives: int) -> int:
    """The work of `lowest` for so many objectives, in multiplications, roughly."""
    columns = sum(x.shape[0] * x.shape[1] for x in form.blocks.values()) + 8
    return int(objectives * (form.centre.size * columns + 8 * form.count**3))


def last_norm(known: Known) -> int | None:
    """The norm of which the output is an affine function; None if there is none, or if it depends on more."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting = [len(known.nodes) - 1]
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        node = known.nodes[number]
        if node.op in ("Add", "Scale", "Linear", "Move"):
            waiting.extend(node.inputs)
        elif node.op != "Constant":
            found.add(number)
    norm = max(found, default=0)
    return norm if len(found) == 1 and known.nodes[norm].op == "Normalize" else None


def _unknowns(known: Known) -> int:
    """How many unknowns the input has if products of them are kept, else 0: those in balls have none."""
    if known.given.balls:
        return 0
    n = int(np.count_nonzero(_ranges(known.boxes[0])[1]))
    most = max(int(np.prod(node.shape)) for node in known.nodes)
    return n if 2 <= n <= MOST_UNKNOWNS and n * (n - 1) // 2 * most <= MOST_PAIRS else 0


def _read_by_curves(known: Known) -> set[int]:
    """The nodes that an op reads which is not affine, itself or moved: their boxes are worth some work."""
    found: set[int] = set()
    for number in range(len(known.nodes) - 1, -1, -1):
        node = known.nodes[number]
        bends = node.op not in ("Input", "Constant", "Add", "Scale", "Linear", "Move")
        if bends or (node.op == "Move" and number in found):
            found.update(node.inputs)
    return found


def _charge(known: Known, number: int, forms: dict[int, Form], count: int) -> None:
    """Count the work of a node, in multiplications, roughly."""
    node = known.nodes[number]
    size = int(np.prod(node.shape))
    inner = node.shape[-1] if node.shape else 1
    if node.op in ("Linear", "MatMul", "Attention"):
        inner = max(inner, known.nodes[node.inputs[0]].shape[-1])
    columns = sum(x.shape[0] * x.shape[1] for i in node.inputs for x in forms[i].blocks.values()) + 8
    pairs = size * (count**3 * 8 + count * count * inner)
    known.charge(size * columns * 4 * inner + size * inner * inner * 8 + pairs)


def _propagated(known: Known, number: int, forms: dict[int, Form], count: int, choices: Choices) -> Form:
    """The form of a node."""
    node = known.nodes[number]
    op, x, key = node.op, [forms[i] for i in node.inputs], FIRST + SLOTS * number

    def pick(name: str, better: Bools) -> Bools:
        return choices.pick(number, name, better)

    if op == "Constant":
        value = node.arrays["value"]
        return constant(value, np.abs(value) * norms.STORED * MORE)
    if op == "Move":
        return affine.moved(x, node.arrays["index"])
    if op == "Add":
        return total(x[0], x[1])
    if op == "Scale":
        return affine.scaled(x[0], node.arrays["factor"])
    if op == "Linear":
        return affine.linear(x[0], node.arrays["weight"], key, pick)
    if op == "MatMul":
        return products.matrix_product(x[0], x[1], count, pick)
    if op == "Multiply":
        return products.element_product(x[0], x[1], count, key, pick)
    if op == "Normalize":
        return norms.normalized(x[0], node.eps, count, key, pick)
    if op == "Attention":
        return _attended(known, number, x, count, key, choices)
    box = known.boxes[node.inputs[0]]
    lines = None if op == "Relu" else choices.lines(number, box)
    return curves.curved(x[0], op, box, lines, count, key, pick)


def _attended(known: Known, number: int, x: list[Form], count: int, key: int, choices: Choices) -> Form:
    """Rows of attention; those that cannot be expanded are taken from the box."""
    node = known.nodes[number]
    visible = ~node.arrays["mask"] if "mask" in node.arrays else np.ones(x[0].centre.shape, dtype=bool)
    found, useful = attention.attended(
        x[0], visible, x[1], count, key, lambda name, better: choices.pick(number, name, better)
    )
    if "penalty" in node.arrays:  # see rows.negligible
        known.softmax_rows(number)
        lost = rounding(1) * x[1].size.sum(-2, keepdims=True) * (1 + rounding(x[1].centre.shape[-2]))
        found = replace(found, slack=(found.slack + lost) * MORE)
    return chosen(useful[..., None], found, of_box(known.boxes[number]))


def _within(found: Form, box: ProvedInterval, choices: Choices, number: int) -> Form:
    """With the numbers taken from the box that are not finite, or off by more than the box without the blocks."""
    finite = np.isfinite(found.centre) & np.isfinite(found.rough)
    reach = box.reach(box.middle())
    better = finite & ((found.loose <= reach) | ~np.isfinite(reach))
    keep = choices.pick(number, "kept form", better) & finite
    return chosen(keep, found, of_box(box))


def _meet(known: Known, number: int, found: Form, *, tight: bool) -> None:
    """Meet the box of a form into what is known of its node."""
    box = found.box() if tight else ProvedInterval(found.centre) + ProvedInterval(-found.rough, found.rough)
    old = known.boxes[number]
    met = ProvedInterval(np.fmax(old.lo, box.lo), np.fmin(old.hi, box.hi))
    if not (met.lo <= met.hi).all():
        if not known.within:
            raise Rejected(f"node {number}: what was proved of it contradicts itself")
        met = met.ordered()  # of what cuts leave of a set, which may be nothing
    known.boxes[number] = met
    known.forget(number)


def reduced(form: Form, key: int, *, shared: bool) -> Form:
    """With the blocks that reach least taken together, one ball for each row, where there are too many coefficients.

    If that is not enough, they become errors of each number. `shared`: several nodes read it.
    """
    whole = form.numbers
    if whole <= (MOST_NUMBERS * 3 // 4 if shared else MOST_NUMBERS):
        return form
    reach = {k: float(lengths(x).sum()) for k, x in form.blocks.items() if k not in (LINES, CROSS, SQUARES, PAIRS)}
    size = form.centre.size
    few = form.centre.ndim > 1 and size * size <= MOST_NUMBERS // 4
    taken: list[int] = []
    for k in sorted(reach, key=lambda each: reach[each]):
        if whole + few * size * size <= MOST_NUMBERS // 2:
            break
        whole -= form.blocks[k].size
        taken.append(k)
    zero = np.zeros_like(form.slack)
    old = Form(centre=zero, blocks={k: form.blocks[k] for k in taken}, own=zero, slack=zero)
    rest = replace(form, blocks={k: x for k, x in form.blocks.items() if k not in taken})
    if few:
        return with_error(rest, [around(old)], key)
    found = replace(rest, own=(rest.own + old.rough) * MORE)
    return found if found.numbers <= MOST_NUMBERS else _without_lines(found)


def _without_lines(form: Form) -> Form:
    """All blocks as errors of each number."""
    return replace(form, blocks=joined(), own=(form.own + form.rough) * MORE)
