"""Networks over balls and choices, points of these sets, and certificates about them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.bounds.networks import Config, transformer
from tests.certificate.exact import Array, Written
from tests.certificate.made import Net, boxed, draw, outputs, rows_of
from vertex_softmax.certificate.checker.input_sets import CheckedChoices, CheckedSet
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.input_sets import checked_set
from vertex_softmax.certificate.prove import Prover, written
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops import elementwise
from vertex_softmax.sets.lp_region import LpRegion, Norm
from vertex_softmax.sets.region import BoxRegion, Region

ABOUT = {"model": {"sha256": "0" * 64}}


@dataclasses.dataclass(frozen=True, eq=False)
class SmallChoices(BoxRegion):
    """A product of lists of vectors, of one input, as bounds may see it: here by its box, which is sound."""

    given: CheckedChoices


@checked_set.register
def _(region: SmallChoices) -> CheckedSet:
    return region.given


class Subject(NamedTuple):
    """A network over a set, and points of the set."""

    net: Net
    region: Region
    points: Array


def balls(net: Net, norm: Norm, eps: float, *, per_row: bool = False, cut: bool = False, seed: int = 0) -> Subject:
    """A ball around the middle of a box; with extreme points of it."""
    chance = np.random.default_rng(seed)
    centre = (net.lower + net.upper) / 2
    radius = eps * (0.5 + chance.random(centre.shape))
    radius.flat[-1] = 0.0
    lower, upper = np.nextafter(centre - radius, -np.inf), np.nextafter(centre + radius, np.inf)
    lower, upper = (np.where(radius > 0, end, centre) for end in (lower, upper))
    if cut:
        lower = np.where(chance.random(centre.shape) < 0.5, centre, lower)
        upper = np.where(chance.random(centre.shape) < 0.3, centre + radius / 4, upper)
    n, rows = centre.size, centre.shape[0] if per_row else 1
    members = torch.arange(n).reshape(rows, -1)
    ends = (torch.from_numpy(x).unsqueeze(0) for x in (centre, radius, lower, upper))
    z = chance.standard_normal((600, rows, n // rows))
    z[:200] *= chance.random((200, rows, n // rows)) < 0.3
    z[200:400, :, :] = np.eye(n // rows)[chance.integers(n // rows, size=(200, rows))] * chance.choice(
        [-1, 1], (200, 1, 1)
    )
    size = np.abs(z).sum(-1, keepdims=True) if norm is Norm.L1 else np.sqrt(np.square(z).sum(-1, keepdims=True))
    z = (z / np.where(size > 0, size, 1.0) * (1 - 1e-12)).reshape(-1, *centre.shape)
    points = np.clip(centre + radius * z, lower, upper)
    return Subject(net._replace(lower=lower, upper=upper), LpRegion(norm, *ends, members), points)


def choices(net: Net, spread: float, counts: tuple[int, ...], seed: int = 0) -> Subject:
    """Each row of the input is one of a few vectors around the middle of a box; with all combinations."""
    chance = np.random.default_rng(seed)
    centre = (net.lower + net.upper) / 2
    size = centre.shape[-1]
    rows = centre.reshape(-1, size)
    vectors = tuple(row + spread * chance.standard_normal((K, size)) for row, K in zip(rows, counts, strict=True))
    numbers = tuple(np.arange(k * size, (k + 1) * size) for k in range(len(rows)))
    lower, upper = (np.stack([f(v, axis=0) for v in vectors]).reshape(centre.shape) for f in (np.min, np.max))
    given = CheckedChoices(numbers=numbers, vectors=vectors, lower=lower, upper=upper)
    every = np.stack([np.stack(rows) for rows in itertools.product(*vectors)]).reshape(-1, *centre.shape)
    region = SmallChoices(*(torch.from_numpy(end).unsqueeze(0) for end in (lower, upper)), given=given)
    return Subject(net._replace(lower=lower, upper=upper), region, every)


def relu_net() -> Net:
    """Two layers with ReLU, of an input of rows."""
    start = build.source((3, 2))
    x = build.affine(build.reshape(start, (6,), "flat"), draw(12, 6, seed=1), None, "in")
    x = build.apply(elementwise.Relu(), x, name="relu")
    x = build.affine(x, draw(10, 12, seed=3, scale=0.5), None, "mixed")
    out = build.affine(build.apply(elementwise.Relu(), x, name="again"), draw(2, 10, seed=4), None, "out")
    return boxed(Graph(start, out), 0.3, 2)


NETS = {
    "relu": (relu_net, 0.3),
    "attention": (lambda: boxed(transformer(Config(heads=2, activation="gelu", seed=4)), 0.1, 4), 0.1),
    "norm": (lambda: boxed(transformer(Config(norm="post", seed=2)), 0.1, 2), 0.05),
}


@functools.cache
def subject(network: str, kind: str) -> Subject:
    make, eps = NETS[network]
    net = make()
    if kind == "choices":
        return choices(net, eps, (3, 1, 4), 1)
    norm, _, rest = kind.partition(" ")
    return balls(net, Norm[norm], eps, per_row="rows" in rest, cut="cut" in rest, seed=3)


KINDS = ("L1", "L2", "L1 cut", "L2 cut", "L2 rows", "L1 rows cut", "choices")


@functools.cache
def made(network: str, kind: str, gap: float = 0.05) -> tuple[float, bytes]:
    """A file about one case that no point of the set comes near, by passes or by a forward proof; and its margin."""
    this = subject(network, kind)
    row = rows_of(this.net, 1)
    seen = outputs(this.net, this.points) @ row[0]
    forward = network == "norm"
    prover = Prover(this.net.graph, this.net.lower, this.net.upper, forward=forward, region=this.region)
    prover.state([ForbiddenCase(row, np.array([-1e6]), np.ones(1))])
    (prover.by_form if forward else lambda: prover.by_rule("affine"))()
    least = float(prover.margins[0]) - 1e6
    assert least <= seen.min() + 1e-9, "the bound is above a value that is taken in the set"
    bound = least - gap * (1 + abs(least))
    prover = Prover(this.net.graph, this.net.lower, this.net.upper, forward=forward, region=this.region)
    prover.state([ForbiddenCase(row, np.array([bound]), np.ones(1))])
    (prover.by_form if forward else lambda: prover.by_rule("affine"))()
    return least, written([prover], {"statement": vx_statement(), **ABOUT})


def vx_statement() -> str:
    from vertex_softmax.certificate.checker import STATEMENT

    return STATEMENT


def read(file: Written) -> Any:
    from vertex_softmax.certificate.checker.file import read as read_file

    return read_file(file.data())


def around(part: dict[str, Any], arrays: dict[str, Array]) -> None:
    """The box of choices that were changed, so that the file makes sense."""
    lower, upper = (arrays[part[end]].astype(np.float64) for end in ("lower", "upper"))
    for block in part["set"]["blocks"]:
        numbers, vectors = (arrays[block[name]] for name in ("numbers", "vectors"))
        lower.flat[numbers], upper.flat[numbers] = vectors.min(0), vectors.max(0)
    arrays[part["lower"]], arrays[part["upper"]] = lower, upper
