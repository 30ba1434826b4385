"""The page of a run: one HTML file made from RUN/run.json, with the theorem's picture if RUN has one.

Invariant: the page loads nothing and computes no bound; it shows the numbers of the run, and if they contradict each
other, it says so at the top. Needs the extra `report` (jinja2 alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertex_softmax.foundation.files import read_whole
from vertex_softmax.runs.report import svg
from vertex_softmax.runs.report.assembled import assembled, written
from vertex_softmax.runs.report.numbers import plain
from vertex_softmax.runs.report.part_data import part_rows, parts_lede
from vertex_softmax.runs.report.run_data import Facts, page_data, radius_summary, slots
from vertex_softmax.runs.report.sentence_view import choice_views, replaced, scale_of, word_views
from vertex_softmax.runs.run import JOURNAL, NORMS, VERDICTS, Plain, Run, read
from vertex_softmax.runs.run import NAME as RUN

NAME = "report.html"
PICTURE = "theorem.svg"
SCRIPTS = ("pictures.js", "heat.js", "rates.js", "attention.js", "cards.js", "slack.js", "parts.js", "run.js")
MOST_PICTURE = 1 << 24


def write(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run (its folder, or run.json) to `out`, by default FOLDER/report.html; return its path."""
    run = read(folder)
    home = folder if folder.is_dir() else folder.parent
    inputs = (home / RUN if folder.is_dir() else folder, home / JOURNAL, home / PICTURE)
    return written(page(run, _theorem(home / PICTURE)), home / NAME if out is None else out, inputs)


def page(run: Run, theorem: str = "") -> bytes:
    """The page of a run. theorem: an <svg> element from `svg.inlined`; without it, that section is left out."""
    facts = Facts.of(run)
    words, words_left = word_views(run)
    choices, choices_left = choice_views(run)
    part = "patch" if run.parts is not None and run.parts.kind == "patches" else "word"
    return assembled(
        "run.html.j2",
        SCRIPTS,
        page_data(facts),
        run=run,
        lede=lede(facts),
        warnings=facts.contradictions(),
        compared=_compared(facts),
        about=_about(run),
        rates=_rates(facts),
        radii=_radii(facts),
        sentences=_sentences(run),
        verdicts=_verdicts(run),
        choices=choices,
        choices_left=choices_left,
        words=words,
        words_left=words_left,
        scale=scale_of(run).key(),
        part_rows=part_rows(run),
        alone=run.parts is not None,
        part=part,
        parts=f"{part}es" if part == "patch" else "words",
        everything=f"all {_inputs(len(run.inputs))}" if len(run.inputs) != 1 else "one input",
        theorem=theorem,
    )


def _theorem(path: Path) -> str:
    if not path.is_file():
        return ""
    return svg.inlined(read_whole(path, MOST_PICTURE, "move it away"), "theorem-", str(path))


def lede(facts: Facts) -> list[str]:
    """The main results of a run, in sentences."""
    run, whole = facts.run, len(facts.run.inputs)
    if run.sentences:
        return [_decided(run, method) for method in run.methods]
    if not whole:
        return ["This run has no inputs."]
    if run.part_radii:
        return parts_lede(run)
    said = []
    in_norm = "" if run.data.norm == "inf" else f" in {NORMS[run.data.norm]}"
    k = facts.telling()
    if k is not None:
        rates = {m: r[k] for m, r in facts.rates.items()}
        known = sorted(((round(r * whole), m) for m, r in rates.items() if r is not None), key=lambda pair: -pair[0])
        if known:
            best, *rest = known
            others = f", {_listed([f'{m} {count}' for count, m in rest])}" if rest else ""
            said.append(f"At ε = {run.eps[k]:g}{in_norm}, {best[1]} certifies {best[0]} of {_inputs(whole)}{others}.")
        said.extend(_ceiling(facts, k))
    medians = [(s["median"], m) for m, s in _summaries(run).items() if s is not None and s["median"] is not None]
    if medians:
        text = _listed([f"{plain(median)} ({m})" for median, m in sorted(medians, reverse=True)])
        said.append(f"The median certified radius{in_norm} of {_inputs(whole)} is {text}.")
    return said or [f"This run has {_inputs(whole)} and no complete answer yet."]


def _decided(run: Run, method: str) -> str:
    """How many sentences a method decides, in a sentence."""
    said = [s.verdict for s in run.sentences if s.method == method]
    found = [(said.count(verdict), verdict) for verdict in VERDICTS]
    counts = [f"{count} {'is' if count == 1 else 'are'} {verdict}" for count, verdict in found]
    return f"Of {len(said):,} sentence{'' if len(said) == 1 else 's'} by {method}, {_listed(counts)}."


