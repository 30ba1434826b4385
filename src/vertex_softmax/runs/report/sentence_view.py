"""Sentences as a run's page shows them: words coloured by their radii, choices of words, and what breaks them.

Invariant: every number is the run's; of several methods the largest certified ε is shown, since each is a proof. A
colour is never the only way in which something is told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from vertex_softmax.runs.report.numbers import at_least, at_most, plain
from vertex_softmax.runs.report.words import ShownWord, TokenReading, sentence
from vertex_softmax.runs.run import Run, RunSentence

STEPS = 7
"""How many colours the style sheet has for radii, besides that for none."""
MOST_WORDS = 4000
"""The most words that a page has as coloured words, in whole sentences; the rest is in its table."""
MOST_CHOICES = 4000
"""The most choices of words that a page lists, in whole sentences."""


@dataclass(frozen=True)
class EpsScale:
    """Colours for ε: equal steps of its logarithm between the least and the largest."""

    least: float
    most: float

    @staticmethod
    def of(values: Sequence[float]) -> EpsScale:
        """The scale of all values above 0."""
        known = [x for x in values if x > 0]
        return EpsScale(min(known, default=1.0), max(known, default=1.0))

    def step(self, eps: float | None) -> int:
        """The colour of ε, from 1 to STEPS; 0 for none."""
        if eps is None or eps <= 0:
            return 0
        if self.least == self.most:
            return STEPS
        share = (math.log(eps) - math.log(self.least)) / (math.log(self.most) - math.log(self.least))
        return 1 + min(STEPS - 1, max(0, math.floor(STEPS * share)))

    def key(self) -> list[tuple[int, str]]:
        """What each colour stands for, in words."""
        if self.least == self.most:
            return [(STEPS, plain(self.most))]
        low, high = math.log(self.least), math.log(self.most)
        ends = [math.exp(low + (high - low) * k / STEPS) for k in range(STEPS + 1)]
        return [(k + 1, f"{plain(ends[k])} to {plain(ends[k + 1])}") for k in range(STEPS)]


@dataclass(frozen=True)
class WordView:
    """A word of a sentence with its radii."""

    text: str
    joined: bool
    place: int
    """its position, from 0"""
    certified: str = ""
    fooled: str = ""
    """empty if no radius was looked for"""
    step: int = 0
    fooled_step: int = 0
    weakest: bool = False
    choices: int = 1
    """how many words may stand here"""
    becomes: str = ""
    """the word in its place in the counterexample; empty if it is the same"""


@dataclass(frozen=True)
class ChoiceView:
    """A word that may stand at a position."""

    text: str
    margin: str
    breaks: bool
    """whether this word alone makes the network wrong"""
    chosen: bool
    """whether it stands in the counterexample, in place of the sentence's own word"""


@dataclass(frozen=True)
class SentenceView:
    """A sentence with all that is told about it."""

    number: int
    label: str
    predicted: str
    wrong: bool
    words: list[WordView]
    said: list[str] = field(default_factory=list)
    attention: int | None = None
    """the place of its softmax rows in the page's data"""
    verdicts: list[tuple[str, str, str]] = field(default_factory=list)
    """for each method: its verdict, its bound and its seconds"""
    choices: list[tuple[int, str, list[ChoiceView]]] = field(default_factory=list)
    """by position, with the sentence's own word"""


def reading_of(run: Run) -> TokenReading:
    """How the tokens of a run are read."""
    return TokenReading(run.words.values())


def best_radii(run: Run) -> dict[tuple[int, int], tuple[float, float | None]]:
    """By input and part: the largest ε that a method certifies, and the least at which the attack succeeded."""
    found: dict[tuple[int, int], tuple[float, float | None]] = {}
    for r in run.part_radii:
        certified, fooled = found.get((r.input, r.part), (0.0, None))
        known = [x for x in (fooled, r.attacked) if x is not None]
        found[r.input, r.part] = (max(certified, r.certified), min(known, default=None))
    return found


def scale_of(run: Run) -> EpsScale:
    """The colours of all radii of parts."""
    return EpsScale.of([x for pair in best_radii(run).values() for x in pair if x is not None])


