"""Forward proofs of networks, and whether exact values lie in the forms that they found.

At an input x the unknowns ξ of the input are known, so that of a node's value all is known but what the other blocks
and the loose errors explain: the rest e of it. For every direction η |η·e| is at most Σ |Gᵀη| over the balls, and
|η|·loose. Rests are computed in Arb's balls; floats only search for points and directions where they are large.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from tests.certificate import exact
from tests.certificate.checker.helpers import module
from tests.certificate.made import Net
from vertex_softmax.certificate.lowering import lowered
from vertex_softmax.certificate.prove import Prover

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
PRECISION = 200


class Choices:
    """What looks better, or, with a seed, choices by chance, a share of them true; lines as a prover makes them."""

    def __init__(self, prover: Prover, seed: int | None = None, share: float = 0.5) -> None:
        self.prover, self.share = prover, share
        self.chance = None if seed is None else np.random.default_rng(seed)
        self.seen: dict[str, list[int]] = {}

    def pick(self, number: int, name: str, better: Bools) -> Bools:  # noqa: ARG002
        """All forms are kept as far as they may be, so that what was chosen before is seen."""
        taken = better
        if self.chance is not None:
            taken = np.ones_like(better) if name == "kept form" else self.chance.random(better.shape) < self.share
        known = self.seen.setdefault(name, [0, 0])
        known[0], known[1] = known[0] + int(taken.sum()), known[1] + taken.size
        return np.asarray(taken)

    def lines(self, number: int, box: Any) -> tuple[Array, ...]:
        return self.prover._lines(number, box)


@dataclasses.dataclass
class Propagated:
    """The forms of all nodes, the boxes that were proved, and the network."""

    forms: dict[int, Any]
    boxes: dict[int, Any]
    header: dict[str, Any]
    arrays: dict[str, Any]
    lower: Array
    upper: Array
    choices: Choices

    def unknowns(self, x: Array) -> Array:
        """ξ at an input, (n,), as balls."""
        start = self.forms[0]
        reach = np.abs(start.lines(start.count)).sum(0)
        live = np.flatnonzero(reach)
        off = [(arb(float(x.flat[i])) - arb(float(start.centre.flat[i]))) / arb(float(reach.flat[i])) for i in live]
        return np.array(off, dtype=object)


class _Bare(Prover):
    """A prover that has proved nothing yet."""

    def _run(self) -> None:
        pass


def propagated(net: Net, seed: int | None = None, share: float = 0.5) -> Propagated:
    """The forward proof of a network over its box."""
    low = lowered(net.graph)
    checker_network, propagation, file = (module(name) for name in ("network", "forward.propagation", "file"))
    header = {"graph": low.entries}
    known = checker_network.Known(checker_network.network(file.File(header, low.arrays)), net.lower, net.upper)
    choices = Choices(_Bare(net.graph, net.lower, net.upper), seed, share)
    forms: dict[int, Any] = {}
    reduced = propagation.reduced

    def watch(form: Any, key: int, *, shared: bool) -> Any:
        found = reduced(form, key, shared=shared)
        forms[(key - propagation.FIRST) // propagation.SLOTS] = found
        return found

    propagation.reduced = watch
    try:
        with np.errstate(all="ignore"):
            propagation.run(known, choices)
    finally:
        propagation.reduced = reduced
    return Propagated(forms, dict(known.boxes), header, low.arrays, net.lower, net.upper, choices)


# Rests in floats, to search with -------------------------------------------------------------------------------------


def rests(form: Any, values: Array, xi: Array) -> Array:
    """value − centre − what the input's unknowns explain, (points, *shape): values (points, *shape), ξ (points, n)."""
    return np.asarray(values - form.centre - explained(form, xi))


def explained(form: Any, xi: Array) -> Any:
    """Σ lines ξ + Σ pairs ξξ + Σ squares (2ξ² − 1): ξ (points, n) → (points, *shape), floats or balls."""
    forms, pairs = module("forward.forms"), module("forward.pairs")
    shape = form.centre.shape
    exactly = xi.dtype == object
    found: Any = np.zeros((len(xi), form.centre.size), dtype=object if exactly else float)
    found = found + (arb(0) if exactly else 0.0)
    if form.count == 0:
        return found.reshape(len(xi), *shape)
    first, second = pairs.places(form.count)
    for key, unknowns in (
        (forms.LINES, xi), (forms.PAIRS, xi[:, first] * xi[:, second]), (forms.SQUARES, 2 * xi * xi - 1)
    ):  # fmt: skip
        if key in form.blocks:
            columns = form.blocks[key].reshape(-1, form.centre.size)
            found = found + unknowns @ (exact._balls(columns) if exactly else columns)
    return found.reshape(len(xi), *shape)


def others(form: Any) -> Iterator[Array]:
    """The blocks whose unknowns are not the input's, (balls, k, *shape)."""
    forms = module("forward.forms")
    return (x for key, x in form.blocks.items() if key not in (forms.LINES, forms.PAIRS, forms.SQUARES))


