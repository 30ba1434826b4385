"""Certificates of balls and of choices whose set was changed: none proves anything about a set it does not name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.certificate import exact
from tests.certificate.exact import Array
from tests.certificate.made import outputs, rows_of
from tests.certificate.sets_made import KINDS, NETS, around, made, read, subject
from vertex_softmax.certificate.checker import check
from vertex_softmax.certificate.comparison import not_covered
from vertex_softmax.certificate.input_sets import checked_set


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETS)
def test_random_changes(network: str, kind: str) -> None:
    """Whatever is changed in the set: a file that is accepted holds at points of the set that it names then."""
    this = subject(network, kind)
    _, data = made(network, kind, 0.02)
    original = exact.read(data)
    row = rows_of(this.net, 1)[0]
    bound = float(original.arrays[original.header["parts"][0]["property"][0]["bound"]][0])
    chance = np.random.default_rng(5)
    counts = [0, 0]
    for _ in range(12):
        file = original.copy()
        part = file.header["parts"][0]
        names = [name for block in part["set"].get("blocks", [part["set"]]) for name in block.values()]
        names = [n for n in names if isinstance(n, str) and n in file.arrays and file.arrays[n].dtype.kind == "f"]
        for name in chance.choice(names, 2):
            x = file.arrays[name].astype(np.float64)
            change = chance.choice([1e-3, 0.05, 0.3]) * np.abs(chance.standard_normal(x.shape))
            x += (chance.random(x.shape) < 0.5) * (change if kind != "choices" else 5 * change * chance.choice([-1, 1]))
            file.arrays[name] = x
        if kind == "choices":
            around(part, file.arrays)
        elif chance.random() < 0.5:
            part["set"]["norm"] = 3 - part["set"]["norm"]
            file.arrays[part["set"]["members"]] = chance.integers(0, 3, this.net.lower.shape)
        if kind != "choices":
            centre, radius = (file.arrays[part["set"][name]].astype(np.float64) for name in ("centre", "radius"))
            file.arrays[part["lower"]] = np.minimum(file.arrays[part["lower"]], centre - radius)
            file.arrays[part["upper"]] = np.maximum(file.arrays[part["upper"]], centre + radius)
        verdict = check(file.data())
        points = points_now(part, file.arrays, chance)
        broken = (outputs(this.net, points) @ row).min() < bound - 1e-9
        counts[int(broken)] += 1
        assert not (broken and verdict.accepted)
    assert counts[1], "no change was one that matters"


def points_now(part: dict[str, Any], arrays: dict[str, Array], chance: np.random.Generator) -> Array:
    """Points of the set that a part names."""
    shape = arrays[part["lower"]].shape
    if part["set"]["kind"] == "choices":
        x = np.empty((400, int(np.prod(shape))))
        for block in part["set"]["blocks"]:
            vectors = arrays[block["vectors"]]
            x[:, arrays[block["numbers"]]] = vectors[chance.integers(len(vectors), size=400)]
        return x.reshape(400, *shape)
    centre, radius, members = (arrays[part["set"][name]].ravel() for name in ("centre", "radius", "members"))
    z = chance.standard_normal((3000, centre.size)) * (chance.random((3000, 1)) < chance.random((3000, centre.size)))
    for k in np.unique(members):
        at = members == k
        size = np.abs(z[:, at]) ** part["set"]["norm"]
        size = size.sum(-1, keepdims=True) ** (1 / part["set"]["norm"])
        z[:, at] *= (1 - 1e-12) / np.where(size > 0, size, 1.0)
    return np.asarray((centre + radius * z).reshape(-1, *shape))
