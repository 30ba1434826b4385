"""How much memory the bounds may use, and how work is divided so that it fits."""

from __future__ import annotations

import dataclasses
import math

import torch

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph.ir import Constant, Graph
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.softmax import AT_ONCE, MOST_TABLE_NUMBERS
from vertex_softmax.ops.triples import size

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory limits of a computation of bounds.

    A backward pass holds the coefficients of at most `chunk` objectives at once. Besides these, memory is needed for:
    - every set of boxes: for each input of the batch an interval of each node (as many numbers as there are
      activations);
    - the relaxations over a set of boxes: for each attention two tables of heads × rows × keys² numbers, or none if
      that is more than MOST_TABLE_NUMBERS (ops/softmax.py);
    - once: the affine forms of the nodes that are affine in the input
      (numbers × inputs, at most MOST_FORM_NUMBERS each);
    - `joint`: for one attention at a time the generators of queries, keys and values (numbers × columns), at most
      MOST_GENERATOR_NUMBERS for each node and input; fewer inputs are bounded at a time so that all of them together
      have no more;
    - zonotopes (docs/norms.md): as many numbers for a node at most, and about 14 arrays of that size at once.

    `hybrid` holds three sets of boxes, `joint` four.
    """

    bytes: int | None = None
    """bytes of a chunk's coefficients; None: 32 MiB on a CPU, where a chunk should stay near the cache, and 4 GiB on a
    GPU"""
    copies: int = 8
    """about how many arrays of a chunk's size are alive at once, at most"""
    total: int | None = None
    """Bytes that a run may take beyond what the process holds before it; None: no limit. To stay below it, fewer inputs
    are bounded together; products of the input's unknowns (docs/norms.md) are left out if they may take more than a
    quarter of it; branch and bound keeps parts in at most a quarter of it; and what may need more for one input alone
    is refused before it is computed (NotEnoughMemoryError). `vertex verify --memory` gives the bounds what its limit
    leaves once the files are read (docs/scale.md)."""

    def __post_init__(self) -> None:
        for name in ("bytes", "total"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} is {value}; give at least one byte, or None")

    def chunk(self, per_objective: int, device: torch.device) -> int:
        """How many objectives are bounded in one chunk, at least one, if each takes so many bytes."""
        return max(1, self.limit(device) // max(1, self.copies * per_objective))

    def limit(self, device: torch.device) -> int:
        """How many bytes the arrays of a chunk may take together."""
        return self.bytes or (1 << 25 if device.type == "cpu" else 1 << 32)

    def most_inputs(self, need: int, once: int) -> int | None:
        """How many inputs fit if each needs `need` bytes and all share `once` bytes; None if there is no limit."""
        return None if self.total is None else max(0, (self.total - once) // max(1, need))

    def refusal(self, what: str, need: int) -> str:
        """The sentence that refuses a computation that may need `need` bytes; empty if it fits in `total`."""
        if self.total is None or need <= self.total:
            return ""
        more = math.ceil(100 * (need - self.total) / GIB) / 100
        return (
            f"{what} may need {need / GIB:.2f} GiB, and the memory limit leaves {self.total / GIB:.2f}: "
            f"give {more:.2f} GiB more"
        )

    def for_parts(self, asked: int) -> int:
        """How many bytes branch and bound may keep parts in: `asked`, or less if `total` requires it."""
        return asked if self.total is None else max(1, min(asked, self.total // 4))

    def most_pairs(self, item: int) -> int:
        """How many coefficients of products of the input's unknowns a node may have, each of `item` bytes."""
        if self.total is None:
            return MOST_PAIR_NUMBERS
        return min(MOST_PAIR_NUMBERS, self.total // (4 * PAIR_ARRAYS * item))


def needed(graph: Graph, item: int, *, sets: int, linear: bool, tables: bool) -> int:
    """How many bytes one input may need: `sets` of boxes, coefficients of one objective, and tables of softmax rows.

    An estimate from above: it exceeds what was measured (lab/benchmarks/limits.py), by up to a few times.
    """
    nodes = graph.nodes()
    total = (20 + 4 * sets) * sum(math.prod(node.shape) for node in nodes)
    attentions = [node for node in nodes if isinstance(node.op, Attention)]
    rows = [math.prod(node.inputs[0].shape) * node.inputs[0].shape[-1] for node in attentions]
    if rows and linear:
        total += 16 * max(math.prod(node.inputs[0].shape) * node.inputs[1].shape[-1] for node in attentions)
    if rows and tables:
        kept = [size for size in rows if size <= MOST_TABLE_NUMBERS]
        made = max(AT_ONCE["cpu"], *(node.inputs[0].shape[-1] ** 2 for node in attentions))
        total += ROW_TABLES * min(max(rows), made) + 2 * (sets + 1) * sum(kept) + 3 * max(kept, default=0)
    return item * total


def needed_once(graph: Graph, item: int, chunk: int) -> int:
    """How many bytes a run may need once: a chunk of objectives with all arrays made from it, and affine forms."""
    inputs, known = math.prod(graph.input.shape), {graph.input}
    for node in graph.nodes():
        if node.op.affine and all(i in known or isinstance(i.op, Constant) for i in node.inputs):
            known.add(node)
    feeding = {i for node in graph.nodes() if not node.op.affine for i in node.inputs if i in known}
    forms = [math.prod(node.shape) * max(inputs, math.prod(node.shape)) for node in feeding]
    return 2 * chunk + item * 2 * sum(size for size in forms if size <= MOST_FORM_NUMBERS)


ROW_TABLES = 14
"""How many arrays of a table's size are alive while the linear bounds of some rows of a softmax are made."""
LEAST = 1 << 25
"""Bytes that any run may take, for buffers of libraries and objects of Python."""
MOST_FORM_NUMBERS = 1 << 26
"""Affine forms are made of nodes whose size times the number of inputs is at most this (half a GiB in float64)."""


MOST_GENERATOR_NUMBERS = 1 << 25
"""A node's generators have at most this many numbers for each input (a quarter GiB in float64)."""

MOST_START_NUMBERS = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Zonotopes are made only if for every node that is affine in the input, its size times the number of input numbers
that vary is at most this."""

MOST_PAIR_NUMBERS = 1 << 26
"""Products of the input's unknowns are kept only if no node has more coefficients of them, for one input (half a
GiB)."""

PAIR_ARRAYS = 9
"""How many arrays of the size of a node's products are alive at once, at most (measured: 7.4)."""


def pair_numbers(graph: Graph, varying: int) -> int:
    """How many coefficients of products of two unknowns the largest node has, for one input.

    `varying`: how many numbers of the input vary.
    """
    return varying * (varying - 1) // 2 * max(math.prod(node.shape) for node in graph.nodes())


def triple_numbers(graph: Graph, varying: int) -> int:
    """How many coefficients of products of three unknowns the largest node has, for one input; see `pair_numbers`."""
    return size(varying) * max(math.prod(node.shape) for node in graph.nodes())
