"""Tokens as people read them: without a tokenizer's marks, and joined where they are pieces of one word.

Three conventions are known by their marks, over all texts of a run: WordPiece ("##" before what continues a word),
byte-level BPE ("Ġ" for a space, other bytes as letters of their own) and SentencePiece ("▁" for a space). Tokens
without any mark are words, with spaces between them. What cannot be read that way is shown as it is.

    [word.text for word in shown(["Ġun", "afraid"])]      # ["un", "afraid"]; the second is joined to the first
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

LONGEST = 60
"""The most characters of a token that are shown."""
SPACE = "␣"
"""What a token of nothing but spaces is shown as."""
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""The categories of characters that are not seen, or that change how others are."""
SPECIAL = ("[", "<", "</")


@dataclass(frozen=True)
class ShownWord:
    """A token as it is shown."""

    text: str
    joined: bool
    """whether it continues the word before it"""


class TokenReading:
    """How the tokens of a run are read: by the marks that are among its texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        every = list(texts)
        self.bytes = any(text.startswith("Ġ") for text in every)
        self.pieces = not self.bytes and any(text.startswith("▁") for text in every)
        self.hashes = not self.bytes and not self.pieces and any(_continues(text) for text in every)

    def shown(self, texts: Sequence[str]) -> list[ShownWord]:
        """The tokens of a sentence; the first is joined to nothing."""
        found = [self._one(text) for text in texts]
        return [ShownWord(word.text, word.joined and i > 0) for i, word in enumerate(found)]

    def alone(self, text: str) -> str:
        """A token by itself, as for a list of choices."""
        return self._one(text).text

    def _one(self, text: str) -> ShownWord:
        special = text.startswith(SPECIAL) and text.endswith(("]", ">"))
        if self.bytes and not special:
            plain = _from_bytes(text)
            return ShownWord(visible(plain), not plain.startswith(" "))
        if self.pieces and not special:
            return ShownWord(visible(text.replace("▁", " ")), not text.startswith("▁"))
        if self.hashes and _continues(text):
            return ShownWord(visible(text[2:]), joined=True)
        return ShownWord(visible(text), joined=False)


def sentence(ids: Sequence[int], words: Mapping[str, str]) -> list[str]:
    """The texts of token ids, as the run has them; an id without a text is its number."""
    return [words.get(str(i), str(i)) for i in ids]


def visible(text: str) -> str:
    """A text whose characters can all be seen, of at most LONGEST: spaces around it are cut, control characters named.

    Marks of direction are control characters too: a page that shows a token as it is must not be turned around by it.
    """
    inner = text.strip() or (SPACE if text else "∅")
    named = "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in UNSEEN else c for c in inner[: LONGEST + 1])
    return named if len(named) <= LONGEST else f"{named[: LONGEST - 1]}…"


def _continues(text: str) -> bool:
    return text.startswith("##") and len(text) > 2


@cache
def _letters() -> dict[str, int]:
    """The letters that stand for bytes in byte-level BPE: printable ones for themselves, the others from Ā (256) on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + k): b for k, b in enumerate(others)}


def _from_bytes(text: str) -> str:
    """The text that a token of byte-level BPE stands for; the token itself if it is not that, or half a character."""
    table = _letters()
    try:
        return bytes(table[c] for c in text).decode()
    except (KeyError, UnicodeDecodeError):
        return text.replace("Ġ", " ")
