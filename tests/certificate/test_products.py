"""Certificates of products and unions: about every point of every member, and of the inputs in their order."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from tests.certificate import exact
from tests.graph.test_onnx_inputs import SETS, difference, saved
from tests.sets.product_cases import KINDS, Crossed, inputs, made, pair, product
from vertex_softmax.certificate.checker import check
from vertex_softmax.certificate.checker.file import read
from vertex_softmax.certificate.checker.input_sets import CheckedBalls, CheckedBox, CheckedSet
from vertex_softmax.certificate.comparison import not_covered
from vertex_softmax.certificate.input_sets import checked_set
from vertex_softmax.cli.main import app
from vertex_softmax.foundation.errors import InvalidTypeError
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import InputSet, LpBall, Product, Union
from vertex_softmax.sets.product_region import ProductRegion
from vertex_softmax.sets.region import BoxRegion, Region

CPU = torch.device("cpu")


def asked(given: InputSet, i: int) -> CheckedSet:
    return checked_set(given[i].region((1, given.shape[1]), torch.float64, CPU))


def inside(outer: CheckedSet, x: Tensor) -> bool:
    """Whether a point is in the checker's set, in rational arithmetic."""
    flat = [Fraction(v) for v in x.flatten().tolist()]
    ends = zip(outer.lower.ravel().tolist(), flat, outer.upper.ravel().tolist(), strict=True)
    if not all(Fraction(a) <= v <= Fraction(b) for a, v, b in ends):
        return False
    if isinstance(outer, CheckedBox):
        return True
    assert isinstance(outer, CheckedBalls)
    totals: dict[int, Fraction] = {}
    rows = (outer.members, outer.middle, outer.radius)
    for v, ball, centre, radius in zip(flat, *(each.ravel().tolist() for each in rows), strict=True):
        off = abs(v - Fraction(centre))
        if off and not radius:
            return False
        totals[ball] = totals.get(ball, Fraction(0)) + ((off / Fraction(radius)) ** outer.norm if off else 0)
    return all(total <= 1 for total in totals.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_set_of_a_certificate_holds_every_point(kind: str) -> None:
    both = product(kind)
    some = both.sample(40, torch.Generator().manual_seed(0))
    A = torch.randn(2, 10, both.shape[1], dtype=torch.float64)
    corners = both.project(both.region((both.shape[1],), torch.float64, CPU).minimise(A)[1])
    for i in range(2):
        outer = asked(both, i)
        assert all(inside(outer, x) for x in (*some[i], *corners[i], both.centre[i]))
        assert not inside(outer, both.upper[i] + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_has_a_certificate(kind: str) -> None:
    model, both = made(Crossed, 2), product(kind, 0.1)
    label = model(*inputs()).argmax(-1)
    found = certify(model, both, label, "crown", certificate=True)
    larger = product(kind, 0.11)
    for i, certificate in enumerate(found.certificates):
        assert found.verdicts[i] == "verified"
        assert certificate is not None
        assert certificate.check().accepted
        file = read(certificate.data)
        assert not_covered(file, asked(both, i)) == ""
        assert not_covered(file, asked(larger, i)) != ""
        assert not_covered(file, asked(both, 1 - i)) != ""


def test_a_union_has_one_certificate_with_a_part_for_every_member() -> None:
    model = made(Crossed, 2)
    members = [product(kind, 0.1) for kind in ("boxes", "l2 and box", "l1 and box")]
    label = model(*inputs()).argmax(-1)
    found = certify(model, Union(*members), label, "crown", certificate=True)
    apart = [certify(model, each, label, "crown", certificate=True) for each in members]
    for i, certificate in enumerate(found.certificates):
        assert certificate is not None
        file = read(certificate.data)
        assert len(file.header["parts"]) == 3
        assert all(not_covered(file, asked(each, i)) == "" for each in members)
        assert check(certificate.data).accepted
        alone = [each.certificates[i] for each in apart]
        assert certificate.margin == min(each.margin for each in alone if each is not None)


def test_what_is_proved_is_proved_of_all_members() -> None:
    """`rigorous`: the bound is the least of the members'; and one member without proof leaves no certificate."""
    model = made(Crossed, 2)
    members = [product("boxes", 0.1), product("l2 and box", 0.2)]
    label = model(*inputs()).argmax(-1)
    found = certify(model, Union(*members), label, "crown", rigorous=True, attack=None)
    apart = torch.stack([certify(model, e, label, "crown", rigorous=True, attack=None).lower for e in members])
    assert torch.equal(found.lower, apart.amin(0))
    for order in ((0, 1), (1, 0)):
        pair_ = [members[0], product("boxes", 30.0)]
        wide = Union(*(pair_[k] for k in order))
        none = certify(model, wide, label, "crown", certificate=True, attack=None)
        assert none.certificates == (None, None)
        assert "verified" not in none.verdicts


def test_a_region_that_certificates_do_not_know_is_refused() -> None:
    region = product("l2 and box").region((19,), torch.float64, CPU)
    assert isinstance(region, ProductRegion)

    class Other(Region):
        box = region.parts[1].box

        def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
            return region.parts[1].support(A, constant)

        def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
            return region.parts[1].minimise(A, constant)

        def at(self, which: slice) -> Region:
            return region.parts[1].at(which)

        def rearranged(self, numbers: Tensor) -> Region:
            return region.parts[1].rearranged(numbers)

    with pytest.raises(InvalidTypeError, match="LpRegion and Other"):
        checked_set(ProductRegion((region.parts[0], Other()), region.order))


def test_a_certificate_of_a_file_is_about_its_inputs_in_their_order(tmp_path: Path) -> None:
    """`vertex check` reads the model with the inputs that the certificate names: another order is another network."""
    path, (a, b) = saved(tmp_path, difference()), SETS
    both = Product(minus=b, plus=LpBall(a.centre, 0.25, 2))
    (certificate,) = certify(path, both, 0, "crown", certificate=True).certificates
    assert certificate is not None
    proof = certificate.save(tmp_path / "proof.vertex")
    assert read(certificate.data).header["model"]["inputs"] == ["minus", "plus"]
    run = CliRunner().invoke(app, ["check", str(proof), path])
    assert run.exit_code == 0, run.output
    assert "inputs minus, plus, in this order" in run.output

    def tampered(names: object) -> str:
        file = exact.read(certificate.data)
        file.header["model"].pop("inputs")
        if names is not None:
            file.header["model"]["inputs"] = names
        other = tmp_path / "other.vertex"
        other.write_bytes(file.data())
        run = CliRunner().invoke(app, ["check", str(other), path, "--json"])
        assert run.exit_code == 1, run.output
        return str(json.loads(run.stdout)["reason"])

    assert tampered(["plus", "minus"]) != ""
    assert "each once" in tampered(["plus"])
    assert "does not name" in tampered("plus")
    assert "does not name" in tampered([1, 2])
    assert "2 inputs" in tampered(None)


def test_boxes_of_two_inputs_are_one_box() -> None:
    region = product("boxes").region((1, 19), torch.float64, CPU)
    assert isinstance(region, BoxRegion)
    image, text = pair("boxes")
    lower = torch.cat([image.lower.flatten(1), text.lower], 1)
    assert np.array_equal(asked(product("boxes"), 0).lower, lower[:1].numpy())