def word_views(run: Run) -> tuple[list[SentenceView], int]:
    """The sentences of a search for radii of words, and how many are left out because there are too many."""
    if run.parts is None or run.parts.kind != "tokens":
        return [], 0
    best, scale, reading = best_radii(run), scale_of(run), reading_of(run)
    rows = {rows.input: k for k, rows in enumerate(run.attention)}
    found: list[SentenceView] = []
    total = 0
    for i, x in enumerate(run.inputs):
        ids, wrong = x.ids or (), x.predicted != x.label or x.clean < 0
        total += len(ids)
        if total > MOST_WORDS and found:
            break
        parts = {place: k for k, place in enumerate(run.parts.places)}
        radii = {place: best[i, k] for place, k in parts.items() if (i, k) in best}
        weakest = min(radii, key=lambda place: radii[place][0], default=None)
        words = [
            _word(place, word, radii.get(place), scale, weakest=weakest == place and not wrong)
            for place, word in enumerate(reading.shown(sentence(ids, run.words)))
        ]
        said = _said(words, radii, weakest, wrong=wrong)
        names = (class_name(run, x.label), class_name(run, x.predicted))
        found.append(SentenceView(x.index, *names, wrong, words, said, rows.get(i)))
    return found, len(run.inputs) - len(found)


def _word(
    place: int, word: ShownWord, radii: tuple[float, float | None] | None, scale: EpsScale, *, weakest: bool
) -> WordView:
    if radii is None:
        return WordView(word.text, word.joined, place)
    certified, fooled = radii
    return WordView(
        text=word.text,
        joined=word.joined,
        place=place,
        certified=plain(at_most(certified)),
        fooled=plain(at_least(fooled)),
        step=scale.step(certified),
        fooled_step=scale.step(fooled),
        weakest=weakest,
    )


def _said(
    words: Sequence[WordView], radii: dict[int, tuple[float, float | None]], weakest: int | None, *, wrong: bool
) -> list[str]:
    """What breaks a sentence, in sentences."""
    if wrong:
        return ["The network is wrong about the sentence itself: there is nothing to certify."]
    if weakest is None:
        return []
    said = []
    least = radii[weakest][0]
    if least > 0:
        said.append(
            f"The word that is certified least far is “{words[weakest].text}”: up to ε = {plain(at_most(least))}."
        )
    else:
        none = [words[place].text for place, (certified, _) in radii.items() if certified <= 0]
        said.append(f"Not certified at any ε that was tried: {_quoted(none)}.")
    broken = sorted((fooled, place) for place, (_, fooled) in radii.items() if fooled is not None)
    if broken:
        first = [f"“{words[place].text}” (ε = {plain(at_least(fooled))})" for fooled, place in broken[:3]]
        many = f"{len(broken)} of {len(radii)} words" if len(broken) < len(radii) else f"each of its {len(radii)} words"
        said.append(f"The attack breaks the sentence by moving one word, for {many}; soonest {', '.join(first)}.")
    else:
        said.append("The attack did not break the sentence by moving one word, at any ε that was tried.")
    return said


def _quoted(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 8} more" if len(texts) > 8 else ""
    return ", ".join(f"“{text}”" for text in texts[:8]) + more


def class_name(run: Run, k: int) -> str:
    """The name of a class; its number if it has none."""
    names = run.data.classes or ()
    return names[k] if 0 <= k < len(names) else str(k)


def replaced(run: Run, s: RunSentence) -> list[str]:
    """The words that a counterexample replaces, each with its position; ids where their texts are not known."""
    reading, broken = reading_of(run), s.counterexample or s.ids
    old, new = (sentence(ids, run.words) for ids in (s.ids, broken))
    return [
        f"{t}: {reading.alone(old[t])} → {reading.alone(new[t])}" for t in range(len(s.ids)) if s.ids[t] != broken[t]
    ]


def breaks_alone(s: RunSentence) -> bool:
    """Whether the network is wrong about the sentence with one of its choices in place of its own word."""
    return any(x is not None and x < 0 for margins in s.alone.values() for x in margins)


def choice_views(run: Run) -> tuple[list[SentenceView], int]:
    """The sentences of a run over choices of words, and how many are left out because there are too many choices."""
    by_number: dict[int, list[RunSentence]] = {}
    for s in run.sentences:
        by_number.setdefault(s.number, []).append(s)
    rows = {rows.input: k for k, rows in enumerate(run.attention)}
    reading = reading_of(run)
    found: list[SentenceView] = []
    total = 0
    for number, answers in by_number.items():
        total += sum(map(len, answers[0].choices.values())) + len(answers[0].ids)
        if total > MOST_CHOICES and found:
            break
        found.append(_choice_view(run, number, answers, reading, rows.get(number)))
    return found, len(by_number) - len(found)