def support(form: Any, eta: Array) -> Array:
    """Σ |Gᵀη| + |η|·loose, (directions,), in floats: η (directions, *shape)."""
    flat = eta.reshape(len(eta), -1)
    found = np.abs(flat) @ (form.own + form.slack).ravel()
    for columns in others(form):
        along = flat @ columns.reshape(*columns.shape[:2], -1).swapaxes(-1, -2)  # (balls, directions, k)
        found = found + np.sqrt(np.square(along).sum(-1)).sum(0)
    return np.asarray(found)


def directions(shape: tuple[int, ...], chance: np.random.Generator, count: int) -> Array:
    """Random directions of single rows and of all numbers together, and some single numbers."""
    found = []
    size = int(np.prod(shape))
    rows = size // shape[-1] if shape else 1
    for i in range(count):
        eta = np.zeros((rows, size // rows))
        kind = i % 4
        if kind == 0:
            eta.flat[chance.integers(size)] = 1.0
        elif kind == 3:
            eta[:] = chance.standard_normal(eta.shape)
        else:
            eta[chance.integers(rows)] = chance.standard_normal(eta.shape[1])
        found.append(eta.reshape(shape))
    return np.array(found)


# Judgement -----------------------------------------------------------------------------------------------------------


def exceeds(form: Any, value: Any, xi: Any, eta: Array) -> bool:
    """Whether |η·e| is certainly more than it may be, or is no number: value (*shape) and ξ (n,) balls, η (*shape)."""
    flat, at = eta.ravel(), np.flatnonzero(eta.ravel())
    e = (value - exact._balls(form.centre) - explained(form, xi[None])[0]).ravel()
    along = sum((arb(float(flat[i])) * e[i] for i in at), arb(0))
    most = sum(
        (arb(abs(float(flat[i]))) * (arb(float(form.own.flat[i])) + arb(float(form.slack.flat[i]))) for i in at), arb(0)
    )
    for columns in others(form):
        picked = columns.reshape(*columns.shape[:2], -1)[..., at]
        dots = exact._balls(picked) @ exact._balls(flat[at])  # (balls, k)
        most += sum((sum((v * v for v in ball), arb(0)).sqrt() for ball in dots if any(v != 0 for v in ball)), arb(0))
    return not along.is_finite() or bool(abs(along) > most)


def violations(
    found: Propagated, seed: int = 0, points: int = 200, each: int = 12, rounds: int = 2, nudged: int | None = None,
) -> tuple[list[str], float]:  # fmt: skip
    """What is wrong with the forms and boxes of a network, and how close to their limits rests came, at most."""
    chance = np.random.default_rng(seed)
    x = exact.inside(found.lower, found.upper, points, chance)
    wrong: list[str] = []
    closest = 0.0
    start = found.forms[0]
    reach = np.abs(start.lines(start.count)).sum(0).ravel()
    live = np.flatnonzero(reach)
    worst: dict[int, tuple[Array, Array]] = {}
    eta = {k: directions(form.centre.shape, chance, each) for k, form in found.forms.items()}
    most = {k: support(form, eta[k]) for k, form in found.forms.items()}
    for turn in range(rounds + 1):
        with np.errstate(all="ignore"):
            values = exact.floats(found.header, found.arrays, x)
            xi = (x.reshape(len(x), -1)[:, live] - start.centre.ravel()[live]) / reach[live]
            candidates = []
            for k, form in found.forms.items():
                e = rests(form, values[k], xi).reshape(len(x), -1)
                ratio = np.abs(e @ eta[k].reshape(each, -1).T) / most[k]
                ratio = np.where(np.isfinite(ratio), ratio, 0.0)
                at = np.unravel_index(np.argmax(ratio), ratio.shape)
                if k not in worst or ratio[at] > worst[k][0]:
                    worst[k] = (ratio[at], at[1], x[at[0]])
                candidates.append(worst[k][2])
        if turn < rounds:  # near the worst points of all nodes
            base = np.array(candidates)[chance.integers(len(candidates), size=points)].reshape(points, -1)
            lo, hi = found.lower.ravel(), found.upper.ravel()
            new = np.where(chance.random(base.shape) < 0.25, lo + chance.integers(0, 2, base.shape) * (hi - lo), base)
            x = np.clip(new, lo, hi).reshape(points, *found.lower.shape)
    old, ctx.prec = ctx.prec, PRECISION
    try:
        network = exact.Network(found.header, found.arrays, nudged)
        groups: dict[bytes, list[int]] = {}
        for k, (_, _, at) in worst.items():
            groups.setdefault(at.tobytes(), []).append(k)
        for mine in groups.values():
            at = worst[mine[0]][2]
            values_at, xi_at = network.values(at), found.unknowns(at)
            for k, value in enumerate(values_at):
                box = found.boxes[k]
                if exact.outside(value, *(np.broadcast_to(end, value.shape) for end in (box.lo, box.hi))).any():
                    wrong.append(f"node {k} ({found.header['graph'][k]['op']}): outside of its box")
            for k in mine:
                closest = max(closest, float(worst[k][0]) if np.isfinite(most[k]).all() else 0.0)
                if exceeds(found.forms[k], values_at[k], xi_at, eta[k][worst[k][1]]):
                    wrong.append(f"node {k} ({found.header['graph'][k]['op']}): {worst[k][0]:.4f} of what it may be")
    finally:
        ctx.prec = old
    return wrong, closest
