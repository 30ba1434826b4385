"""Products of sets: the sets' own geometry, models of several inputs, and what is refused."""

from __future__ import annotations

import functools
import itertools
import re

import pytest
import torch
from torch import Tensor, nn

from tests.sets.product_cases import (
    CLASSES,
    KINDS,
    PATCHES,
    WIDTH,
    WORDS,
    Affine,
    Crossed,
    Mixed,
    Normed,
    inputs,
    made,
    pair,
    product,
)
from tests.slowly import few
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.zonotopes import input_zonotope
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, UnsupportedModelError
from vertex_softmax.graph.input_layout import InputLayout
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops.unit_sets import UnitBall
from vertex_softmax.runs.attack import attack
from vertex_softmax.runs.certify import bound, certify
from vertex_softmax.sets import Box, InputSet, LinfBall, LpBall, Product, TokenBall, Union
from vertex_softmax.sets.loading import Loaded, read
from vertex_softmax.sets.product_region import ProductRegion
from vertex_softmax.sets.region import BoxRegion, Region

SIZE = PATCHES * WIDTH + WORDS
CPU = torch.device("cpu")
QUICK = Options(search=Search(seconds=1.0))


def region_of(kind: str) -> Region:
    return product(kind).region((1, SIZE), torch.float64, CPU)


