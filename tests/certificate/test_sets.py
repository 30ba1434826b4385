"""Certificates of balls and of choices: what they claim holds in the set, and they are about no larger set."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests.bounds.networks import Config, transformer
from tests.certificate import exact
from tests.certificate.exact import Array, Network, Written, broken_cases, broken_claims
from tests.certificate.made import Net, accepted, boxed, draw, outputs, rows_of
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.certificate.certificate import CertificatePart, Effort, prove
from vertex_softmax.certificate.checker import check
from vertex_softmax.certificate.checker.input_sets import CheckedChoices, CheckedSet
from vertex_softmax.certificate.comparison import missing, not_covered
from vertex_softmax.certificate.input_sets import checked_set
from vertex_softmax.certificate.prove import ForbiddenCase, Prover, written
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops import elementwise
from vertex_softmax.sets.lp_region import LpRegion, Norm
from vertex_softmax.sets.region import BoxRegion, Region
from vertex_softmax.specs.vnnlib import read_vnnlib

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETS)
def test_what_is_claimed_holds(network: str, kind: str) -> None:
    """The file is accepted; every claim of it holds at points of the set, judged by Arb."""
    this = subject(network, kind)
    _, data = made(network, kind)
    accepted(data)
    file = exact.read(data)
    (part,) = file.header["parts"]
    own = Network(file.header, file.arrays)
    row = rows_of(this.net, 1)[0]
    order = np.argsort(outputs(this.net, this.points) @ row)
    for k in (*order[:6], *order[-2:], *np.random.default_rng(0).integers(len(order), size=8)):
        values = own.values(this.points[k])
        assert not broken_claims(file, part, values)
        assert not broken_cases(file, part, values[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETS)
def test_the_set_is_not_its_box(network: str, kind: str) -> None:
    """The bound over the set is above that over the box around it."""
    this = subject(network, kind)
    least, _ = made(network, kind)
    row = rows_of(this.net, 1)
    forward = network == "norm"
    prover = Prover(this.net.graph, this.net.lower, this.net.upper, forward=forward)
    prover.state([ForbiddenCase(row, np.array([-1e6]), np.ones(1))])
    (prover.by_form if forward else lambda: prover.by_rule("affine"))()
    if network == "norm" and ("cut" in kind or kind == "choices"):
        return  # a ball around a cut ball may be larger than its box
    assert least > float(prover.margins[0]) - 1e6 + 1e-6


@pytest.mark.parametrize("kind", ["L2", "L1 cut", "L2 rows", "choices"])
def test_another_set_is_noticed(kind: str) -> None:
    """A certificate whose set was made smaller, or other, does not cover the set that is asked about."""
    this = subject("relu", kind)
    _, data = made("relu", kind)
    asked = checked_set(this.region)
    file = exact.read(data)
    assert not_covered(read(file), asked) == ""
    (part,) = file.header["parts"]
    for name, change in changes(kind):
        other = file.copy()
        change(other.header["parts"][0], other.arrays)
        reason = not_covered(read(other), asked)
        assert reason, name
    assert "set" in part


def read(file: Written) -> Any:
    from vertex_softmax.certificate.checker.file import read as read_file

    return read_file(file.data())


def changes(kind: str) -> list[tuple[str, Any]]:
    """Changes after which a set no longer contains what it did."""

    def scaled(name: str, factor: float) -> Any:
        def change(part: dict[str, Any], arrays: dict[str, Array]) -> None:
            at = part["set"][name]
            x = arrays[at].astype(np.float64)
            x.flat[0] = np.nextafter(x.flat[0], 0) if factor == 1 else x.flat[0] * factor
            arrays[at] = x

        return change

    def box(part: dict[str, Any], arrays: dict[str, Array]) -> None:
        del part["set"]
        upper = arrays[part["upper"]].astype(np.float64)
        upper.flat[0] = arrays[part["lower"]].flat[0]
        arrays[part["upper"]] = upper

    if kind == "choices":

        def dropped(part: dict[str, Any], arrays: dict[str, Array]) -> None:
            name = part["set"]["blocks"][0]["vectors"]
            arrays[name] = arrays[name][:-1].copy()
            around(part, arrays)

        def moved(part: dict[str, Any], arrays: dict[str, Array]) -> None:
            name = part["set"]["blocks"][2]["vectors"]
            x = arrays[name].astype(np.float64)
            x[1, 0] = np.nextafter(x[1, 0], np.inf)
            arrays[name] = x
            around(part, arrays)

        def swapped(part: dict[str, Any], arrays: dict[str, Array]) -> None:
            names = [part["set"]["blocks"][k]["numbers"] for k in (0, 2)]
            arrays[names[0]], arrays[names[1]] = arrays[names[1]], arrays[names[0]]
            around(part, arrays)

        def unseen(part: dict[str, Any], arrays: dict[str, Array]) -> None:
            name = part["set"]["blocks"][0]["vectors"]  # the box is the old one: it is refused
            arrays[name] = arrays[name][:-1].copy()

        return [("dropped", dropped), ("moved", moved), ("swapped", swapped), ("unseen", unseen), ("box", box)]

    def norm(part: dict[str, Any], _: dict[str, Array]) -> None:
        part["set"]["norm"] = 1

    def members(part: dict[str, Any], arrays: dict[str, Array]) -> None:
        name = part["set"]["members"]
        arrays[name] = np.zeros_like(arrays[name])

    def cut(part: dict[str, Any], arrays: dict[str, Array]) -> None:
        lower = arrays[part["lower"]].astype(np.float64)
        at = int(np.flatnonzero(lower < arrays[part["set"]["centre"]])[0])
        lower.flat[at] = np.nextafter(lower.flat[at], np.inf)
        arrays[part["lower"]] = lower

    found = [("radius", scaled("radius", 0.5)), ("one ulp", scaled("radius", 1)), ("centre", scaled("centre", 1))]
    found += [("box", box), ("cut", cut)]
    if kind.startswith("L2"):
        found.append(("norm", norm))
    if "rows" in kind:
        found.append(("members", members))
    return found


def around(part: dict[str, Any], arrays: dict[str, Array]) -> None:
    """The box of choices that were changed, so that the file makes sense."""
    lower, upper = (arrays[part[end]].astype(np.float64) for end in ("lower", "upper"))
    for block in part["set"]["blocks"]:
        numbers, vectors = (arrays[block[name]] for name in ("numbers", "vectors"))
        lower.flat[numbers], upper.flat[numbers] = vectors.min(0), vectors.max(0)
    arrays[part["lower"]], arrays[part["upper"]] = lower, upper


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", ["relu", "norm"])
def test_a_larger_set_is_not_proved_by_the_old_file(network: str, kind: str) -> None:
    """Grown until a point of the new set breaks the case, the file is refused."""
    this = subject(network, kind)
    _, data = made(network, kind, 1e-3)
    file = exact.read(data)
    row = rows_of(this.net, 1)[0]
    bound = float(file.arrays[file.header["parts"][0]["property"][0]["bound"]][0])
    refused = False
    for factor in (2.0, 4.0, 16.0):
        other = file.copy()
        part = other.header["parts"][0]
        centre = (this.net.lower + this.net.upper) / 2
        if kind == "choices":
            for block in part["set"]["blocks"]:
                at = centre.ravel()[other.arrays[block["numbers"]]]
                other.arrays[block["vectors"]] = at + factor * (other.arrays[block["vectors"]] - at)
            around(part, other.arrays)
        else:
            name = part["set"]["radius"]
            centre = other.arrays[part["set"]["centre"]].astype(np.float64)
            other.arrays[name] = other.arrays[name] * factor
            for end in ("lower", "upper"):
                other.arrays[part[end]] = centre + factor * (other.arrays[part[end]] - centre)
        grown = centre + factor * (this.points - centre)
        breaks = (outputs(this.net, grown) @ row).min() < bound
        verdict = check(other.data())
        if breaks:
            assert not verdict.accepted, f"{kind} grown by {factor}"
            refused = True
    assert refused, "the sets were not grown enough for the test to say something"


def test_the_box_alone_is_another_claim() -> None:
    """Without its set the file is about the whole box, of which it proves nothing."""
    for kind in ("L1", "L2", "choices"):
        _, data = made("relu", kind, 1e-3)
        file = exact.read(data)
        del file.header["parts"][0]["set"]
        assert not check(file.data()).accepted


def test_files_that_make_no_sense() -> None:
    _, data = made("relu", "L2")
    file = exact.read(data)
    name = file.header["parts"][0]["set"]
    for change in (
        {"norm": 3}, {"norm": 2.0}, {"norm": True}, {"norm": None}, {"norm": 1e400}, {"kind": "ball"}, {"kind": None},
        {"radius": "lower"}, {"radius": "nothing"}, {"members": name["radius"]}, {"centre": "part.0.lower"},
    ):  # fmt: skip
        other = file.copy()
        other.header["parts"][0]["set"].update(change)
        if change == {"centre": "part.0.lower"}:
            other.arrays[name["members"]][:] = 99
        assert not check(other.data()).accepted, change
    for array, value in (
        (name["radius"], -1.0),
        (name["radius"], math.nan),
        (name["centre"], 1e9),
        (name["centre"], math.inf),
    ):
        other = file.copy()
        other.arrays[array] = other.arrays[array].astype(np.float64)
        other.arrays[array].flat[1] = value
        assert not check(other.data()).accepted
    older = file.copy()
    older.header.update({"format": "vertex-certificate-3"})
    assert not check(older.data()).accepted
    from vertex_softmax.certificate.checker.proof import OLDER_STATEMENT

    older.header.update({"statement": OLDER_STATEMENT})
    assert "no box" in check(older.data()).reason


@pytest.mark.parametrize("kind", ["L2", "L1 cut", "choices"])
def test_branch_and_bound(kind: str) -> None:
    """Cases that passes do not prove are proved by splits of neurons."""
    this = subject("relu", kind)
    row = rows_of(this.net, 1)
    least, _ = made("relu", kind)
    seen = float((outputs(this.net, this.points) @ row[0]).min())
    bound = least + 0.3 * (seen - least)
    effort = Effort(Ascent(steps=20), search=Search(seconds=10.0))
    found = prove(
        this.net.graph, [CertificatePart.over(this.region, [ForbiddenCase(row, np.array([bound]), np.ones(1))])],
        effort, about=ABOUT,
    )  # fmt: skip
    if found.certificate is None:
        assert kind == "choices", found.reason  # the prover sees their box alone here
        return
    assert check(found.certificate.data).accepted
    assert "set" in json.loads(json.dumps(exact.read(found.certificate.data).header))["parts"][0]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("norm", [None, "post"])
def test_certify(order: int, norm: str | None) -> None:
    """`certify` gives an accepted certificate whose margin is near the bound, and says what it is about."""
    graph = transformer(Config(heads=2, activation="gelu", seed=4, **({"norm": norm} if norm else {})))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, *graph.input.shape)))
    label = graph.evaluate(x).reshape(1, -1).argmax(-1)
    ball = vx.LpBall(x, 0.02, order)
    found = vx.certify(graph, ball, label, "crown", certificate=True)
    (certificate,) = found.certificates
    assert certificate is not None, found.reasons
    bound = float(vx.certify(graph, ball, label, "crown").lower.min())
    around_it = float(vx.certify(graph, vx.Box(ball.lower, ball.upper), label, "crown").lower.min())
    assert certificate.margin > around_it
    assert certificate.margin >= bound - (0.02 if order == 2 else 0.2) * abs(bound)
    verdict = certificate.check()
    assert verdict.claim is not None
    assert any(f"ℓ{order} balls" in text for _, text in verdict.claim.words)
    asked = checked_set(ball.region(graph.input.shape, torch.float64, torch.device("cpu")))
    file = read(exact.read(certificate.data))
    assert not_covered(file, asked) == ""
    larger = vx.LpBall(x, 0.0200001, order).region(graph.input.shape, torch.float64, torch.device("cpu"))
    assert "radius" in not_covered(file, checked_set(larger))


def test_a_specification_of_a_box(tmp_path: Any) -> None:
    """A box that sticks out of the ball is not covered, though the ball's box holds it; a box inside of it is."""
    this = subject("relu", "L2")
    _, data = made("relu", "L2")
    file = exact.read(data)
    (row,), (bound,) = (file.arrays[file.header["parts"][0]["property"][0][name]] for name in ("rows", "bound"))
    centre, radius = (this.region.centre[0].numpy(), this.region.radius[0].numpy())  # type: ignore[attr-defined]

    def spec(share: float) -> Any:
        lines = [f"(declare-const X_{i} Real)" for i in range(6)] + [f"(declare-const Y_{i} Real)" for i in range(2)]
        for i, (c, r) in enumerate(zip(centre.ravel(), radius.ravel(), strict=True)):
            lo, hi = (format(Decimal(float(c + t * share * r)), "f") for t in (-1, 1))
            lines += [f"(assert (>= X_{i} {lo}))", f"(assert (<= X_{i} {hi}))"]
        y = " ".join(f"(* {format(Decimal(float(a)), 'f')} Y_{k})" for k, a in enumerate(row))
        lines.append(f"(assert (<= (+ {y}) {format(Decimal(float(bound)), 'f')}))")
        path = tmp_path / f"{share}.vnnlib"
        path.write_text("\n".join(lines))
        return read_vnnlib(path)

    assert "another kind of set" in missing(read(file), spec(0.9))
    assert missing(read(file), spec(0.3)) == ""
