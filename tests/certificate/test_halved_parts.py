"""Certificates over the boxes into which a search has cut the input: they cover the set, or nothing is accepted."""

from __future__ import annotations

import dataclasses
import functools
from decimal import Decimal
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import vertex_softmax as vx
from vertex_softmax.bounds.aims import Search
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.halving import ClosedBox
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record
from vertex_softmax.certificate.certificate import Certificate, CertificatePart, Effort, prove
from vertex_softmax.certificate.checker import check
from vertex_softmax.certificate.checker.file import File, read
from vertex_softmax.certificate.comparison import missing, not_covered
from vertex_softmax.certificate.forbidden_case import ForbiddenCase
from vertex_softmax.certificate.halved_parts import parts_of
from vertex_softmax.certificate.input_sets import checked_set
from vertex_softmax.certificate.planting import Searched
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods import bab
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import Rules
from vertex_softmax.sets.region import BoxRegion
from vertex_softmax.specs.vnnlib import read_vnnlib

OPTIONS = Options(goal=0.0, search=Search(seconds=None, narrowing=0.0))


def row_of_attention() -> tuple[nn.Module, vx.LinfBall]:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Parameter(torch.randn(2) * 2), nn.Linear(2, 2), nn.Linear(2, 2)
            self.out = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = torch.softmax(self.k(x) @ self.q, -1)
            return self.out((weights.unsqueeze(-1) * self.v(x)).sum(1))

    torch.manual_seed(1)
    model = Head().double().eval()
    return model, vx.LinfBall(torch.rand(1, 4, 2, dtype=torch.float64), 0.85)


@functools.cache
def answer() -> tuple[vx.Certification, nn.Module, vx.LinfBall]:
    """A row of attention that is decided in halves alone, with its certificate."""
    model, ball = row_of_attention()
    label = model(ball.lower / 2 + ball.upper / 2).argmax(-1)
    with mock.patch.object(bab, "BRIEF", 1):  # else splits inside of the network are enough
        return vx.certify(model, ball, label, "bab", options=OPTIONS, certificate=True), model, ball


def proof() -> Certificate:
    certificate = answer()[0].certificates[0]
    assert certificate is not None
    return certificate


def spec(folder: Path, ball: vx.LinfBall, winner: int) -> Path:
    lines = [f"(declare-const X_{i} Real)" for i in range(8)] + [f"(declare-const Y_{i} Real)" for i in range(2)]
    for i, (low, high) in enumerate(zip(ball.lower.flatten().tolist(), ball.upper.flatten().tolist(), strict=True)):
        lines += [f"(assert (>= X_{i} {Decimal(low):f}))", f"(assert (<= X_{i} {Decimal(high):f}))"]
    path = folder / "asked.vnnlib"
    path.write_text("\n".join([*lines, f"(assert (>= Y_{1 - winner} Y_{winner}))"]))
    return path


def test_what_is_decided_in_halves_has_a_certificate(tmp_path: Path) -> None:
    found, model, ball = answer()
    assert found.verdict == "verified"
    file, verdict = read(proof().save(tmp_path / "proof")), check(proof().data)
    assert verdict.accepted
    assert len(file.header["parts"]) > 4
    winner = int(model(ball.lower).argmax())
    assert missing(file, read_vnnlib(spec(tmp_path, ball, winner))) == ""
    assert missing(file, read_vnnlib(spec(tmp_path, ball, 1 - winner))) != ""  # of the other output nothing is proved
    wider = vx.LinfBall(ball.lower / 2 + ball.upper / 2, 0.851)
    assert "no part of the certificate contains" in missing(file, read_vnnlib(spec(tmp_path, wider, winner)))


