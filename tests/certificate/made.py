"""Small networks of every op, certificates of them, and certificates written by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.bounds.networks import Config, transformer
from tests.certificate.exact import Array, Written, inside
from tests.certificate.packed import packed
from vertex_softmax.certificate import certificate, checker
from vertex_softmax.certificate.checker import ranges
from vertex_softmax.certificate.checker.file import FORMAT
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops import attention, elementwise, linear
from vertex_softmax.ops.rules import RowRule

torch.set_num_threads(1)


class Net(NamedTuple):
    """A graph and a box of its inputs."""

    graph: Graph
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


NETS: dict[str, Callable[[], Net]] = {}


def boxed(graph: Graph, radius: float, seed: int = 0) -> Net:
    """Around a random point; some numbers are known exactly."""
    chance = np.random.default_rng(seed)
    centre = chance.standard_normal(graph.input.shape)
    wide = radius * chance.random(centre.shape)
    wide.flat[0] = radius
    if wide.size > 2:
        wide.flat[-1] = 0.0
    return Net(graph, centre - wide, centre + wide)


def draw(*dims: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Transformers --------------------------------------------------------------------------------------------------------

CONFIGS = {
    "relu": (Config(), 0.1),
    "gelu, pre-norm, two heads": (Config(heads=2, norm="pre", activation="gelu", seed=1), 0.03),
    "gelu tanh, post-norm": (Config(norm="post", activation="gelu tanh", seed=2), 0.03),
    "silu gate, class token": (Config(activation="silu", gated=True, class_token=True, pooling="token", seed=3), 0.03),
    "causal mask": (Config(heads=2, mask="causal", activation="tanh", seed=4), 0.05),
    "padding mask, unfused": (Config(mask="padding", fused=False, seed=5), 0.05),
    "unfused": (Config(fused=False, seed=6), 0.05),
    "one token": (Config(tokens=1, norm="pre", seed=7), 0.1),
    "two blocks": (Config(depth=2, norm="pre", activation="gelu", tokens=2, seed=8), 0.01),
    "three blocks": (Config(depth=3, tokens=2, seed=9), 0.01),
    "peaked": (Config(gain=6.0, seed=10), 0.1),
    "a point": (Config(heads=2, norm="pre", activation="gelu", seed=11), 0.0),
    "nearly a point": (Config(norm="post", activation="silu", gated=True, seed=12), 1e-7),
}
for _name, (_config, _radius) in CONFIGS.items():
    NETS[_name] = functools.partial(
        lambda config, radius: boxed(transformer(config), radius, config.seed), _config, _radius
    )


# One op after another ------------------------------------------------------------------------------------------------

POSITIVE = {"Exp", "Log", "Sqrt", "Rsqrt", "Reciprocal"}
CURVED: dict[str, elementwise.Elementwise] = {
    "Relu": elementwise.Relu(),
    "Gelu": elementwise.Gelu(),
    "GeluTanh": elementwise.Gelu(tanh=True),
    "GeluTanhDouble": elementwise.Gelu(tanh=True, double=True),
    "GeluTanhSingle": elementwise.Gelu(tanh=True, single=True),
    **{
        name: getattr(elementwise, name)()
        for name in (
            "Silu", "Tanh", "Sigmoid", "Erf", "Exp", "Square", "Log", "Sqrt", "Rsqrt", "Reciprocal",
        )
    },
}  # fmt: skip


def curve(name: str, radius: float = 0.7) -> Net:
    """f of an affine map of the input, twice; where f wants it, of positive numbers."""
    start = build.source((3,))
    x = build.affine(start, draw(4, 3, seed=1, scale=0.6), draw(4, seed=2), "in")
    for step in range(2):
        if name in POSITIVE:  # between 1/2 and 3/2, then f
            x = build.add(build.apply(elementwise.Sigmoid(), x, name="squashed"), build.constant(0.5 * _one()), "up")
        x = build.apply(CURVED[name], x, name=f"f{step}")
        x = build.affine(x, draw(4, 4, seed=3 + step, scale=0.5), None, f"mixed{step}")
    out = build.affine(x, draw(2, 4, seed=9), draw(2, seed=10), "out")
    return boxed(Graph(start, out), radius, 3)


def _one() -> Tensor:
    return torch.ones((), dtype=torch.float64)


for _name in CURVED:
    NETS[_name] = functools.partial(curve, _name)


def net(builder: Callable[[], Net]) -> Callable[[], Net]:
    NETS[builder.__name__.replace("_", " ")] = builder
    return builder


@net
def products_and_moves() -> Net:
    """Products of two variables, differences, sums, a concatenation, numbers that are used twice."""
    start = build.source((2, 3))
    x = build.affine(start, draw(4, 3, seed=1, scale=0.7), draw(4, seed=2), "in")
    y = build.multiply(x, build.affine(start, draw(4, 3, seed=3, scale=0.7), None, "gate"), "gated")
    z = build.subtract(y, build.reshape(build.permute(x, (1, 0), "turned"), (2, 4), "flat"), "difference")
    z = build.concat([z, build.constant(draw(1, 4, seed=4)), build.slice_(x, 0, 0, 1, 1, "first")], 0, "joined")
    z = build.add(z, build.expand(build.total(z, (0,), True, "sum"), z.shape, "wide"), "with its sum")
    z = build.multiply(z, build.multiply(z, z, "square"), "cube")
    out = build.affine(build.mean(z, (0,), False, "mean"), draw(3, 4, seed=5), draw(3, seed=6), "out")
    return boxed(Graph(start, out), 0.2, 5)


@net
def matrices() -> Net:
    """Products of matrices, one of them a constant for every leading index, and from the left."""
    start = build.source((2, 3, 2))
    x = build.apply(linear.Linear(draw(2, 2, 4, seed=1)), start, name="each its own")
    y = build.apply(linear.LeftLinear(draw(3, 3, seed=2)), x, name="from the left")
    z = build.matmul(x, build.transpose(y, -1, -2, "turned"), "product")
    out = build.affine(build.reshape(z, (18,), "flat"), draw(2, 18, seed=3, scale=0.3), draw(2, seed=4), "out")
    return boxed(Graph(start, out), 0.2, 6)


@net
def convolutions() -> Net:
    """With padding and strides, and one that cuts patches; scales per channel (BatchNorm)."""
    start = build.source((1, 2, 4, 4))
    x = build.convolution(start, draw(3, 2, 3, 3, seed=1, scale=0.4), draw(3, seed=2), (1, 1), (1, 1), (1, 1), 1, "c")
    x = build.multiply(x, build.constant(draw(3, 1, 1, seed=3)), "scaled")
    x = build.add(x, build.constant(draw(3, 1, 1, seed=4)), "shifted")
    x = build.apply(elementwise.Relu(), x, name="relu")
    x = build.convolution(x, draw(2, 3, 2, 2, seed=5, scale=0.4), draw(2, seed=6), (2, 2), (0, 0), (1, 1), 1, "patches")
    out = build.affine(build.reshape(x, (8,), "flat"), draw(2, 8, seed=7), None, "out")
    return boxed(Graph(start, out), 0.1, 7)


@net
def norms() -> Net:
    """RMSNorm of rows and of whole matrices, with and without eps."""
    start = build.source((1, 2, 3))
    x = build.affine(start, draw(4, 3, seed=1), draw(4, seed=2), "in")
    x = build.normalize(x, (-1,), 0.0, "rows")
    x = build.affine(x, draw(3, 4, seed=3), draw(3, seed=4), "between")
    x = build.normalize(x, (-2, -1), 1e-5, "whole")
    out = build.affine(build.reshape(x, (6,), "flat"), draw(2, 6, seed=5), None, "out")
    return boxed(Graph(start, out), 0.05, 8)


@net
def cross_attention() -> Net:
    """Few queries that are constants, keys of another length, masks of every kind of row."""
    start = build.source((4, 3))
    v = build.affine(start, draw(2, 3, seed=1), draw(2, seed=2), "values")
    k = build.affine(start, draw(3, 3, seed=3), draw(3, seed=4), "keys")
    s = build.matmul(build.constant(draw(3, 3, seed=5)), build.transpose(k, 0, 1, "turned"), "scores")
    mask = torch.tensor([[False, True, False, True], [False] * 4, [True, True, True, False]])
    penalty = torch.tensor([[0, -1e30, 0, 0], [0] * 4, [-3.4e38, -1e300, 0, 0]], dtype=torch.float64)
    x = build.apply(attention.Attention(mask, penalty, penalty == -1e300), s, v, name="attention")
    out = build.affine(build.reshape(x, (6,), "flat"), draw(2, 6, seed=6), None, "out")
    return boxed(Graph(start, out), 0.3, 9)


@net
def output_is_a_move() -> Net:
    """The output is the input, turned around."""
    start = build.source((2, 2))
    return boxed(Graph(start, build.permute(start, (1, 0), "turned")), 0.3, 10)


@functools.cache
def made(name: str) -> Net:
    return NETS[name]()


# Certificates --------------------------------------------------------------------------------------------------------


def outputs(net: Net, points: Array) -> Array:
    """(points, outputs), in floats."""
    with torch.no_grad():
        return np.asarray(net.graph.evaluate(torch.from_numpy(points)).reshape(len(points), -1).numpy())


def rows_of(net: Net, count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((count, int(np.prod(net.graph.output.shape))))


def cases_below(net: Net, gap: float, count: int = 2, seed: int = 0) -> list[ForbiddenCase]:
    """Random rows, each with a bound that lies `gap` below what was seen, relatively; one has two rows."""
    points = inside(net.lower, net.upper, 256, np.random.default_rng(seed))
    rows = rows_of(net, count, seed)
    seen = outputs(net, points) @ rows.T
    low, high = seen.min(0), seen.max(0)
    bound = low - gap * (high - low + 1e-3 * np.abs(low) + 1e-3)
    found = [ForbiddenCase(rows[i : i + 1], bound[i : i + 1], np.ones(1)) for i in range(count)]
    both = np.array([0.7, 0.3])
    found.append(ForbiddenCase(rows[:2], bound[:2] - 0.1, both))
    return found


def proved(net: Net, cases: Sequence[ForbiddenCase], effort: certificate.Effort | None = None) -> certificate.Proof:
    return certificate.prove(
        net.graph,
        [certificate.CertificatePart(net.lower, net.upper, cases)],
        effort,
        about={"model": {"sha256": "0" * 64}},
    )


def by_rule(net: Net, rules: tuple[str, ...] = ("affine",), gap: float = 1.0) -> tuple[Prover, bytes]:
    """A prover that knows its boxes, and a file of it whose bounds are below what it proved."""
    prover = Prover(net.graph, net.lower, net.upper, rules)
    rows = rows_of(net, 2)
    prover.state([ForbiddenCase(rows[i : i + 1], np.full(1, -1e6), np.ones(1)) for i in range(2)])
    prover.by_rule(RowRule.AFFINE)
    cases = [ForbiddenCase(rows[i : i + 1], np.array([prover.margins[i] - 1e6 - gap]), np.ones(1)) for i in range(2)]
    other = Prover(net.graph, net.lower, net.upper, rules)
    other.state(cases)
    other.by_rule(RowRule.AFFINE)
    return other, written([other], about())


def by_form(net: Net, gap: float = 1.0) -> bytes:
    """A file with a forward proof whose bounds are below what it proved."""
    rows = rows_of(net, 2)
    first = Prover(net.graph, net.lower, net.upper, forward=True)
    first.state([ForbiddenCase(rows[i : i + 1], np.full(1, -1e6), np.ones(1)) for i in range(2)])
    first.by_form()
    cases = [ForbiddenCase(rows[i : i + 1], np.array([first.margins[i] - 1e6 - gap]), np.ones(1)) for i in range(2)]
    prover = Prover(net.graph, net.lower, net.upper, forward=True)
    prover.state(cases)
    prover.by_form()
    return written([prover], about())


def defaults(prover: Prover, S: int) -> dict[int, dict[str, Array]]:
    """What a pass would take by itself, as if it had been chosen, for every node that has a choice."""
    known = prover.known
    known.reach(len(known.nodes) - 1)
    found: dict[int, dict[str, Array]] = {}
    for k, one in enumerate(known.nodes):
        of: dict[str, Array] = {}
        if one.op == "Relu":
            of["slope"] = known.linear_bounds(k).lower_slope
        elif k in known.lines:
            below, touch, above, other = known.lines[k][:4]
            of |= {"below": below, "above": above, "touch_below": touch, "touch_above": other}
        elif one.op == "Normalize":
            of["touch"] = known.norm(k).sigma.middle()
        elif one.op == "MatMul" and known.planes(k).exact is not None:
            of["corner"] = np.zeros(known.boxes[0].lo.size)
        elif one.op == "Attention":
            middle = known.softmax_rows(k).middle
            of |= {"m": middle, "a": np.zeros_like(middle), "mu": np.zeros((*middle.shape[:-1], 1))}
        if any(k in other.inputs and other.op in ("Relu", "Attention") for other in known.nodes):
            of["held"] = np.zeros(one.shape)
        if of:
            found[k] = {name: np.broadcast_to(v, (S, *v.shape)).copy() for name, v in of.items()}
    return found


def with_choices(prover: Prover, tree: list[dict[str, Any]] | None = None) -> bytes:
    """A file in which everything that can be chosen is, for both cases; with a tree, in each of its leaves."""
    tree = tree or [{}]
    leaves: list[dict[str, Any]] = []
    for at, entry in enumerate(tree):
        if "split" in entry:
            leaves.append(entry)
            continue
        chosen = defaults(prover, len(prover.cases))
        names = {str(k): {n: f"choice.{at}.{k}.{n}" for n in of} for k, of in chosen.items()}
        prover.arrays.update({names[str(k)][n]: v for k, of in chosen.items() for n, v in of.items()})
        leaves.append(leaf(names))
    prover.header["proofs"] = [{"cases": list(range(len(prover.cases))), "tree": leaves}]
    return written([prover], about())


def places(prover: Prover, S: int, pieces: int = 2) -> dict[int, dict[str, Array]]:
    """The same for packed trees: of attentions the places of their parameters."""
    found = defaults(prover, S)
    for of in found.values():
        of.pop("held", None)
        if "m" in of:
            shape = of.pop("m").shape
            del of["a"], of["mu"]
            of |= {"place": np.full(shape, 0.5), "slope": np.zeros(shape), "level": np.zeros((*shape[:-1], pieces))}
    return {k: of for k, of in found.items() if of}


def with_packed_choices(prover: Prover, tree: list[dict[str, Any]], seed: int = 0) -> bytes:
    """A file with a packed tree in which everything that can be chosen is, for both cases; leaves share some of it."""
    chance, S = np.random.default_rng(seed), len(prover.cases)
    head, arrays = packed(tree, held=1e-3, seed=seed)
    leaves = int((arrays[head["node"]] < 0).sum())
    head["pieces"] = 2
    for k, of in places(prover, S).items():
        for name, value in of.items():
            own = {kind: f"choice.{k}.{name}.{kind}" for kind in ("values", "which")}
            head["chosen"].setdefault(str(k), {})[name] = own
            arrays[own["values"]] = np.stack([value, value * (1 + 1e-6)])
            arrays[own["which"]] = chance.permutation(np.arange(leaves) % 2)
    for k, node in enumerate(prover.nodes):
        if node.op == "Attention" and node.inputs[1] in prover.known.zonotopes:
            head["fitted"][str(k)] = f"choice.{k}.fitted"
            arrays[f"choice.{k}.fitted"] = chance.standard_normal(node.shape)
    prover.arrays.update(arrays)
    prover.header["proofs"] = [{"cases": list(range(S)), "tree": head}]
    return written([prover], about())


def chosen_box(prover: Prover, number: int) -> None:
    """A step that proves the box of a node again, by passes with chosen parameters."""
    entries = np.arange(int(np.prod(prover.nodes[number].shape)))
    chosen = {k: of for k, of in places(prover, 2 * len(entries)).items() if k < number}
    with np.errstate(all="ignore"):
        box = ranges.box_by_pass(prover.known, number, entries, "affine", chosen=chosen)
    names = {str(k): {n: prover._keep(f"choice.box.{k}.{n}", v) for n, v in of.items()} for k, of in chosen.items()}
    at = prover._keep("choice.box.entries", entries)
    prover._claim("box", number, box, rule="affine", entries=at, pieces=2, chosen=names)


def about() -> dict[str, Any]:
    return {"statement": checker.STATEMENT, "model": {"sha256": "0" * 64}}


def lowered_file(graph: Graph) -> Written:
    """Only the network."""
    low = lowered(graph)
    return Written({"graph": low.entries}, low.arrays)


def accepted(data: bytes) -> checker.Finding:
    verdict = checker.check(data)
    assert verdict.accepted, verdict.reason
    return verdict


# By hand -------------------------------------------------------------------------------------------------------------


def node(op: str, inputs: Sequence[int] = (), shape: Sequence[int] = (), **arrays: Any) -> dict[str, Any]:
    """An entry of a graph; `eps` apart, what is given are names of arrays."""
    eps = arrays.pop("eps", None)
    entry = {"op": op, "inputs": list(inputs), "shape": list(shape), "arrays": arrays}
    return entry if eps is None else {**entry, "eps": eps}


def leaf(chosen: dict[str, dict[str, str]] | None = None, rule: str = "affine", pieces: Any = 1) -> dict[str, Any]:
    return {"rule": rule, "pieces": pieces, "chosen": chosen or {}}


def by_hand(
    graph: list[dict[str, Any]],
    lower: Any,
    upper: Any,
    row: Sequence[float],
    bound: float,
    *,
    tree: list[dict[str, Any]] | None = None,
    weight: float = 1.0,
    steps: Sequence[dict[str, Any]] = (),
    lines: dict[str, list[str]] | None = None,
    arrays: dict[str, Any] | None = None,
    **more: Any,
) -> Written:
    """A certificate of `row · y > bound`."""
    part = {
        "lower": "lower", "upper": "upper", "lines": lines or {}, "steps": list(steps),
        "property": [{"rows": "rows", "bound": "bound", "weights": "weights"}],
        "proofs": [{"cases": [0], "tree": tree or [leaf()]}],
    }  # fmt: skip
    header = {"format": FORMAT, **about(), "graph": graph, "parts": [part], **more}
    ours = {"lower": lower, "upper": upper, "rows": [row], "bound": [bound], "weights": [weight]}
    numbers = {k: np.asarray(v, dtype=np.float64) for k, v in ours.items()}
    return Written(header, {**numbers, **{k: np.asarray(v) for k, v in (arrays or {}).items()}})


def flat_lines(number: int, shape: tuple[int, ...]) -> tuple[dict[str, list[str]], dict[str, Array]]:
    """Lines of slope 0 for a curve, which always hold."""
    names = [f"line.{number}.{k}" for k in range(7)]
    arrays = {n: np.zeros((2, *shape) if k in (1, 3, 5, 6) else shape) for k, n in enumerate(names)}
    return {str(number): names}, arrays