def _verdicts(run: Run) -> list[dict[str, Any]]:
    """For each method of a run over choices of words, its verdicts as a bar; parts are kinds of the style sheet."""
    rows = []
    for method, slot in zip(run.methods, slots(run.methods), strict=True) if run.sentences else ():
        said = [s.verdict for s in run.sentences if s.method == method]
        counts = {kind: said.count(verdict) for kind, verdict in ((0, "verified"), (1, "unknown"), (2, "falsified"))}
        rows.append(
            {
                "method": method,
                "slot": slot,
                "shares": [(kind, f"{100 * n / len(said):.2f}") for kind, n in counts.items() if n],
                "value": f"{counts[0]} of {len(said)}",
                "text": f"{method}: {counts[0]} verified, {counts[1]} unknown, {counts[2]} falsified",
            }
        )
    return rows


def _sentences(run: Run) -> list[dict[str, str]]:
    """The answers about sentences as a table."""
    rows = []
    for s in run.sentences:
        changed = replaced(run, s)
        rows.append(
            {
                "number": str(s.number),
                "method": s.method,
                "verdict": s.verdict,
                "words": str(s.replaceable),
                "combinations": s.combinations,
                "bound": "–" if s.bound is None else f"{s.bound:+.4g}",
                "counterexample": ", ".join(changed) or ("" if s.counterexample is None else "the sentence itself"),
                "seconds": f"{s.seconds:.2f}",
            }
        )
    return rows


def _ceiling(facts: Facts, k: int) -> list[str]:
    share, whole = facts.ceiling[k], len(facts.run.inputs)
    if share is None:
        return []
    most = round(share * whole)
    wrong = sum(facts.misclassified(i) for i in range(whole))
    fooled = max(0, whole - most - wrong)
    return [
        f"The attack fools {fooled}, and {wrong} are misclassified as they are: no method can certify more than {most}."
    ]


def _inputs(count: int) -> str:
    return f"{count:,} input{'' if count == 1 else 's'}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _summaries(run: Run) -> dict[str, dict[str, float | None] | None]:
    return {m: radius_summary([(r.certified, r.seconds) for r in run.radii if r.method == m]) for m in run.methods}


def _compared(facts: Facts) -> int:
    """How many bounds can be compared with a margin that the attack reached."""
    return sum(a.bound is not None and (a.input, a.eps) in facts.attacks for a in facts.run.answers)


def _about(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """The lists in the page's header: facts about the model, the data, the settings and the run."""
    model: list[tuple[str, Plain]] = [("name", run.model.name)]
    if run.model.accuracy is not None:
        model.append(("accuracy", f"{100 * run.model.accuracy:.1f} %"))
    model += list(run.model.facts.items())
    if run.model.sha256:
        model.append(("identity", run.model.sha256))
    data: list[tuple[str, Plain]] = [
        ("name", run.data.name),
    ]
    if run.sentences:
        data.append(("sentences", f"{len({s.number for s in run.sentences}):,}"))
    else:
        data.append(("inputs", f"{len(run.inputs):,}"))
        data.append(("shape", " × ".join(map(str, run.data.shape)) or "one number"))
        data.append(("balls in the norm", NORMS[run.data.norm]))
    if run.parts is not None:
        data.append(("what moves", run.parts.moving))
    elif run.data.tokens is not None:
        data.append(("what moves", run.data.tokens))
    if run.data.clip is not None:
        data.append(("values within", f"[{run.data.clip[0]:g}, {run.data.clip[1]:g}]"))
    if run.data.classes is not None:
        data.append(("classes", str(len(run.data.classes))))
    made: list[tuple[str, Plain]] = [("Vertex", run.version), ("made", run.created), ("seconds", f"{run.seconds:,.1f}")]
    groups = (("Model", model), ("Data", data), ("Settings", list(run.settings.items())), ("Run", made))
    return [(name, [(key, _plain(value)) for key, value in pairs]) for name, pairs in groups if pairs]


def _plain(value: Plain) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _rates(facts: Facts) -> list[dict[str, Any]]:
    """The certified rates as a table: one row per method, and one for the attack."""
    if not facts.run.answers:
        return []
    rows = [{"name": m, "cells": [_percent(x) for x in facts.rates[m]]} for m in facts.run.methods]
    if any(x is not None for x in facts.ceiling):
        rows.append({"name": "not fooled by the attack", "cells": [_percent(x) for x in facts.ceiling]})
    return rows


def _radii(facts: Facts) -> list[dict[str, Any]]:
    """The radii as a table: for each method the median, the mean and the seconds."""
    rows = []
    for method, found in _summaries(facts.run).items():
        if found is not None:
            cells = [plain(found[key]) for key in ("median", "mean", "seconds")]
            rows.append({"name": method, "cells": cells})
    return rows


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