def _choice_view(
    run: Run, number: int, answers: Sequence[RunSentence], reading: TokenReading, rows: int | None
) -> SentenceView:
    """One sentence, with the answers of all methods."""
    first = answers[0]
    wrong = first.predicted != first.label or first.clean < 0
    broken = next((s.counterexample for s in answers if s.counterexample is not None), None)
    own = reading.shown(sentence(first.ids, run.words))
    words = []
    for place, word in enumerate(own):
        changed = broken is not None and broken[place] != first.ids[place]
        other = reading.alone(sentence(broken, run.words)[place]) if broken is not None and changed else ""
        count = len(first.choices.get(str(place), ()))
        words.append(WordView(word.text, word.joined, place, choices=max(1, count), becomes=other))
    said = []
    if wrong:
        said.append("The network is wrong about the sentence itself.")
    elif broken is not None:
        changes = [f"“{word.text}” → “{word.becomes}”" for word in words if word.becomes]
        said.append(f"These words break it: {', '.join(changes)}.")
    said += [_tried(s) for s in answers]
    if first.alone and not wrong:
        said.append(_alone(run, first, own, reading))
    return SentenceView(
        number,
        class_name(run, first.label),
        class_name(run, first.predicted),
        wrong,
        words,
        said,
        rows,
        [(s.method, s.verdict, f"bound {plain(s.bound)}, {s.seconds:.2f} s") for s in answers],
        [
            (int(place), own[int(place)].text, _choices(run, first, place, ids, broken, reading))
            for place, ids in sorted(first.choices.items(), key=lambda pair: int(pair[0]))
        ],
    )


def _alone(run: Run, s: RunSentence, own: Sequence[ShownWord], reading: TokenReading) -> str:
    """Which single words break a sentence, in a sentence."""
    many = sum(len(margins) - 1 for margins in s.alone.values())
    breaking = [
        f"“{own[int(place)].text}” → “{reading.alone(sentence([s.choices[place][k]], run.words)[0])}”"
        for place, margins in s.alone.items()
        for k, margin in enumerate(margins)
        if k and margin is not None and margin < 0
    ]
    if not breaking:
        return f"None of the {many} other words breaks it alone."
    more = f" and {len(breaking) - 8} more" if len(breaking) > 8 else ""
    verb = "breaks" if len(breaking) == 1 else "break"
    return f"Of the {many} other words, {len(breaking)} {verb} it alone: {', '.join(breaking[:8])}{more}."


def _choices(
    run: Run, s: RunSentence, place: str, ids: Sequence[int], broken: Sequence[int] | None, reading: TokenReading
) -> list[ChoiceView]:
    margins: Sequence[float | None] = s.alone.get(place) or [None] * len(ids)
    return [
        ChoiceView(
            text=reading.alone(sentence([i], run.words)[0]),
            margin="" if margin is None else f"{'+' if margin > 0 else ''}{plain(margin)}",
            breaks=margin is not None and margin < 0,
            chosen=k > 0 and broken is not None and broken[int(place)] == i,
        )
        for k, (i, margin) in enumerate(zip(ids, margins, strict=True))
    ]


def _tried(s: RunSentence) -> str:
    """How a method came to its verdict, in a sentence."""
    count = f"{int(s.combinations[:15]):,}" if len(s.combinations) <= 15 else f"about 10^{len(s.combinations) - 1}"
    tried = []
    if s.parts is not None:
        tried.append(f"{s.parts:,} set{'' if s.parts == 1 else 's'} of them bounded")
    if s.evaluated is not None:
        tried.append(f"{s.evaluated:,} evaluation{'' if s.evaluated == 1 else 's'} of the network")
    of = f" ({', '.join(tried)})" if tried else ""
    verdict = {"verified": "all are right", "falsified": "one is wrong", "unknown": "not decided"}[s.verdict]
    return f"{s.method}, {count} combination{'' if s.combinations == '1' else 's'}: {verdict}{of}."
