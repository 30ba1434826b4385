"""Radii of single words and patches: each was certified itself, with nothing else moving, and no point breaks it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from tests.runs.made import inputs, network, subject_of
from tests.runs.words import IDS, words
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs import part_radii as module
from vertex_softmax.runs import radius
from vertex_softmax.runs.bisection import Bisection
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.part_radii import each_alone, part_radii, parts_of, pieces
from vertex_softmax.runs.run import Run, read
from vertex_softmax.runs.sentences import Sentences
from vertex_softmax.runs.subject import Inputs, Subject, subject
from vertex_softmax.sets import LpBall, TokenBall
from vertex_softmax.sets.loading import read as loaded

pytestmark = pytest.mark.usefixtures("exported_once")
HOW = Bisection(least=1e-3, most=2.0, precision=0.3, attack_steps=8, attack_restarts=1)
TEXTS = {3: "the", 14: "##film", 15: "was", 9: "good"}


def sentences(norm: float = math.inf, count: int = 2) -> tuple[Subject, Inputs]:
    original = loaded(words())
    with torch.no_grad():
        labels = words()(IDS[:count]).argmax(1)
    labels[count - 1] = 1 - labels[count - 1]  # the last one is misclassified
    some = Sentences("ids.json", IDS[:count], labels, tuple(range(count))).inputs(original, None, norm)
    return subject(original, some, "words"), dataclasses.replace(some, words=TEXTS)


@pytest.fixture(scope="module")
def by_word(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    about, some = sentences()
    out = tmp_path_factory.mktemp("words")
    return part_radii(about, some, parts_of(some), ("ibp", "crown"), out, HOW), out


@pytest.fixture(scope="module")
def by_patch(tmp_path_factory: pytest.TempPathFactory) -> Run:
    some = dataclasses.replace(inputs(5).at([0, 4]), norm=2.0)
    out = tmp_path_factory.mktemp("patches")
    return part_radii(subject_of(some), some, parts_of(some, (2, 2)), ("crown",), out, HOW)


def test_every_radius_of_a_word_was_certified_itself(by_word: tuple[Run, Path]) -> None:
    run, out = by_word
    assert run == read(out)
    assert run.parts is not None
    assert len(run.part_radii) == 2 * 2 * 4
    model, generator = words().double(), torch.Generator().manual_seed(0)
    for found in run.part_radii:
        x, place = run.inputs[found.input], run.parts.places[found.part]
        if found.input == 1:
            assert (found.certified, found.attacked) == (0.0, 0.0)
            continue
        assert 0 < found.certified < (found.attacked or math.inf)
        ball = TokenBall.of(model, torch.tensor([x.ids]), found.certified, [place])
        assert bool(certify(model, ball, x.label, found.method, attack=None).certified.all())
        points = ball.sample(400, generator)[0]
        assert bool((points[:, torch.arange(4) != place] == ball.centre[:, torch.arange(4) != place]).all())
        hidden = points + torch.nn.functional.scaled_dot_product_attention(
            model.query(points), model.key(points), model.value(points)
        )
        assert bool((model.head(hidden.mean(1)).argmax(1) == x.label).all())


def test_a_word_alone_may_move_further_than_all_together(by_word: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = by_word
    about, some = sentences()
    whole = radius.radii(about, some, ("crown",), tmp_path, HOW)
    together = next(r.certified for r in whole.radii if r.input == 0)
    assert all(together <= r.certified for r in run.part_radii if r.input == 0 and r.method == "crown")
    assert whole.attention[0].about == f"all tokens move within ε = {together:.6g}"


def test_words_are_kept(by_word: tuple[Run, Path]) -> None:
    run, _ = by_word
    assert run.words == {"3": "the", "9": "good", "14": "##film", "15": "was"}
    assert run.title == "Certified radii of single words: words on ids.json"
    weakest = min((r for r in run.part_radii if r.input == 0 and r.method == "crown"), key=lambda r: r.certified)
    assert run.parts is not None
    said = f"{run.parts.name(weakest.part)} alone moves within ε = {weakest.certified:.6g}"
    assert [rows.about for rows in run.attention] == [said, ""]
    assert run.attention[0].layers[0].lower is not None
    assert run.attention[1].layers[0].lower is None  # of a misclassified sentence nothing is certified


def test_a_patch_moves_alone(by_patch: Run) -> None:
    run = by_patch
    assert run.parts is not None
    assert run.parts.grid == (2, 2)
    assert run.attention == ()
    some = dataclasses.replace(inputs(5).at([0]), norm=2.0)
    alone = each_alone(some, run.parts)
    generator = torch.Generator().manual_seed(0)
    for found in run.part_radii:
        if found.input == 1:
            assert (found.certified, found.attacked) == (0.0, 0.0)
            continue
        assert 0 < found.certified < (found.attacked or math.inf)
        row, column = divmod(found.part, 2)
        moves = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
        moves[..., 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 1.0
        ball = LpBall(some.x, found.certified * moves, 2, clip=(0, 1))
        asked = alone.at([found.part]).ball(found.certified)
        assert torch.equal(asked.lower, ball.lower)
        assert torch.equal(asked.upper, ball.upper)
        assert bool(certify(network(), ball, some.labels, "crown", attack=None).certified.all())
        points = ball.sample(400, generator)[0]
        assert bool((network()(points).argmax(1) == some.labels).all())


def test_a_second_run_asks_nothing(by_word: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, out = by_word
    (tmp_path / "journal.jsonl").write_bytes((out / "journal.jsonl").read_bytes())
    about, some = sentences()
    monkeypatch.setattr(radius, "certify", None)
    monkeypatch.setattr(Subject, "attack", None)
    again = part_radii(about, some, parts_of(some), ("ibp", "crown"), tmp_path, HOW)
    assert again.part_radii == run.part_radii
    assert again.attention == run.attention


def test_pieces_change_nothing(by_word: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, _ = by_word
    about, some = sentences()
    parts = parts_of(some)
    assert [list(piece) for piece in pieces(some, parts)] == [[0, 1]]
    monkeypatch.setattr(module, "MOST_NUMBERS", 1)
    assert [list(piece) for piece in pieces(some, parts)] == [[0], [1]]
    seen: list[tuple[str, int, int]] = []
    how = dataclasses.replace(HOW)
    found = part_radii(about, some, parts, ("crown",), tmp_path, how, watch=lambda *what: seen.append(what))
    expected = [(r.input, r.part, r.certified) for r in run.part_radii if r.method == "crown"]
    assert [(r.input, r.part) for r in found.part_radii] == [(i, k) for i, k, _ in expected]
    assert [r.certified for r in found.part_radii] == pytest.approx([c for *_, c in expected], rel=1e-9)
    assert seen[-1] == ("crown", 8, 8)


def test_some_tokens_and_bad_parts(tmp_path: Path) -> None:
    about, some = sentences()
    few = parts_of(dataclasses.replace(some, tokens=(1, 3)))
    assert few.places == (1, 3)
    assert each_alone(some, few).moving.tolist() == 2 * [[False, True, False, False], [False, False, False, True]]  # type: ignore[union-attr]
    images = inputs(2)
    with pytest.raises(VertexError, match="the inputs are numbers"):
        each_alone(images, few)
    with pytest.raises(VertexError, match="the inputs are token ids"):
        each_alone(some, parts_of(images, (2, 2)))
    with pytest.raises(VertexError, match="at least one"):
        part_radii(about, some, few, (), tmp_path)


def test_what_moves_counts() -> None:
    _, some = sentences()
    alone = each_alone(some, parts_of(some))
    one = dataclasses.replace(alone, moving=~alone.moving)  # type: ignore[operator]
    assert len({some.sha256, alone.sha256, one.sha256}) == 3
