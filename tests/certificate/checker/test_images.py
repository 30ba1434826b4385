"""Zonotopes from zonotopes: all values of images and of centred products are in them, in rational numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.certificate.made import node
from vertex_softmax.certificate.checker import images
from vertex_softmax.certificate.checker.file import File, Rejected
from vertex_softmax.certificate.checker.network import STORED, Known, network
from vertex_softmax.certificate.checker.rounding import ProvedInterval
from vertex_softmax.certificate.checker.zonotopes import ProvedZonotope

ROWS, WIDTH = 3, 4
Array = Any


class Chain:
    """A network: the input, a ReLU of it, which is the source, and affine ops after it."""

    def __init__(self) -> None:
        self.graph = [node("Input", shape=[ROWS, WIDTH]), node("Relu", [0], [ROWS, WIDTH])]
        self.arrays: dict[str, Array] = {}

    @property
    def last(self) -> int:
        return len(self.graph) - 1

    @property
    def shape(self) -> list[int]:
        return list(self.graph[-1]["shape"])

    def add(self, op: str, inputs: list[int], shape: list[int], **arrays: Array) -> int:
        names = {name: f"{len(self.graph)}.{name}" for name in arrays}
        self.arrays |= {names[name]: np.asarray(value) for name, value in arrays.items()}
        self.graph.append({"op": op, "inputs": inputs, "shape": shape, "arrays": names})
        return self.last

    def linear(self, weight: Array) -> int:
        return self.add("Linear", [self.last], [*self.shape[:-1], weight.shape[1]], weight=weight)

    def scale(self, factor: Array) -> int:
        return self.add("Scale", [self.last], self.shape, factor=factor)

    def shift(self, value: Array) -> int:
        source, shape = self.last, self.shape
        return self.add("Add", [source, self.add("Constant", [], shape, value=value)], shape)

    def move(self, index: Array) -> int:
        return self.add("Move", [self.last], list(index.shape), index=index)

    def known(self) -> Known:
        found = Known(network(File({"graph": self.graph}, self.arrays)), -np.ones((3, 4)), np.ones((3, 4)))
        found.reach(self.last)
        return found


def random_zonotope(chance: np.random.Generator, shape: tuple[int, ...], scale: float, **more: Any) -> ProvedZonotope:
    centre, columns = chance.standard_normal(shape) * scale, chance.standard_normal((*shape, 5)) * scale
    columns[chance.random(columns.shape) < 0.3] = 0.0
    error = chance.random(shape) * scale * float(chance.choice([0.0, 1e-12, 0.1]))
    return ProvedZonotope(centre=centre, columns=columns, error=error, exact=False, **more)


def fractions(x: Array) -> Array:
    return np.vectorize(Fraction, otypes=[object])(x)


def point(z: ProvedZonotope, xi: Array, chance: np.random.Generator) -> Array:
    """An exact value of a zonotope: with errors at their ends."""
    return (
        fractions(z.centre) + fractions(z.columns) @ xi + fractions(z.error * chance.choice([-1.0, 1.0], z.error.shape))
    )


def near(x: Array, chance: np.random.Generator) -> Array:
    """Real numbers that stored ones stand for, at the ends of what they may be."""
    return fractions(x) * (1 + fractions(chance.choice([-1.0, 0.0, 1.0], x.shape) * STORED))


def exactly(known: Known, path: list[int], x: Array, chance: np.random.Generator) -> Array:
    for k in path:
        op, arrays = known.nodes[k].op, known.nodes[k].arrays
        if op == "Linear":
            x = x @ near(arrays["weight"], chance)
        elif op == "Scale":
            x = x * near(arrays["factor"], chance)
        elif op == "Move":
            x = x.ravel()[arrays["index"]]
        else:
            constant = next(i for i in known.nodes[k].inputs if known.nodes[i].op == "Constant")
            x = x + near(known.nodes[constant].arrays["value"], chance)
    return x


def random_chain(chance: np.random.Generator, scale: float) -> Chain:
    chain = Chain()
    for op in chance.choice(["linear", "scale", "shift", "move", "linear", "move"], int(chance.integers(1, 7))):
        size = int(np.prod(chain.shape))
        if op == "linear":
            chain.linear(chance.standard_normal((chain.shape[-1], int(chance.integers(1, 5)))) * scale)
        elif op == "scale":
            chain.scale(chance.standard_normal(chain.shape) * scale)
        elif op == "shift":
            chain.shift(chance.standard_normal(chain.shape))
        else:
            chain.move(chance.integers(0, size, (int(chance.integers(1, 4)), int(chance.integers(1, 5)))))
    return chain


@pytest.mark.parametrize("scale", [1.0, 1e-120, 1e40, 1e-310])
def test_every_value_of_an_image_is_in_it(scale: float) -> None:
    """Whatever the stored numbers stand for, with the ξ of the source: so unknowns are shared as well."""
    chance = np.random.default_rng(int(-np.log10(scale)) + 400)
    for _ in range(25):
        known, z = (
            random_chain(chance, scale).known(),
            random_zonotope(chance, (ROWS, WIDTH), float(chance.choice([1.0, scale]))),
        )
        number = len(known.nodes) - 1
        path = images.affine_path(known, number, 1)
        known.zonotopes[1] = z
        with np.errstate(all="ignore"):
            widened(known, path, z.box())
            found = images.image(known, number, 1)
        assert found.unknowns is z.unknowns
        for _ in range(4):
            xi = fractions(chance.choice([-1.0, 1.0, 0.3], z.columns.shape[-1]))
            value = exactly(known, path, point(z, xi, chance), chance)
            off = value - fractions(found.centre) - fractions(found.columns) @ xi
            assert (abs(off) <= fractions(found.error)).all()
            assert (
                fractions(found.sizes) >= abs(fractions(found.centre)) + abs(fractions(found.columns)).sum(-1)
            ).all()


def widened(known: Known, path: list[int], box: ProvedInterval) -> None:
    """Let the source have this box, and all nodes after it the boxes that follow."""
    known.boxes[1] = box
    for k in path:
        known.boxes[k] = known.image(k)


@pytest.mark.parametrize("op", ["linear", "scale", "shift"])
def test_rounding_counts_where_a_zonotope_is_much_larger_than_its_box(op: str) -> None:
    """The centre and a column cancel nearly: what stored numbers are off is small beside what rounding loses."""
    chance, shape = np.random.default_rng(3), (ROWS, WIDTH)
    for trial in range(20):
        chain, large = Chain(), 1e9 * (1 + chance.random(shape))
        if op == "linear":
            chain.linear(chance.standard_normal((WIDTH, 3)))
        elif op == "scale":
            chain.scale(chance.standard_normal(shape))
        else:
            chain.shift(chance.standard_normal(shape))
        known = chain.known()
        known.zonotopes[1] = z = ProvedZonotope(
            centre=large, columns=-large[..., None], error=np.zeros(shape), exact=trial % 2 == 0
        )
        path = images.affine_path(known, len(known.nodes) - 1, 1)
        widened(known, path, ProvedInterval(np.full(shape, -1e-12), np.full(shape, 1e-12)))
        found = images.image(known, len(known.nodes) - 1, 1)
        assert found.exact is z.exact
        value = exactly(known, path, point(z, fractions(np.ones(1)), chance), chance)
        off = value - fractions(found.centre) - fractions(found.columns) @ fractions(np.ones(1))
        assert (abs(off) <= fractions(found.error)).all()
        assert (found.error <= 1e-12 * large.max() * 10).all()  # and no more than that


@pytest.mark.parametrize("ops", [["scale"], ["linear"], ["shift", "scale"], ["scale", "scale"], ["linear", "scale"]])
def test_what_underflows_counts_where_a_factor_magnifies_it(ops: list[str]) -> None:
    """2⁻⁴⁶ of a number near the least one is 0 in floating point, and what it stands for may be multiplied by 1e300."""
    chance = np.random.default_rng(11)
    for _ in range(20):
        chain = Chain()
        for op in ops:
            if op == "linear":
                chain.linear(chance.standard_normal((WIDTH, WIDTH)) * 1e300)
            elif op == "scale":
                chain.scale(chance.standard_normal((ROWS, WIDTH)) * (1e300 if op is ops[-1] else 1e-5))
            else:
                chain.shift(chance.standard_normal((ROWS, WIDTH)) * 1e-320)
        known, z = chain.known(), random_zonotope(chance, (ROWS, WIDTH), 1e-320)
        path = images.affine_path(known, len(known.nodes) - 1, 1)
        known.zonotopes[1] = z
        with np.errstate(all="ignore"):
            widened(known, path, z.box())
            for k in (1, *path):  # its range is known exactly
                known.boxes[k] = ProvedInterval(-known.boxes[k].size, known.boxes[k].size)
            known.boxes[1] = ProvedInterval(-np.full(z.centre.shape, 1e-319), np.full(z.centre.shape, 1e-319))
            found = images.image(known, len(known.nodes) - 1, 1)
        for _ in range(4):
            xi = fractions(chance.choice([-1.0, 1.0, 0.3], z.columns.shape[-1]))
            value = exactly(known, path, point(z, xi, chance), chance)
            off = value - fractions(found.centre) - fractions(found.columns) @ xi
            assert (abs(off) <= fractions(found.error)).all()


def product_of(x: ProvedZonotope, y: ProvedZonotope) -> Known:
    """A network whose node 3 is the product of nodes 1 and 2, which have these zonotopes."""
    n, d, m = *x.centre.shape, y.centre.shape[1]
    graph = [node("Input", shape=[n, d]), node("Relu", [0], [n, d])]
    arrays = {"index": np.zeros((d, m), dtype=np.int64)}
    graph += [
        {"op": "Move", "inputs": [0], "shape": [d, m], "arrays": {"index": "index"}},
        node("MatMul", [1, 2], [n, m]),
    ]
    known = Known(network(File({"graph": graph}, arrays)), -np.ones((n, d)), np.ones((n, d)))
    known.reach(3)
    known.zonotopes |= {1: x, 2: y}
    known.boxes |= {1: x.box(), 2: y.box()}
    known.boxes[3] = known.image(3)
    return known


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-150, 1e40])
def test_every_centred_product_is_in_its_box(scale: float) -> None:
    chance = np.random.default_rng(int(-np.log10(scale)) + 200)
    for _ in range(25):
        x, unknowns = random_zonotope(chance, (3, 2), scale), object()
        x = ProvedZonotope(centre=x.centre, columns=x.columns, error=x.error, exact=False, unknowns=unknowns)
        y = random_zonotope(chance, (2, 4), float(chance.choice([1.0, scale])), unknowns=unknowns)
        weights = chance.random((3, 4))
        weights /= weights.sum(-1, keepdims=True) if chance.random() < 0.7 else 0.5
        with np.errstate(all="ignore"):
            box = images.centred_product(product_of(x, y), 3, weights)
        for _ in range(6):
            xi = fractions(chance.choice([-1.0, 1.0], 5))
            s = point(x, xi, chance) @ point(y, xi, chance)
            t = s - (fractions(weights) * s).sum(-1)[:, None]
            assert ((fractions(box.lo) <= t) & (t <= fractions(box.hi))).all()


def test_what_underflows_in_a_product_counts_where_weights_magnify_it() -> None:
    chance = np.random.default_rng(12)
    for _ in range(10):
        x = random_zonotope(chance, (3, 2), 1e-165)
        y = random_zonotope(chance, (2, 4), 1e-160, unknowns=x.unknowns)
        weights = chance.random((3, 4)) * 1e300
        with np.errstate(all="ignore"):
            box = images.centred_product(product_of(x, y), 3, weights)
        assert (box.size < 1e6).all()
        for _ in range(6):
            xi = fractions(chance.choice([-1.0, 1.0], 5))
            s = point(x, xi, chance) @ point(y, xi, chance)
            t = s - (fractions(weights) * s).sum(-1)[:, None]
            assert ((fractions(box.lo) <= t) & (t <= fractions(box.hi))).all()


def test_what_is_common_to_all_keys_cancels() -> None:
    """Scores that move together by more than a box would allow have no range once they are centred."""
    x = ProvedZonotope(centre=np.ones((1, 1)), columns=np.ones((1, 1, 1)), error=np.zeros((1, 1)), exact=False)
    flat = ProvedZonotope(
        centre=np.full((1, 3), 2.0),
        columns=np.zeros((1, 3, 1)),
        error=np.zeros((1, 3)),
        exact=False,
        unknowns=x.unknowns,
    )
    box = images.centred_product(product_of(x, flat), 3, np.full((1, 3), 0.25))  # s = 2 + 2ξ, s − ω·s = s / 4
    assert np.allclose([box.lo, box.hi], [[[0.0] * 3], [[1.0] * 3]], atol=1e-12)
    box = images.centred_product(product_of(x, flat), 3, np.array([[0.5, 0.25, 0.25]]))
    assert np.allclose([box.lo, box.hi], 0.0, atol=1e-12)


def test_zonotopes_of_other_unknowns_have_no_product() -> None:
    x, y = (random_zonotope(np.random.default_rng(0), shape, 1.0) for shape in ((2, 3), (3, 2)))
    known = product_of(x, y)
    assert not images.has_factors(known, 3)
    with pytest.raises(Rejected, match="no product of two zonotopes with the same unknowns"):
        images.centred_product(known, 3, np.ones((2, 2)))
    known.zonotopes[2] = ProvedZonotope(
        centre=y.centre, columns=y.columns, error=y.error, exact=False, unknowns=x.unknowns
    )
    assert images.has_factors(known, 3)
    assert not images.has_factors(known, 1)
    del known.zonotopes[1]
    with pytest.raises(Rejected, match="no product"):
        images.centred_product(known, 3, np.ones((2, 2)))


def test_only_affine_functions_of_the_source_alone_are_images() -> None:
    chain = Chain()
    relu, index = chain.last, np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    moved = chain.move(index[::-1])
    bent = chain.add("Relu", [moved], [ROWS, WIDTH])
    both = chain.add("Add", [moved, bent], [ROWS, WIDTH])
    twice = chain.add("Add", [moved, moved], [ROWS, WIDTH])
    joined = chain.add("Move", [moved, bent], [ROWS, WIDTH], index=index)
    product = chain.add("Multiply", [moved, moved], [ROWS, WIDTH])
    constant = chain.add("Constant", [], [ROWS, WIDTH], value=np.ones((ROWS, WIDTH)))
    fixed = chain.add("Add", [constant, constant], [ROWS, WIDTH])
    known = chain.known()
    known.zonotopes[relu] = random_zonotope(np.random.default_rng(0), (ROWS, WIDTH), 1.0)
    assert np.array_equal(images.image(known, moved, relu).centre, known.zonotopes[relu].centre[::-1])
    for number in (bent, both, twice, joined, product, constant, fixed):
        with pytest.raises(Rejected, match="is no affine function of node"):
            images.image(known, number, relu)
    with pytest.raises(Rejected, match="was not proved"):
        images.image(known, moved, 0)
    for source in (moved, bent, -1, True, "1", None, 1.0):
        with pytest.raises(Rejected, match="is not an index from 0"):
            images.image(known, moved, source)  # type: ignore[arg-type]


def test_an_image_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain()
    chain.move(np.zeros((3, 5), dtype=np.int64))
    known = chain.known()
    known.zonotopes[1] = random_zonotope(np.random.default_rng(0), (ROWS, WIDTH), 1.0)
    monkeypatch.setattr(images, "MOST_COLUMNS", 75)
    images.image(known, 2, 1)
    monkeypatch.setattr(images, "MOST_COLUMNS", 74)
    with pytest.raises(Rejected, match="node 2: its zonotope is too large"):
        images.image(known, 2, 1)
