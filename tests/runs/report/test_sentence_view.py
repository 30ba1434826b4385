"""Sentences on a page: every word with its radii, the words that break it, the choices; all of it text."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.runs.report.sentences_made import WORDS, choices_run, words_run
from tests.runs.report.test_run_page import BAD, Page, check_alone
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs.parts import PartRadius, Parts
from vertex_softmax.runs.report import run_page, sentence_view
from vertex_softmax.runs.report.run_data import Facts
from vertex_softmax.runs.report.sentence_view import EpsScale, choice_views, replaced, word_views
from vertex_softmax.runs.run import Radius, Run, RunInput, read, write


def page(run: Run, place: Path) -> Page:
    """As it is read from a file."""
    write(run, place)
    text = run_page.write(place).read_text()
    check_alone(text)
    return Page(text)


def test_words_have_the_largest_radius_of_all_methods() -> None:
    (first, second), left = word_views(words_run())
    assert left == 0
    assert [w.text for w in first.words] == ["[CLS]", "the", "film", "was", "un", "believ", "ably", "good"]
    assert [w.joined for w in first.words] == [False] * 5 + [True, True, False]
    assert [w.certified for w in first.words] == ["", "0.15", "0.3", "0.45", "0.6", "0.75", "0.9", "1.05"]
    assert [w.fooled for w in first.words] == ["", "0.2", "0.4", "0.601", "0.8", "1", "1.21", "–"]
    assert [w.place for w in first.words if w.weakest] == [1]
    assert (first.words[0].step, first.words[1].step, first.words[-2].fooled_step) == (0, 1, 7)
    assert first.said == [
        "The word that is certified least far is “the”: up to ε = 0.15.",
        "The attack breaks the sentence by moving one word, for 6 of 7 words; soonest “the” (ε = 0.2), "
        "“film” (ε = 0.4), “was” (ε = 0.601).",
    ]
    assert second.wrong
    assert not any(w.weakest for w in second.words)
    assert second.said == ["The network is wrong about the sentence itself: there is nothing to certify."]


def test_what_is_not_certified_and_not_broken_is_told() -> None:
    run = words_run()
    radii = tuple(dataclasses.replace(r, certified=0.0, attacked=None) for r in run.part_radii if r.input == 0)
    (first, _), _ = word_views(dataclasses.replace(run, part_radii=radii))
    assert first.said[0].startswith("Not certified at any ε that was tried: “the”, “film”")
    assert first.said[1] == "The attack did not break the sentence by moving one word, at any ε that was tried."
    assert {w.step for w in first.words} == {0}


def test_colours_are_steps_of_a_factor() -> None:
    scale = EpsScale.of([0.01, 1.28, 0.0])
    assert [scale.step(0.01 * 2**k * 1.001) for k in range(7)] == list(range(1, 8))
    assert (scale.step(None), scale.step(0.0), scale.step(1e-9), scale.step(1e9)) == (0, 0, 1, 7)
    assert scale.key()[0] == (1, "0.01 to 0.02")
    assert EpsScale.of([]).key() == [(7, "1")]
    assert EpsScale.of([5e-324, 1e300]).step(1.0) in range(1, 8)
    assert len(EpsScale.of([5e-324, 1e300]).key()) == 7


def test_the_page_of_words(tmp_path: Path) -> None:
    found = page(words_run(), tmp_path)
    assert "Word by word" in found.text
    assert "A word of 2 sentences may move alone by ε = 0" in found.text
    assert "wrong about 1 of them as they are" in found.text
    assert "one word at a time" in found.text
    assert set(found.all("data-rows")) == {"0", "1"}
    assert found.data["parts"]["words"][0][5] == "believ"
    assert found.data["parts"]["best"][0][0] == [0.15, 0.2]
    assert found.data["attention"][0]["words"][1] == "the"
    assert "contradicts itself" not in found.text


def test_the_page_of_choices(tmp_path: Path) -> None:
    run = choices_run()
    found = page(run, tmp_path)
    (first, second), left = choice_views(run)
    assert left == 0
    assert (first.number, second.number) == (4, 5)
    assert [w.becomes for w in second.words] == ["", "", "not", "awful"]
    assert [(c.text, c.breaks, c.chosen) for _, _, some in second.choices for c in some] == [
        ("was", False, False),
        ("not", False, True),
        ("good", False, False),
        ("awful", True, True),
    ]
    assert first.said == [
        "bab, 4 combinations: all are right (1 set of them bounded, 7 evaluations of the network).",
        "crown, 4 combinations: not decided.",
        "None of the 2 other words breaks it alone.",
    ]
    assert second.said == [
        "These words break it: “was” → “not”, “good” → “awful”.",
        "bab, about 10^30 combinations: one is wrong (0 sets of them bounded, 1 evaluation of the network).",
        "Of the 2 other words, 1 breaks it alone: “good” → “awful”.",
    ]
    assert replaced(run, run.sentences[1]) == ["2: was → not", "3: good → awful"]
    assert replaced(run, run.sentences[0]) == []
    for text in (*first.said, *second.said, "2: was → not, 3: good → awful", "misclassified"):
        assert text in found.text
    assert found.data["attention"][0]["words"] == ["the", "film", "was", "good"]


def test_hostile_words_are_text(tmp_path: Path) -> None:
    bad = {key: BAD + key for key in WORDS}
    for run, many in ((words_run(words=bad), 16), (choices_run(words=bad), 8)):
        hostile = dataclasses.replace(run, data=dataclasses.replace(run.data, classes=(BAD, BAD)))
        rows = tuple(
            dataclasses.replace(rows, about=BAD, layers=tuple(dataclasses.replace(x, name=BAD) for x in rows.layers))
            for rows in hostile.attention
        )
        found = page(dataclasses.replace(hostile, attention=rows), tmp_path)
        shown = BAD.replace("\u2028", "\\u2028").replace("\ud800", "\\ud800")[:59]
        assert found.text.count(shown) >= many
        assert found.data["attention"][0]["about"] == BAD
        assert all(len(text) <= 60 for text in found.data["attention"][0]["words"])


def test_sentences_without_texts_or_radii(tmp_path: Path) -> None:
    run = words_run(words={}, part_radii=(), attention=())
    found = page(run, tmp_path)
    assert "no complete answer yet" in found.text
    assert found.data["parts"]["words"][0][0] == "1"
    assert found.data["inputs"]["text"] is None
    empty = dataclasses.replace(run, inputs=(), parts=Parts("tokens", (0,)))
    assert "This run has no inputs" in page(empty, tmp_path).text
    bare = tuple(dataclasses.replace(s, choices={}, alone={}) for s in choices_run().sentences)
    found = page(choices_run(sentences=bare, words={}, attention=()), tmp_path)
    assert "2: 4 → 9" in found.text  # as runs of before have them


def test_numbers_of_any_size(tmp_path: Path) -> None:
    radii = (PartRadius(0, 0, "crown", 5e-324, 1e-323, 1e300, 1e300), PartRadius(0, 1, "crown", 1e300, None, None, 0.0))
    found = page(words_run(part_radii=radii), tmp_path)
    assert found.data["parts"]["best"][0][1] == [1e300, None]
    sentence = dataclasses.replace(
        choices_run().sentences[0], clean=1e300, bound=1e300, alone={"1": (1e300, 5e-324), "3": (None, None)}
    )
    assert "+1e+300" in page(choices_run(sentences=(sentence,), attention=()), tmp_path).text


def test_many_sentences_are_left_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_view, "MOST_WORDS", 8)
    monkeypatch.setattr(sentence_view, "MOST_CHOICES", 8)
    found = page(words_run(), tmp_path)
    assert "1 more sentence" in found.text
    assert len(found.data["parts"]["input"]) == 28
    assert "1 more sentence" in page(choices_run(), tmp_path).text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"certified": 0.3, "attacked": 0.2}, "1 certified radii reach beyond an ε at which the input was fooled"),
        ({"input": 1, "certified": 0.1}, "1 answers certify an input that is misclassified"),
    ],
)
def test_radii_that_contradict_the_attack_are_told(change: dict[str, float], text: str) -> None:
    run = words_run()
    radii = [r for r in run.part_radii if r.method == "crown" and r.part and r.input == 0]
    radii.append(dataclasses.replace(run.part_radii[0], **change))  # type: ignore[arg-type]
    (said,) = Facts.of(dataclasses.replace(run, part_radii=tuple(radii))).contradictions()
    assert text in said


def test_a_verified_sentence_that_a_word_breaks_is_told() -> None:
    run = choices_run()
    assert not Facts.of(run).contradictions()
    wrong = dataclasses.replace(run.sentences[0], alone={"1": (2.5, -0.5), "3": (2.5, 3.5)})
    said = ["1 sentences are called verified, of which a combination of words is wrong"]
    assert Facts.of(dataclasses.replace(run, sentences=(wrong,))).contradictions() == said
    other = dataclasses.replace(run.sentences[1], number=4, method="crown")
    assert Facts.of(dataclasses.replace(run, sentences=(run.sentences[0], other))).contradictions() == said


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("words", "x"), "a", "'x', which is no token id"),
        (("words", ""), "a", "'', which is no token id"),
        (("words", "1"), 3, "words.1"),
        (("inputs", 0, "ids"), [1, 2], "2 token ids"),
        (("inputs", 0, "ids"), [-1] * 8, "8 token ids"),
        (("part_radii", 0, "part"), 7, "part 7"),
        (("parts", "places"), [0, 99], "no part 99"),
        (("parts",), None, "does not say what the parts are"),
        (("attention", 0, "input"), 2, "sentence 2"),
        (("attention", 0, "layers", 0, "shape"), [2, 8], "2 entries, not 3"),
        (("radii",), [dataclasses.asdict(Radius(0, "crown", 0.1, 0.2, 0.3, 1.0))], "another kind"),
    ],
)
def test_bad_runs_over_words_are_named(tmp_path: Path, path: tuple[str, ...], value: object, text: str) -> None:
    _tampered(words_run(), path, value, text, tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("sentences", 0, "choices"), {"4": [8]}, "no position"),
        (("sentences", 0, "choices"), {"-1": [8]}, "no position"),
        (("sentences", 0, "choices"), {"1": []}, "no position, or none"),
        (("sentences", 0, "choices"), {"1": [10, 3]}, "begin with its word"),
        (("sentences", 0, "choices"), {"1": [3, 10, 10]}, "one twice"),
        (("sentences", 0, "alone"), {"1": [2.5]}, "1 margins"),
        (("sentences", 0, "alone"), {"0": [2.5]}, "1 margins"),
        (("sentences", 0, "parts"), -1, "less than nothing"),
        (("sentences", 0, "evaluated"), 0.5, "evaluated"),
        (("inputs",), [dataclasses.asdict(RunInput(0, 0, 0, 1.0, "AAAAAAAA8D8="))], "has inputs"),
        (("attention", 0, "input"), 0, "sentence 0"),
    ],
)
def test_bad_runs_over_choices_are_named(tmp_path: Path, path: tuple[str, ...], value: object, text: str) -> None:
    _tampered(choices_run(), path, value, text, tmp_path)


def _tampered(run: Run, path: tuple[str, ...], value: object, text: str, place: Path) -> None:
    data = json.loads(json.dumps(run.json()))
    at = data
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    (place / "run.json").write_text(json.dumps(data))
    with pytest.raises(VertexError, match=r"run\.json") as error:
        read(place)
    assert text in str(error.value)