def test_a_part_less_covers_no_more(tmp_path: Path) -> None:
    _, model, ball = answer()
    file, prop = (
        read(proof().save(tmp_path / "proof")),
        read_vnnlib(spec(tmp_path, ball, int(model(ball.lower).argmax()))),
    )
    parts = file.header["parts"]
    for k in range(len(parts)):
        fewer = File({**file.header, "parts": parts[:k] + parts[k + 1 :]}, file.arrays)
        assert missing(fewer, prop) != ""
    for k in (0, len(parts) // 2):  # a hole as thin as can be
        name = parts[k]["lower"]
        lower = file.arrays[name].copy()
        inside = np.flatnonzero(lower.reshape(-1) > ball.lower.numpy().reshape(-1))
        number = int(inside[0]) if len(inside) else 0
        lower.reshape(-1)[number] = np.nextafter(lower.reshape(-1)[number], np.inf)
        assert missing(File(file.header, {**file.arrays, name: lower}), prop) != ""


def test_a_set_is_covered_by_all_parts_together(tmp_path: Path) -> None:
    _, _, ball = answer()
    file = read(proof().save(tmp_path / "proof"))
    centre, cpu = ball.lower / 2 + ball.upper / 2, torch.device("cpu")
    balls = (ball, vx.LinfBall(centre, 0.86))
    sets = [each.region((1, 4, 2), torch.float64, cpu) for each in balls]
    assert not_covered(file, checked_set(sets[0])) == ""
    assert "no part of the certificate contains the set" in not_covered(file, checked_set(sets[1]))
    parts = file.header["parts"]
    for k in range(len(parts)):
        fewer = File({**file.header, "parts": parts[:k] + parts[k + 1 :]}, file.arrays)
        assert not_covered(fewer, checked_set(sets[0])) != ""


def test_a_case_that_is_excluded_elsewhere_is_not_covered(tmp_path: Path) -> None:
    """Over [0, 1] the certificate has x > −1, and only over [1, 2] it has x > 0.5: of [0, 1] it says less."""
    x = build.source((1,))
    parts = [
        CertificatePart(
            np.full(1, low), np.full(1, low + 1), [ForbiddenCase(np.ones((1, 1)), np.full(1, goal), np.ones(1))]
        )
        for low, goal in ((0.0, -1.0), (1.0, 0.5))
    ]
    made = prove(Graph(x, x), parts, Effort(Ascent(steps=0)))
    assert made.certificate is not None
    file = read(made.certificate.save(tmp_path / "proof"))
    region = BoxRegion(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
    assert "over other inputs" in not_covered(file, checked_set(region))


def searched(boxes: list[tuple[float, float]], cases: tuple[int, ...] = (0,)) -> Searched:
    x = build.source((1,))
    graph = Graph(x, x)
    record = Record()
    ends = [torch.tensor([[low], [high]], dtype=torch.float64) for low, high in boxes]
    record.note_halves([ClosedBox(low, high, cases) for low, high in ends], cases)
    region = BoxRegion(torch.zeros(1, 1).double(), torch.ones(1, 1).double())
    return Searched(Question.over(graph, region), Rules(), record, {k: k for k in cases})


def whole(*searches: Searched, cases: int = 1) -> CertificatePart:
    case = ForbiddenCase(np.ones((1, 1)), np.zeros(1), np.ones(1))
    return CertificatePart(np.zeros(1), np.ones(1), [case] * cases, searches=searches)


@pytest.mark.parametrize("boxes", [[(0.0, 0.5), (0.5, 1.0)], [(0.0, 0.25), (0.5, 1.0), (0.25, 0.5)], [(-1.0, 2.0)]])
def test_boxes_that_cover_take_the_place_of_the_part(boxes: list[tuple[float, float]]) -> None:
    parts = parts_of(whole(searched(boxes)))
    assert [(float(part.lower[0]), float(part.upper[0])) for part in parts] == boxes
    assert all(part.numbers == (0,) and not part.searches for part in parts)


@pytest.mark.parametrize("boxes", [[(0.0, 0.5)], [(0.0, 0.5), (0.5000001, 1.0)], []])
def test_boxes_that_do_not_cover_do_not(boxes: list[tuple[float, float]]) -> None:
    part = whole(searched(boxes))
    assert parts_of(part) == [part]


def test_cases_that_are_not_decided_stay() -> None:
    both = searched([(0.0, 0.5), (0.5, 1.0)], cases=(1,))
    other = dataclasses.replace(both, record=Record(), cases={0: 2}, weights={2: np.full(1, 3.0)})
    first, *boxes = parts_of(whole(both, other, cases=3))
    assert first.numbers == (0, 2)
    assert len(first.cases) == 2
    assert [search.cases for search in first.searches] == [{}, {0: 1}]
    assert list(first.searches[1].weights) == [1]
    assert [part.numbers for part in boxes] == [(1,), (1,)]


def test_a_set_that_is_no_box_is_not_cut() -> None:
    ball = vx.LpBall(torch.zeros(1, 1, dtype=torch.float64), 1.0, 2).region((1,), torch.float64, torch.device("cpu"))
    part = dataclasses.replace(whole(searched([(-2.0, 0.5), (0.5, 2.0)])), region=ball)
    assert parts_of(part) == [part]


def test_what_joint_decides_is_proved_in_halves_where_the_checker_is_less_sure(tmp_path: Path) -> None:
    """The bound of `joint` is just positive, and that of the checker's own arithmetic is not."""
    model, ball = row_of_attention()
    label, ball = model(ball.lower).argmax(-1), vx.LinfBall(ball.lower / 2 + ball.upper / 2, 0.8)
    found = vx.certify(model, ball, label, "bab", options=OPTIONS, certificate=True)
    certificate = found.certificates[0]
    assert found.effort == {}  # the search did nothing
    assert certificate is not None
    assert certificate.check().accepted
    file = read(certificate.save(tmp_path / "proof"))
    assert len(file.header["parts"]) > 1
    assert missing(file, read_vnnlib(spec(tmp_path, ball, int(label)))) == ""


def test_rigorous_bounds_are_the_least_over_all_parts() -> None:
    model, ball = row_of_attention()
    label = model(ball.lower).argmax(-1)
    found = vx.certify(model, ball, label, "bab", options=OPTIONS, certificate=True, rigorous=True)
    attacked = vx.attack(model, ball, label).worst
    assert found.certificates[0] is not None
    assert 0 < float(found.worst) <= float(attacked)
    assert float(found.worst) <= found.certificates[0].margin


@pytest.mark.parametrize("domains", [1, 2, 12])
def test_halves_that_come_to_no_end_are_no_proof(domains: int) -> None:
    """The last number of x is below 0 in a corner of the box: most halves have a proof, and the whole has none."""
    x = build.source((2,))
    case = ForbiddenCase(np.array([[0.0, 1.0]]), np.zeros(1), np.ones(1))  # x₁ ≤ 0
    part = CertificatePart(np.array([0.0, -0.01]), np.array([1.0, 1.0]), [case])
    search = Search(seconds=None, domains=domains)
    found = prove(Graph(x, x), [part], Effort(Ascent(steps=2), search=search))
    assert found.certificate is None
    assert not found.margin > 0
