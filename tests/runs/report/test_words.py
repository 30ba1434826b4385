from __future__ import annotations

import pytest

from vertex_softmax.runs.report.words import LONGEST, TokenReading, sentence, visible


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        (["the", "film", "was"], [("the", False), ("film", False), ("was", False)]),
        (["un", "##afraid", "##", "##s"], [("un", False), ("afraid", True), ("##", False), ("s", True)]),
        (["[CLS]", "a", "##b", "[SEP]"], [("[CLS]", False), ("a", False), ("b", True), ("[SEP]", False)]),
        (
            ["Good", "Ġmor", "ning", "Ġ", "!"],
            [("Good", False), ("mor", False), ("ning", True), ("␣", False), ("!", True)],
        ),
        (["<s>", "Ġcaf", "Ã©", "Ã"], [("<s>", False), ("caf", False), ("é", True), ("Ã", True)]),
        (["▁The", "▁sto", "ry", "</s>"], [("The", False), ("sto", False), ("ry", True), ("</s>", False)]),
        (["a", "", "\n"], [("a", False), ("∅", False), ("␣", False)]),
        ([], []),
    ],
)
def test_marks_of_tokenizers_are_read(tokens, shown) -> None:
    assert [(word.text, word.joined) for word in TokenReading(tokens).shown(tokens)] == shown


def test_the_marks_are_those_of_the_whole_run() -> None:
    """A sentence without a mark is read as the others are."""
    reading = TokenReading(["Ġa", "b"])
    assert [word.joined for word in reading.shown(["b", "b"])] == [False, True]
    assert reading.alone("Ġa") == "a"
    assert TokenReading([]).alone("Ġa") == "Ġa"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u202eevil", "\\u202eevil"),
        ("a\x00b", "a\\u0000b"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
        ("  x ", "x"),
        ("日本", "日本"),
        ("x" * 100, "x" * (LONGEST - 1) + "…"),
    ],
)
def test_every_character_is_seen(text, shown) -> None:
    assert visible(text) == shown


def test_an_id_without_a_text_is_its_number() -> None:
    assert sentence((3, 14), {"3": "the"}) == ["the", "14"]
