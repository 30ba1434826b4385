"""Sentences with choices: every answer against all combinations, and a journal that knows what it is about."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tests.runs.words import IDS, words, written
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.runs import decisions
from vertex_softmax.runs.decisions import decide_sentences
from vertex_softmax.runs.report import run_page
from vertex_softmax.runs.run import Run, read
from vertex_softmax.runs.sentences import ChoiceSentence, read_choices
from vertex_softmax.sets import TokenChoices


def sentences(seed: int, count: int = 5) -> list[ChoiceSentence]:
    """Random sentences of several lengths with random choices."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        ids = torch.randint(0, 30, (3 + i % 2,), generator=g)
        choices = {
            t: [int(ids[t]), *((int(ids[t]) + k) % 30 for k in (1 + t, 7))] for t in range(len(ids)) if t != i % 3
        }
        with torch.no_grad():
            label = int(words()(ids[None]).argmax())
        found.append(ChoiceSentence(10 + i, tuple(ids.tolist()), label, choices))
    return found


def decided(out: Path, some: list[ChoiceSentence], *methods: str, seed: int = 0) -> Run:
    return decide_sentences(words(seed), "words", some, methods or ("bab",), out)


def test_answers_are_those_of_all_combinations(tmp_path: Path) -> None:
    some = [each for seed in range(2) for each in sentences(seed)]
    some = [dataclasses.replace(each, number=i) for i, each in enumerate(some)]
    run = decided(tmp_path, some, "bab", "crown")
    verdicts = set()
    for answer in run.sentences:
        sentence = some[answer.number]
        set_ = TokenChoices(words(), torch.tensor([sentence.ids]), sentence.choices)
        every = torch.cat(list(set_.each()))
        with torch.no_grad():
            right = (words()(every).argmax(1) == sentence.label).tolist()
        assert int(answer.combinations) == len(every)
        if answer.method == "bab":
            assert answer.verdict == ("verified" if all(right) else "falsified")
        if answer.verdict == "verified":
            assert all(right)
        if answer.verdict == "falsified":
            assert answer.counterexample is not None
            assert not right[every.tolist().index(list(answer.counterexample))]
        verdicts.add(answer.verdict)
    assert {"verified", "falsified"} <= verdicts
    assert read(tmp_path) == dataclasses.replace(run)
    page = run_page.page(run).decode()
    assert "by bab" in page
    assert 'id="sentences"' in page


