"""Attacks in the worst direction: the solver of membership, fixed seeds of all kinds, and faults that must be found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.slowly import few
from vertex_lab.fuzz.directions import ops
from vertex_lab.fuzz.directions.__main__ import main
from vertex_lab.fuzz.directions.attack import attack_op
from vertex_lab.fuzz.directions.membership import sums, worst_direction
from vertex_lab.fuzz.directions.networks import attack_network
from vertex_softmax.ops import pairs
from vertex_softmax.ops.propagation import curves, norms
from vertex_softmax.ops.propagation.products import product_errors
from vertex_softmax.ops.unknowns import Unknowns
from vertex_softmax.ops.zonotope import RowShape, Zonotope

pytestmark = pytest.mark.usefixtures("one_quiet_thread")


def touching(seed: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Balls of several dimensions, intervals, and a point of their sum that is the farthest in some direction."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [torch.randn(m, k, 7, generator=generator, dtype=torch.float64) for m, k in ((3, 1), (2, 4), (1, 7))]
    blocks[0] = blocks[0] * 10.0 ** torch.linspace(-3, 3, 7, dtype=torch.float64)
    loose = 0.1 * torch.rand(7, generator=generator, dtype=torch.float64)
    eta = torch.randn(7, generator=generator, dtype=torch.float64)
    point = loose * eta.sign()
    for block in blocks:
        along = block @ eta
        point = point + torch.einsum("mk,mkn->n", along / torch.linalg.vector_norm(along, dim=1, keepdim=True), block)
    return blocks, loose, point


@pytest.mark.parametrize("seed", range(6))
def test_a_point_that_touches_is_inside_and_one_next_to_it_is_not(seed: int) -> None:
    blocks, loose, point = touching(seed)
    _, ratio = worst_direction(torch.stack([point, 1.0001 * point, 0.9999 * point]), sums(blocks, loose))
    assert float(ratio[0]) <= 1 + 1e-12
    assert float(ratio[1]) > 1
    assert float(ratio[2]) < 1


def test_what_nothing_is_said_of_must_not_move() -> None:
    errors = sums([], torch.tensor([0.0, 1.0], dtype=torch.float64))
    _, ratio = worst_direction(torch.tensor([[0.0, 0.5], [1e-300, 0.5]], dtype=torch.float64), errors)
    assert ratio.tolist() == [0.5, torch.inf]


@pytest.mark.parametrize("kind", ops.KINDS)
def test_no_op_is_unsound_in_any_direction(kind: str) -> None:
    for seed in range(7):
        assert attack_op(seed, kind).ratio <= 1


@pytest.mark.parametrize("seed", few([4, 18, 36], lambda seed: seed == 18))
def test_no_network_is_unsound_in_any_direction_of_several_nodes(seed: int) -> None:
    assert attack_network(seed).ratio <= 1


def test_the_size_of_the_curvature_in_place_of_its_sign_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault was seen by 1e-4 to 1e-3 in random directions, and is by a quarter in the worst one."""

    def unsigned(
        factors: list[tuple[Zonotope, Zonotope]], origin: str, weight: Tensor
    ) -> tuple[Tensor, tuple[Unknowns, Tensor] | None]:
        return product_errors(factors, origin, weight.abs())

    monkeypatch.setattr(curves, "product_errors", unsigned)
    assert attack_network(18).ratio > 1.2


def test_products_that_vanish_with_the_square_of_their_scale_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = pairs.ellipse

    def underflowing(columns: Tensor, count: int) -> tuple[Tensor, Tensor]:
        matrix, scale = exact(columns, count)
        return matrix, torch.where(scale * scale > 0, scale, torch.zeros_like(scale))

    monkeypatch.setattr(pairs, "ellipse", underflowing)
    assert attack_op(66, "parts").ratio > 1.1


def test_inner_products_that_underflow_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = norms.inner

    def underflowing(x: RowShape, y: RowShape) -> Tensor:
        return exact(x, y).square().sqrt()

    monkeypatch.setattr(norms, "inner", underflowing)
    assert attack_op(65, "bounds").ratio > 1.1


def test_the_command_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = tmp_path / "summary.json"
    assert main(["--seeds", "1", "4", "--out", str(summary)]) == 0
    found = json.loads(summary.read_text())
    assert sum(each["cases"] for each in found["kinds"].values()) == 3
    assert found["violations"] == []
    assert "3 cases" in capsys.readouterr().out
