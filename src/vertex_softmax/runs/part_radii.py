"""The largest certified ε of every word of a sentence, or of every patch of an image, while nothing else moves.

Invariant: `certified` is 0, or an ε whose ball `certify` verified, in which this part alone moves; `attacked` is an ε
at which a misclassified point of such a ball was found. The radii of two parts say nothing about both moving at once.

    run = part_radii(subject, inputs, parts_of(inputs), ("joint",), Path("out/words"))
    run = part_radii(subject, images, parts_of(images, (4, 4)), ("joint",), Path("out/patches"))
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from vertex_softmax import __version__
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.attention_rows import MovingSentence, kept_rows
from vertex_softmax.runs.bisection import Bisection
from vertex_softmax.runs.evaluate import asked_of, described, inputs_of, words_in
from vertex_softmax.runs.journal import Journal, fingerprint
from vertex_softmax.runs.parts import PartRadius, Parts, patches_of, pixels_of, words_of
from vertex_softmax.runs.radius import RadiusBisection, Watch, require_methods, settings_of
from vertex_softmax.runs.run import JOURNAL, Model, Radius, Run, claimed, norm_sign, write
from vertex_softmax.runs.subject import Inputs, Subject

MOST_NUMBERS = 1 << 24
"""The most numbers of inputs whose parts are searched together."""


# More than six parameters: a public signature, of which the last four are optional.
@full_precision()
def part_radii(
    subject: Subject,
    inputs: Inputs,
    parts: Parts,
    methods: Sequence[str],
    out: Path,
    how: Bisection | None = None,
    options: Options | None = None,
    watch: Watch = lambda _what, _done, _total: None,
    files: Sequence[Path] = (),
) -> Run:
    """The radius of every part of every input by every method; write OUT/run.json and return the run.

    All parts of a misclassified input have 0. `files`: the files that the run reads, which are never overwritten.
    """
    how, methods = how or Bisection(), tuple(dict.fromkeys(methods))
    require_methods(methods)
    begin = time.perf_counter()
    outputs = claimed(out, files)
    shown = inputs_of(subject, inputs)
    quick = dataclasses.replace(options or Options(), goal=0.0)
    found: list[PartRadius] = []
    moving: list[MovingSentence] = []
    with Journal(out / JOURNAL, fingerprint("runs/part_radii.py"), outputs=outputs) as journal:
        for some in pieces(inputs, parts):
            alone, first = each_alone(inputs.at(some), parts), some[0]
            search = RadiusBisection(subject, alone, how, quick, journal, _later(watch, first, len(parts), len(inputs)))
            each = [shown[i] for i in some for _ in range(len(parts))]
            new = [_part(radius, first, len(parts)) for method in methods for radius in search.radii(method, each)]
            moving += _weakest(some, alone, parts, new) if inputs.ids is not None else []
            found += new
        attention = kept_rows(subject, moving, journal, asked_of(subject, inputs))
    found.sort(key=lambda radius: (methods.index(radius.method), radius.input, radius.part))
    what = "words" if parts.kind == "tokens" else "patches"
    norm = "" if inputs.norm == math.inf else f", {norm_sign(inputs.norm)}"
    run = Run(
        title=f"Certified radii of single {what}: {subject.name} on {inputs.name}{norm}",
        version=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=Model(subject.name, subject.sha256, subject.accuracy, subject.facts),
        data=described(inputs),
        methods=methods,
        eps=(),
        inputs=shown,
        settings=settings_of(inputs, how),
        seconds=time.perf_counter() - begin,
        parts=parts,
        part_radii=tuple(found),
        words=words_in(inputs),
        attention=attention,
    )
    write(run, out, outputs)
    return run


def parts_of(inputs: Inputs, size: tuple[int, int] | None = None) -> Parts:
    """The words of sentences, those that may move; or the patches of images, of this height and width in pixels."""
    if size is not None:
        return patches_of(tuple(inputs.x.shape[1:]), size)
    return words_of(inputs.tokens, inputs.x.shape[1])


def each_alone(inputs: Inputs, parts: Parts) -> Inputs:
    """Every input once for each part, which alone may move in it: the parts of the first input come first."""
    count = len(inputs)
    if (parts.kind == "tokens") != (inputs.ids is not None):
        raise InvalidValueError(f"the parts are {parts.kind}, and the inputs are {_kind(inputs)}")
    if parts.kind == "tokens":
        mask = torch.zeros(len(parts), inputs.x.shape[1], dtype=torch.bool)
        mask[torch.arange(len(parts)), torch.tensor(parts.places)] = True
    else:
        mask = torch.from_numpy(pixels_of(parts, tuple(inputs.x.shape[1:])))
    which = [i for i in range(count) for _ in range(len(parts))]
    return dataclasses.replace(inputs.at(which), moving=mask.repeat(count, *[1] * (mask.dim() - 1)), tokens=None)


def _kind(inputs: Inputs) -> str:
    return "numbers" if inputs.ids is None else "token ids"


def pieces(inputs: Inputs, parts: Parts) -> list[range]:
    """The inputs some at a time, so that a copy of each for every part has at most MOST_NUMBERS, or is of one input."""
    size = max(1, MOST_NUMBERS // (len(parts) * max(1, inputs.x[0].numel())))
    return [range(i, min(i + size, len(inputs))) for i in range(0, len(inputs), size)]


def _part(radius: Radius, first: int, parts: int) -> PartRadius:
    """The radius of an input of `each_alone` as that of a part; `first`: the first input that it was made of."""
    return PartRadius(
        input=first + radius.input // parts,
        part=radius.input % parts,
        method=radius.method,
        certified=radius.certified,
        refused=radius.refused,
        attacked=radius.attacked,
        seconds=radius.seconds,
    )


def _later(watch: Watch, first: int, parts: int, inputs: int) -> Watch:
    """Progress over all parts of all inputs, from that over the parts of some."""
    return lambda what, done, _total: watch(what, first * parts + done, inputs * parts)


def _weakest(some: Sequence[int], alone: Inputs, parts: Parts, found: Sequence[PartRadius]) -> list[MovingSentence]:
    """Every sentence with its word of the least radius, the best of all methods, which moves as far as that."""
    best: dict[tuple[int, int], float] = {}
    for radius in found:
        key = (radius.input, radius.part)
        best[key] = max(best.get(key, 0.0), radius.certified)
    moving = []
    for place, i in enumerate(some):
        part = min(range(len(parts)), key=lambda k: best[i, k])
        what = f"{parts.name(part)} alone moves"
        moving.append(MovingSentence(i, alone.at([place * len(parts) + part]), best[i, part], what))
    return moving