def drawn(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The set --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_points_of_a_product_are_points_of_its_sets(kind: str) -> None:
    both, (image, text) = product(kind), pair(kind)
    generator = torch.Generator().manual_seed(0)
    some = both.sample(6, generator)
    moved = both.step(some, drawn(*some.shape), 0.5)
    pulled = both.project(some + 3 * drawn(*some.shape, seed=1))
    for points in (some, moved, pulled, both.centre.unsqueeze(1)):
        assert points.shape[2:] == (SIZE,)
        for k in range(points.shape[1]):
            assert bool(both.contains(points[:, k]).all())
            a, b = both.split(points[:, k])
            assert bool(image.contains(a).all())
            assert bool(text.contains(b).all())
    outside = both.join(both.sets[0].centre, both.sets[1].upper + 1)
    assert not bool(both.contains(outside).any())
    assert torch.equal(both.project(some), some)
    assert torch.equal(both.join(*both.split(some)), some)
    assert both[1:].shape == (1, SIZE)
    assert torch.equal(both[1:].centre, both.centre[1:])
    assert both[[1, 0]].sets[1].shape == (2, WORDS)
    assert "×" in repr(both)


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_has_the_minima_and_the_boxes_of_its_sets(kind: str) -> None:
    both, parts, region = product(kind), pair(kind), region_of(kind)
    A = drawn(2, 4, 1, SIZE, seed=2)
    A[:, 0, :, ::3] = 0
    a, b = both.split(A.squeeze(2))
    apart = parts[0].support(a) + parts[1].support(b)
    assert torch.allclose(region.support(A), apart, rtol=1e-12, atol=1e-12)
    assert torch.allclose(both.support(A.squeeze(2)), apart, rtol=1e-12, atol=1e-12)
    value, point = region.minimise(A, 1.0)
    assert torch.allclose(value, 1.0 + apart, rtol=1e-12, atol=1e-12)
    assert torch.allclose((A * point).flatten(2).sum(-1) + 1, value, rtol=1e-9, atol=1e-9)
    assert torch.equal(region.box.lower.flatten(1), both.lower)
    assert torch.equal(region.box.upper.flatten(1), both.upper)
    some = both.sample(200, torch.Generator().manual_seed(4))
    reached = torch.einsum("bsn,bkn->bsk", A.flatten(2), some).amin(-1)
    assert bool((region.support(A) <= reached + 1e-12).all())


@pytest.mark.parametrize("kind", KINDS)
def test_forms_and_zonotopes_of_a_product_hold_its_points(kind: str) -> None:
    """Every functional reaches at most what the unit set and the blocks of columns say."""
    region = region_of(kind)
    some = product(kind).sample(300, torch.Generator().manual_seed(5)) - region.middle.flatten(1).unsqueeze(1)
    g = drawn(40, SIZE, seed=6)
    reached = torch.einsum("sn,bkn->bsk", g, some).abs().amax(-1)
    balls = region.unit.at(torch.arange(SIZE))
    by_unit = region.unit.reach(g * region.spread.flatten(1).unsqueeze(1), balls)
    assert bool((by_unit >= reached - 1e-12).all())
    start = input_zonotope(region, "x")
    far = torch.zeros_like(reached)
    for columns in start.spread.blocks.values():
        along = torch.einsum("sn,bijn->bsij", g, columns.flatten(3))
        far = far + torch.linalg.vector_norm(along, dim=-1).sum(-1)
    assert bool((far >= reached - 1e-12).all())
    along = torch.einsum("sn,bijn->bsij", g, region.columns().flatten(3))
    assert torch.allclose(torch.linalg.vector_norm(along, dim=-1).sum(-1), far, rtol=1e-12)


def test_the_kinds_of_balls() -> None:
    assert isinstance(region_of("boxes"), BoxRegion)
    for kind, ball in (
        ("l2 and box", UnitBall.EUCLIDEAN),
        ("l1 and box", UnitBall.CROSS),
        ("l1 and l2", UnitBall.EUCLIDEAN),
    ):
        region = region_of(kind)
        assert isinstance(region, ProductRegion)
        assert region.unit.ball is ball
    # what does not vary is in the ball, so that rules for one ball are used
    alone = region_of("point").unit.of
    assert alone is not None
    assert alone.unique().numel() == 1


def test_a_region_of_an_unknown_kind_is_taken_by_its_box() -> None:
    known = region_of("l2 and box")
    assert isinstance(known, ProductRegion)

    class Unknown(Region):
        box = known.parts[0].box

        def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
            return known.parts[0].support(A, constant)

        def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
            return known.parts[0].minimise(A, constant)

        def at(self, which: slice) -> Region:
            return known.parts[0].at(which)

        def rearranged(self, numbers: Tensor) -> Region:
            return known.parts[0].rearranged(numbers)

    mixed = ProductRegion((Unknown(), known.parts[1]), known.order)
    assert mixed.unit.cube
    assert torch.equal(mixed.middle, mixed.box.centre)
    assert torch.equal(mixed.spread, mixed.box.radius)
    assert len(mixed.blocks()) == 1
    A = drawn(2, 3, 1, SIZE)
    assert torch.allclose(mixed.support(A), known.support(A))


@pytest.mark.parametrize("kind", ["l2 and box", "l1 and l2", "boxes"])
def test_a_rearranged_product_has_the_same_numbers_elsewhere(kind: str) -> None:
    region = region_of(kind)
    numbers = torch.randperm(SIZE, generator=torch.Generator().manual_seed(3)).reshape(SIZE, 1)
    turned = region.rearranged(numbers)
    A = drawn(2, 5, 1, SIZE)
    B = A.flatten(2)[..., numbers.flatten()].reshape(2, 5, SIZE, 1)
    assert torch.allclose(turned.support(B), region.support(A), rtol=1e-12)
    assert torch.equal(turned.box.lower.flatten(1), region.box.lower.flatten(1)[:, numbers.flatten()])
    point = turned.minimise(B)[1].flatten(2)
    assert torch.equal(point, region.minimise(A)[1].flatten(2)[..., numbers.flatten()])
    assert torch.equal(turned.middle.flatten(1), region.middle.flatten(1)[:, numbers.flatten()])
    g = drawn(SIZE, seed=9)
    spreads = [g * region.spread.flatten(1), g[numbers.flatten()] * turned.spread.flatten(1)]
    reach = [
        each.unit.reach(x, each.unit.at(torch.arange(SIZE))) for each, x in zip((region, turned), spreads, strict=True)
    ]
    assert torch.allclose(*reach, rtol=1e-12)
    assert torch.allclose(turned.at(slice(1, 2)).support(B[1:]), region.support(A)[1:], rtol=1e-12)


# Models ---------------------------------------------------------------------------------------------------------------


@functools.cache
def once(network: type[nn.Module]) -> Loaded:
    """Read once: what it was read with is kept in it."""
    return read(made(network))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_affine_model_of_two_inputs_has_the_closed_form(kind: str, method: str) -> None:
    model, both, parts = made(Affine), product(kind), pair(kind)
    label = model(*inputs()).argmax(-1)
    found = certify(once(Affine), both, label, method, attack=None)
    exact = torch.full((2, CLASSES), torch.inf, dtype=torch.float64)
    for b in range(2):
        for t in range(CLASSES):
            if t == int(label[b]):
                continue
            rows = [(w[label[b]] - w[t]).detach() for w in (model.image.weight, model.text.weight)]
            A = rows[0].reshape(1, 1, PATCHES, WIDTH), rows[1].reshape(1, 1, WORDS)
            least = [float(each[b : b + 1].support(own)) for each, own in zip(parts, A, strict=True)]
            exact[b, t] = sum(least) + float((model.image.bias[label[b]] - model.image.bias[t]).detach())
    if method == "ibp":
        assert bool((found.lower <= exact + 1e-12).all())
    else:
        assert torch.allclose(found.lower, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("network", "method"),
    few(
        list(itertools.product([Crossed, Mixed, Normed], METHODS)),
        lambda *case: case in [(Crossed, "crown"), (Mixed, "joint"), (Normed, "crown")],
    ),
)
def test_no_bound_of_a_transformer_is_above_an_attack(network: type[nn.Module], method: str) -> None:
    model = made(network)
    loaded = read(model)
    label = model(*inputs()).argmax(-1)
    slow = network is Normed or method in ("bab", "joint", "alpha-crown")
    for kind in ("l2 and box", "l1 and l2") if slow else KINDS:
        for size in (1.0,) if slow else (0.5, 2.0):
            both = product(kind, size)
            found = certify(loaded, both, label, method, options=QUICK, attack=None)
            reached = attack(loaded, both, label, steps=15, restarts=2)
            assert bool((found.lower <= reached.margins + 1e-9).all()), (kind, size)
            some = both.sample(400, torch.Generator().manual_seed(7))
            with torch.no_grad():
                logits = model(*(x.flatten(0, 1) for x in both.split(some))).unflatten(0, some.shape[:2])
            margins = logits.gather(2, label[:, None, None].expand(-1, 400, 1)) - logits
            other = found.lower.isfinite()
            assert bool((found.lower <= margins.amin(1) + 1e-9)[other].all()), (kind, size)


@pytest.mark.parametrize("kind", ["l2 and box", "l1 and box", "l2 and l2"])
def test_a_product_is_never_worse_than_the_box_around_it(kind: str) -> None:
    model, both = made(Mixed), product(kind)
    image, text = (Box(each.lower, each.upper, each.centre) for each in both.sets)
    label = model(*inputs()).argmax(-1)
    ours = certify(model, both, label, "crown", attack=None).worst
    theirs = certify(model, Product(image, text), label, "crown", attack=None).worst
    assert bool((ours >= theirs - 1e-9).all())
    assert bool((ours > theirs + 1e-3).any())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_bounds_in_single_precision(kind: str, method: str) -> None:
    model, both = once(Mixed), product(kind)
    label = made(Mixed)(*inputs()).argmax(-1)
    rough = certify(model, both, label, method, dtype=torch.float32, attack=None)
    exact = certify(model, both, label, method, attack=None)
    # looser by what boxes are rounded outward, and where a fixed number is no float32: there the set is a box
    assert bool((rough.lower.double() <= exact.lower + 1e-4).all())
    assert torch.allclose(rough.lower.double(), exact.lower, atol=0.01 if kind != "point" else 0.05)
    reached = attack(model, both, label, steps=10)
    assert bool((rough.lower <= reached.margins + 1e-5).all())


def test_intervals_hold_the_outputs() -> None:
    model, both = made(Crossed), product("l2 and box")
    found = bound(model, both, "crown")
    some = both.sample(500, torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = model(*(x.flatten(0, 1) for x in both.split(some))).unflatten(0, some.shape[:2])
    assert bool((out.amin(1) >= found.lower.reshape(2, -1) - 1e-12).all())
    assert bool((out.amax(1) <= found.upper.reshape(2, -1) + 1e-12).all())


def test_a_counterexample_is_split_into_the_models_inputs() -> None:
    model, both = made(Crossed), product("l2 and box", 20.0)
    label = model(*inputs()).argmax(-1)
    found = certify(model, both, label, "crown")
    assert set(found.verdicts) == {"falsified"}
    image, text = both.split(found.counterexamples)
    assert bool(both.contains(found.counterexamples).all())
    assert bool((model(image, text).argmax(-1) != label).all())


def test_a_model_in_single_precision_judges_its_own_points() -> None:
    model, both = made(Crossed).float(), product("l2 and box", 20.0)
    label = model(*(x.float() for x in inputs())).argmax(-1)
    found = certify(model, both, label, "crown")
    assert "falsified" in found.verdicts
    image, text = (x.float() for x in both.split(found.counterexamples))
    wrong = model(image, text).argmax(-1) != label
    assert [bool(x) for x in wrong] == [verdict == "falsified" for verdict in found.verdicts]


# Order and names ------------------------------------------------------------------------------------------------------


class Difference(nn.Module):
    """Of inputs of one shape: which is which matters."""

    def forward(self, plus: Tensor, minus: Tensor, *, scale: float = 1.0) -> Tensor:
        total = scale * (3 * plus - minus).sum(-1, keepdim=True)
        return torch.cat([total, -total], -1)


def test_the_order_and_the_names_of_inputs_of_one_shape() -> None:
    plus, minus = torch.full((1, 2), 5.0), torch.full((1, 2), 1.0)
    a, b = LinfBall(plus, 0.5), LinfBall(minus, 0.25)
    model = Difference().eval()
    exact = 2 * (3 * 2 * 4.5 - 2 * 1.25)
    for both in (Product(a, b), Product(a, minus=b), Product(plus=a, minus=b), Product(minus=b, plus=a)):
        assert float(certify(model, both, 0, "crown").worst) == pytest.approx(exact, rel=1e-12)
    assert float(certify(model, Product(b, a), 0, "crown").worst) == pytest.approx(2 * (6 * 0.75 - 11.0), rel=1e-12)
    twice = read(model, kwargs={"scale": 2.0})
    assert float(certify(twice, Product(a, b), 0, "crown").worst) == pytest.approx(2 * exact, rel=1e-12)


def test_names_of_any_kind() -> None:
    a, b = LinfBall(torch.zeros(1, 2), 0.5), LinfBall(torch.ones(1, 3), 0.25)
    odd = Product(a, **{"set 0": b, "self": a})
    assert odd.names == (None, "set 0", "self")
    assert [each.shape for each in odd.sets] == [(1, 2), (1, 3), (1, 2)]
    assert odd.shape == (1, 7)


def test_inputs_that_change_places_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = LinfBall(torch.zeros(1, 2), 0.5), LinfBall(torch.zeros(1, 2), 0.25)
    honest = InputLayout.split
    monkeypatch.setattr(InputLayout, "split", lambda layout, x: honest(layout, x)[::-1])
    with pytest.raises(UnsupportedModelError, match="from one joined tensor"):
        certify(Difference().eval(), Product(a, b), 0, "crown")


def test_a_module_that_was_changed_is_refused() -> None:
    model, both = made(Crossed), product("boxes")
    loaded = read(model)
    certify(loaded, both, 0, "ibp")
    with torch.no_grad():
        model.head.weight.mul_(2)
    with pytest.raises(InvalidValueError, match="changed since it was read"):
        certify(loaded, both, 0, "ibp")


# What is refused ------------------------------------------------------------------------------------------------------


def refused(error: type[Exception], said: str, /, *sets: object, **named: object) -> None:
    with pytest.raises(error, match=re.escape(said)):
        Product(*sets, **named)  # type: ignore[arg-type]


def test_sets_that_make_no_product() -> None:
    image, text = pair("boxes")
    refused(InvalidValueError, "none was given")
    refused(InvalidTypeError, "set 1 is a Tensor", image, torch.zeros(1, 2))
    refused(InvalidTypeError, "text is a Tensor", image, text=torch.zeros(1, 2))
    refused(InvalidValueError, "set 0 holds 2 inputs and text 1", image, text=text[:1])
    refused(InvalidTypeError, "set 1 is a Product", image, Product(text))
    refused(InvalidTypeError, "set 1 is a Union", image, Union(text))
    tokens = TokenBall(torch.zeros(2, 3, 2), 0.1, ids=torch.zeros(2, 3, dtype=torch.long))
    refused(InvalidValueError, "with token ids", image, tokens)
    both = Product(image, text)
    with pytest.raises(AttributeError):
        both.sets = ()  # type: ignore[misc]
    for bad in (both.centre[:, 1:], both.centre[:1]):
        with pytest.raises(InvalidValueError, match="shape"):
            both.contains(bad)
    with pytest.raises(InvalidValueError, match="2 inputs"):
        both.join(image.centre)
    with pytest.raises(InvalidValueError, match="input 1 has shape"):
        both.join(image.centre, image.centre)


def test_products_that_do_not_fit_the_model() -> None:
    model, (image, text) = made(Crossed), pair("boxes")

    def fails(both: InputSet, said: str) -> None:
        with pytest.raises(InvalidValueError, match=re.escape(said)):
            certify(model, both, 0, "ibp")

    fails(Product(image), "1 sets, which do not fit")
    fails(Product(image, text, text), "3 sets, which do not fit")
    fails(Product(image, sound=text), "no input 'sound'; its arguments are 'image', 'text'")
    fails(Product(image, image=text), "multiple values")
    fails(Product(text, image), "shapes (1, 4), (1, 5, 3)")
    with pytest.raises(InvalidValueError, match="among the constant arguments"):
        certify(read(model, kwargs={"text": torch.zeros(1, WORDS)}), Product(image, text=text), 0, "ibp")
    graph = read(model).graph(Product(image, text))
    assert certify(graph, Product(image, text), 0, "ibp").worst.shape == (2,)
    with pytest.raises(InvalidValueError, match="joined, but the network takes"):
        certify(graph, Product(image), 0, "ibp")


@pytest.mark.parametrize("method", ["ibp", "crown", "joint"])
def test_a_product_of_points_is_a_point(method: str) -> None:
    model, (image, text) = made(Mixed), inputs()
    label = model(image, text).argmax(-1)
    found = certify(model, Product(LpBall(image, 0.0, 2), LpBall(text, 0.0, 1)), label, method)
    assert torch.allclose(found.lower, found.clean, rtol=1e-9)
    assert found.verdict == "verified"


def test_one_set_alone_is_a_product_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()
    x = drawn(2, 4)
    label = model(x).argmax(-1)
    for ball in (LinfBall(x, 0.1), LpBall(x, 0.2, 2)):
        alone = certify(model, ball, label, "crown")
        joined = certify(model, Product(ball), label, "crown")
        assert torch.allclose(alone.lower, joined.lower, rtol=1e-12)