def test_a_second_run_asks_nothing_and_other_questions_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, asked = sentences(0, 2), []
    real = decisions.certify

    def counted(*args: object, **options: object) -> object:
        asked.append(args)
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(decisions, "certify", counted)

    def count(new: list[ChoiceSentence], *methods: str, seed: int = 0) -> int:
        asked.clear()
        decided(tmp_path, new, *methods, seed=seed)
        return len(asked)

    assert count(some) == 2
    assert count(some) == 0
    assert count(some[::-1]) == 0
    assert count(some, seed=1) == 2  # other weights
    assert count(some, "crown") == 2
    assert count([dataclasses.replace(some[0], label=1 - some[0].label)]) == 1
    position, ids = next(iter(some[0].choices.items()))
    assert count([dataclasses.replace(some[0], choices={**some[0].choices, position: ids[:2]})]) == 1
    assert count([dataclasses.replace(some[0], choices={**some[0].choices, position: [ids[0], *ids[:0:-1]]})]) <= 1
    assert count(some) == 0


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = sentences(1, 4)
    whole = decided(tmp_path / "whole", some, "crown")
    real, left = decisions.certify, [2]

    def dying(*args: object, **options: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(decisions, "certify", dying)
    with pytest.raises(KeyboardInterrupt):
        decided(tmp_path / "part", some, "crown")
    assert (tmp_path / "part" / "journal.jsonl").read_text().count("\n") == 2
    assert not (tmp_path / "part" / "run.json").exists()
    left[0] = 2  # no more than the two that are left
    again = decided(tmp_path / "part", some, "crown")
    answers = [[(s.verdict, s.bound, s.counterexample) for s in run.sentences] for run in (whole, again)]
    assert answers[0] == answers[1]


def answers(out: Path) -> int:
    """How many answers a journal has; it has the rows of attentions too."""
    return (out / "journal.jsonl").read_text().count('{"key": "{\\"question\\": \\"choices\\"')


def test_another_row_of_the_table_is_another_question(tmp_path: Path) -> None:
    """Rows that only a choice uses are neither in the graph nor in the sentence."""
    model, some = words(), sentences(0, 1)
    decide_sentences(model, "m", some, ("crown",), tmp_path)
    lines = answers(tmp_path)
    with torch.no_grad():
        model.words.weight[next(iter(some[0].choices.values()))[1]] *= 2
    decide_sentences(model, "m", some, ("crown",), tmp_path)
    assert answers(tmp_path) == lines + 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"verdict": "verified", "counterexample": None, "bound": 1e9}, "the sentence has"),
        ({"verdict": "falsified", "counterexample": None}, "falsified"),
        ({"verdict": "verified", "counterexample": [1, 2, 3]}, "verified"),
        ({"verdict": "falsified", "counterexample": [29, 29, 29]}, "no choice"),
        ({"verdict": "falsified", "counterexample": [1]}, "another length"),
        ({"verdict": "sure", "counterexample": None}, "sure"),
        ({"seconds": "long"}, "seconds"),
    ],
)
def test_a_journal_is_not_trusted(tmp_path: Path, change: dict[str, object], text: str) -> None:
    some = sentences(0, 1)
    decided(tmp_path, some)
    place = tmp_path / "journal.jsonl"
    line = json.loads(place.read_text().splitlines()[0])
    line["found"].update(change)
    place.write_text(json.dumps(line) + "\n")
    with pytest.raises(VertexError, match=text):
        decided(tmp_path, some)


def test_a_journal_does_not_verify_what_one_word_breaks(tmp_path: Path) -> None:
    some = [dataclasses.replace(each, number=i) for i, each in enumerate(sentences(seed)[0] for seed in range(6))]
    found = decided(tmp_path, some).sentences
    broken = next(s for s in found if s.clean > 0 and any(x is not None and x < 0 for m in s.alone.values() for x in m))
    place, one = tmp_path / "journal.jsonl", [some[broken.number]]
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    for line in lines:
        if f'"ids": {list(one[0].ids)},' in line["key"] and '"choices", "method"' in line["key"]:
            line["found"].update({"verdict": "verified", "counterexample": None, "bound": 1e-9})
    place.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(VertexError, match="one word in place of another"):
        decided(tmp_path, one)


def test_a_correct_sentence_is_no_counterexample(tmp_path: Path) -> None:
    some = sentences(0, 1)
    decided(tmp_path, some)
    place = tmp_path / "journal.jsonl"
    line = json.loads(place.read_text().splitlines()[0])
    line["found"].update({"verdict": "falsified", "counterexample": list(some[0].ids), "bound": None})
    place.write_text(json.dumps(line) + "\n")
    with pytest.raises(VertexError, match="classified correctly"):
        decided(tmp_path, some)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"choices": {1: [7, 21]}}, "sentence 0: .*the word itself, id 14"),
        ({"choices": {1: [14, 30]}}, "sentence 0: "),
        ({"choices": {9: [14]}}, "sentence 0: .*position 9"),
        ({"choices": {1: [14, 7, 7]}}, "sentence 0: .*twice"),
        ({"ids": (3, 31, 15, 9), "choices": {}}, "sentence 0: "),
        ({"label": 2}, "sentence 0: label 2 is not a class"),
    ],
)
def test_bad_sentences_are_named(tmp_path: Path, change: dict[str, object], text: str) -> None:
    sentence = read_choices(written(tmp_path) / "choices.json")[0]
    assert sentence.ids == tuple(IDS[0].tolist())
    with pytest.raises(VertexError, match=text):
        decided(tmp_path / "out", [dataclasses.replace(sentence, **change)])  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "run.json").exists()
