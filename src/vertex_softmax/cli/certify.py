"""`vertex certify` and `vertex radius`: many inputs, several methods; a table on stdout, RUN/run.json for the report.

Exit codes: 0 done; 1 an answer contradicts the attack, which is a bug in Vertex; 2 bad input; 130 interrupted: the same
command goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vertex_softmax.cli import values
from vertex_softmax.cli.asking import Asking, numbers, refuse, set_threads
from vertex_softmax.cli.common import complain, errors, kept, progress_bar, quiet, reporting, say_written
from vertex_softmax.cli.names import DATA_SETS, METHODS, NORMS, one_of, some_of
from vertex_softmax.cli.part_tables import part_summary, part_table
from vertex_softmax.foundation.errors import InvalidValueError

if TYPE_CHECKING:
    from vertex_softmax.runs.evaluate import EvaluatedPart
    from vertex_softmax.runs.run import Run

NONE_CORRECT = (
    "No input is classified correctly: compare the scale of the inputs (0 to 1, or 0 to 255?), the order of their "
    "channels and the labels with those that the model was trained on."
)
"""What the tables say if it is so: then nothing can be certified, whatever the method."""
Model = Annotated[
    str,
    typer.Argument(
        help="An ONNX file; a model that `vertex demo` wrote; or package.module:function or FILE.py:function, a "
        "function without arguments that returns a torch.nn.Module. Importing it runs its code.",
        show_default=False,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="File .safetensors that is loaded into a Python model; all names must fit.", show_default=False),
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        autocompletion=one_of(DATA_SETS),
        help="digits, mnist, ...; or a file .npz or .safetensors with inputs and labels; with --tokens a file .json, "
        ".npz or .safetensors with ids and labels.",
        show_default="digits",
    ),
]
DataDir = Annotated[Path, typer.Option("--data-dir", envvar="VERTEX_DATA", help="The folder of the data sets.")]
NormName = Annotated[
    str | None,
    typer.Option(
        "--norm",
        autocompletion=one_of(NORMS),
        help="The norm in which ε is meant: inf, 2 or 1.",
        show_default="inf",
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option(
        help="For models that take token ids: POS,POS,..., the positions whose embeddings may move, each by ε; or all.",
        show_default=False,
    ),
]
Vocabulary = Annotated[
    Path | None,
    typer.Option(
        help="The words of token ids, for the report: a tokenizer's vocab.txt, vocab.json or tokenizer.json.",
        show_default=False,
    ),
]
Classes = Annotated[
    str | None, typer.Option(help="NAME,NAME,...: the names of the classes, for the report.", show_default=False)
]
Clip = Annotated[
    str | None,
    typer.Option(help="LOW,HIGH: the range of an input's entries.", show_default="0,1 for a data set, none for a file"),
]
Count = Annotated[int | None, typer.Option("--count", min=1, help="How many inputs.", show_default="all")]
First = Annotated[int, typer.Option(min=0, help="Number of the first input, from 0.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Number of threads.", show_default="all cores")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
DATA_FOLDER = Path("data")
"""The default of --data-dir."""


# More than six parameters: the arguments and options of the command. So has `radius`.
@reporting
def certify(
    model: Model,
    eps: Annotated[str | None, typer.Option(help="ε, or several: 0.01,0.02,8/255", show_default=False)] = None,
    norm: NormName = None,
    data: DataName = None,
    tokens: Tokens = None,
    choices: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with sentences and the ids that may stand at some of their positions; instead of --eps.",
            show_default=False,
        ),
    ] = None,
    vocabulary: Vocabulary = None,
    classes: Classes = None,
    weights: Weights = None,
    methods: Annotated[
        str | None,
        typer.Option(
            autocompletion=some_of(METHODS),
            help="ibp, crown, alpha-crown, vertex, hybrid, joint, bab. With joint or bab last, the report shows where "
            "the bounds lose, which takes about as long again.",
            show_default="crown,joint; bab with --choices",
        ),
    ] = None,
    count: Count = None,
    first: First = 0,
    clip: Clip = None,
    out: Annotated[Path, typer.Option(help="Folder for run.json and the journal.")] = Path("out/certify"),
    verdicts_only: Annotated[bool, typer.Option("--verdicts-only", help="Stop a bound once it decides.")] = False,
    data_dir: DataDir = DATA_FOLDER,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Certify labelled inputs by several methods at several ε, and attack them; or decide choices of words.

    Each input may move within its ball of radius ε in the norm --norm, within --clip; an input is certified if no point
    of that set is misclassified. With --tokens the inputs are sentences, and the embedding of each of these tokens
    moves in a ball of its own. With --choices every sentence is decided: all combinations of the given words are
    classified correctly, or one is not and its ids are told. Every finished piece is kept in OUT/journal.jsonl: after
    an interruption the same command continues. `vertex report OUT` makes a page of the results.

    Examples:
        vertex certify out/demo/model --eps 0.02,0.05 --count 5
        vertex certify model.onnx --data inputs.npz --eps 0.1 --norm 2
        vertex certify words.py:net --data ids.json --tokens 1,3 --eps 0.1
        vertex certify words.py:net --weights w.safetensors --choices words.json
    """
    from vertex_softmax.runs.evaluate import Plan, contradictions, evaluate

    asking = Asking(
        model=model,
        weights=weights,
        data=data,
        tokens=tokens,
        norm=norm,
        clip=clip,
        out=out,
        vocabulary=vocabulary,
        classes=classes,
    )
    if choices is not None:
        given = {"--eps": eps, "--norm": norm, "--data": data, "--tokens": tokens, "--clip": clip}
        refuse("--choices", {**given, "--verdicts-only": verdicts_only or None})
        set_threads(threads)
        _decide(asking, choices, _names(methods or "bab"), first, count, as_json=as_json)
        return
    if eps is None:
        raise InvalidValueError("--eps is missing: give ε, or several, such as --eps 0.01,0.02; or --choices FILE")
    radii = numbers("--eps", eps)
    set_threads(threads)
    subject, inputs = asking.read(data_dir, first, count)
    names = _names(methods or "crown,joint")
    plan = Plan(bounds_at=() if verdicts_only else None)
    with kept(out), watching(names, radii) as watch:
        run = evaluate(subject, inputs, names, radii, out, plan, watch, asking.files)
    if as_json:
        typer.echo(json.dumps({"run": str(out / "run.json"), **summary(run)}))
    else:
        Console().print(table(run))
    say_written(out)
    if wrong := contradictions(run):
        complain("\n".join(["Vertex contradicts itself; please report this:", *wrong]))
        raise typer.Exit(1)


@reporting
def radius(
    model: Model,
    norm: NormName = None,
    data: DataName = None,
    tokens: Tokens = None,
    each: Annotated[bool, typer.Option("--each", help="A radius for each of the --tokens, which moves alone.")] = False,
    patches: Annotated[
        str | None,
        typer.Option(help="HxW: a radius for each patch of so many pixels, which moves alone.", show_default=False),
    ] = None,
    vocabulary: Vocabulary = None,
    classes: Classes = None,
    weights: Weights = None,
    methods: Annotated[
        str, typer.Option(autocompletion=some_of(METHODS), help="One or several: crown,joint")
    ] = "joint",
    count: Count = None,
    first: First = 0,
    clip: Clip = None,
    least: Annotated[float, typer.Option(help="The smallest ε that is tried.")] = 1e-4,
    most: Annotated[
        float | None, typer.Option(help="The largest ε that is tried.", show_default="0.5; 100 for --norm 1 and 2")
    ] = None,
    precision: Annotated[
        float, typer.Option(help="Relative distance of the certified to the least refused ε at the end.")
    ] = 0.05,
    out: Annotated[Path, typer.Option(help="Folder for run.json and the journal.")] = Path("out/radius"),
    data_dir: DataDir = DATA_FOLDER,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Find the largest certified ε of every input, by bisection, and the curve of certified accuracy.

    ε is meant in the norm --norm; with --tokens it is how far the embedding of each of these tokens may move. A
    certified radius is an ε that was certified itself; the attack gives an ε at which the network was fooled; the true
    radius lies between. With --each every word of a sentence has a radius of its own, and with --patches every patch of
    an image: how far it may move while the rest stays. Every answer is kept in OUT/journal.jsonl: after an interruption
    the same command continues. `vertex report OUT` makes a page of the results.

    Examples:
        vertex radius out/demo/model --count 5 --methods crown,joint
        vertex radius out/demo/model --count 1 --methods crown --patches 4x4
        vertex radius model.onnx --data inputs.npz --norm 2 --json
        vertex radius words.py:net --data ids.json --tokens all --each
    """
    from vertex_softmax.runs.bisection import Bisection
    from vertex_softmax.runs.part_radii import part_radii, parts_of
    from vertex_softmax.runs.radius import radii

    boxes = values.norm("--norm", norm) == math.inf
    how = Bisection(least=least, most=most if most is not None else 0.5 if boxes else 100.0, precision=precision)
    asking = Asking(
        model=model,
        weights=weights,
        data=data,
        tokens=tokens,
        norm=norm,
        clip=clip,
        out=out,
        vocabulary=vocabulary,
        classes=classes,
    )
    size = None if patches is None else values.patch("--patches", patches)
    if each and tokens is None:
        raise InvalidValueError("--each is for sentences: give --tokens too; for images there is --patches")
    if size is not None:
        refuse("--patches", {"--tokens": tokens})
    set_threads(threads)
    subject, inputs = asking.read(data_dir, first, count)
    with kept(out), progress_bar() as progress:
        if each or size is not None:
            parts = parts_of(inputs, size)
            run = part_radii(subject, inputs, parts, _names(methods), out, how, watch=progress, files=asking.files)
        else:
            run = radii(subject, inputs, _names(methods), out, how, watch=progress, files=asking.files)
    if as_json:
        summed = radius_summary(run) if run.parts is None else part_summary(run)
        typer.echo(json.dumps({"run": str(out / "run.json"), **summed}))
    elif run.parts is not None:
        Console().print(part_table(run))
    else:
        console = Console()
        console.print(radius_table(run))
        console.print(curve(run))
    say_written(out)


def _decide(asking: Asking, choices: Path, methods: list[str], first: int, count: int | None, *, as_json: bool) -> None:
    """The part of `vertex certify` that decides sentences with choices of words."""
    from vertex_softmax.runs.decisions import DecisionPlan, decide_sentences
    from vertex_softmax.runs.sentences import read_choices

    module, out = asking.module("--choices"), asking.out
    plan = DecisionPlan(data=choices.name, files=(*asking.files, choices), words=asking.words, classes=asking.names)
    with kept(out), progress_bar() as progress:
        sentences = read_choices(choices, first=first, count=count)
        run = decide_sentences(module, asking.model, sentences, methods, out, plan, progress)
    if as_json:
        typer.echo(json.dumps({"run": str(out / "run.json"), **sentence_summary(run)}))
    else:
        Console().print(sentence_table(run))
    say_written(out)


def _names(methods: str) -> list[str]:
    """The methods in the comma-separated value of --methods."""
    return [name.strip() for name in methods.split(",") if name.strip()]


@contextlib.contextmanager
def watching(methods: Sequence[str], eps: Sequence[float]) -> Iterator[Callable[[EvaluatedPart], None]]:
    """A live table of the progress on stderr; not shown with -q, or if stderr is not a terminal."""
    parts: dict[tuple[str, float], EvaluatedPart] = {}
    begin = time.perf_counter()

    def shown() -> Table:
        live = Table(title="certified so far")
        live.add_column("method")
        for e in eps:
            live.add_column(f"ε = {e:g}", justify="right")
        for method in (*methods, "attack"):
            live.add_row(method, *(_so_far(parts.get((method, e))) for e in eps))
        total = (len(methods) + 1) * len(eps)
        done = sum(part.done / max(1, part.total) for part in parts.values())
        live.caption = f"{time.perf_counter() - begin:.0f} s, {done:.1f} of {total} columns of inputs finished"
        return live

    if quiet() or not errors.is_terminal:
        yield lambda _part: None
        return
    with Live(console=errors, auto_refresh=False, transient=True) as live:

        def watch(part: EvaluatedPart) -> None:
            if part.method != "slack":
                parts[part.method, part.eps] = part
            live.update(shown(), refresh=True)

        yield watch


def _so_far(part: EvaluatedPart | None) -> str:
    """The certified share so far, for the live table."""
    if part is None or part.done == 0:
        return ""
    return f"{part.certified / part.done:.0%}" + ("" if part.done == part.total else f" of {part.done}")


def summary(run: Run) -> dict[str, Any]:
    """Rates, bounds and times per method and ε, as plain JSON."""
    rows = []
    for method in run.methods:
        for e in run.eps:
            answers = [a for a in run.answers if a.method == method and a.eps == e]
            bounds = [a.bound for a in answers if a.bound is not None]
            rows.append(
                {
                    "method": method,
                    "eps": e,
                    "certified": run.rate(method, e),
                    "mean_bound": sum(bounds) / len(bounds) if bounds else None,
                    "seconds_per_input": sum(a.seconds for a in answers) / max(1, len(answers)),
                }
            )
    return {
        "inputs": len(run.inputs),
        "correct": sum(x.clean > 0 for x in run.inputs),
        "rows": rows,
        "attack": [{"eps": e, "not_fooled": run.ceiling(e)} for e in run.eps],
    }


def table(run: Run, notes: Mapping[str, str] | None = None) -> Table:
    """The certified rates as a table for the terminal; the last row is the attack's ceiling. `notes`: per method."""
    found = summary(run)
    correct = f"{found['correct']} of {found['inputs']} inputs are classified correctly"
    explained = [f"{method}: {note}" for method, note in (notes or {}).items()]
    if found["correct"] == 0:
        explained.append(NONE_CORRECT)
    shown = Table(
        title=Text(f"{run.title}: certified of {found['inputs']} inputs"),
        caption=Text(
            "\n".join([f"{correct}; bound: mean margin to the worst class at ε = {run.eps[-1]:g}", *explained])
        ),
        caption_justify="left",
    )
    shown.add_column("method")
    for e in run.eps:
        shown.add_column(f"ε = {e:g}", justify="right")
    shown.add_column("bound", justify="right")
    shown.add_column("s per input", justify="right")
    for method in run.methods:
        rows = [row for row in found["rows"] if row["method"] == method]
        bound = rows[-1]["mean_bound"]
        cells = [*(f"{row['certified']:.0%}" for row in rows), "–" if bound is None else f"{bound:+.4g}"]
        style = "bold green" if method == run.methods[-1] else None
        shown.add_row(method, *cells, f"{rows[-1]['seconds_per_input']:.3f}", style=style)
    shown.add_section()
    margins = [a.margin for a in run.attacks if a.eps == run.eps[-1]]
    mean = sum(margins) / max(1, len(margins))
    ceilings = [f"≤ {row['not_fooled']:.0%}" for row in found["attack"]]
    shown.add_row("attack", *ceilings, f"≤ {mean:+.4g}", "", style="dim")
    return shown


def sentence_summary(run: Run) -> dict[str, Any]:
    """The verdicts per method and the answers, as plain JSON."""
    verdicts = ("verified", "falsified", "unknown")
    return {
        "sentences": len({s.number for s in run.sentences}),
        "verdicts": {
            method: {v: sum(s.verdict == v for s in run.sentences if s.method == method) for v in verdicts}
            for method in run.methods
        },
        "rows": [dataclasses.asdict(s) for s in run.sentences],
    }


def sentence_table(run: Run) -> Table:
    """The answers about sentences as a table for the terminal; a counterexample by the words that it replaces."""
    from vertex_softmax.runs.report.sentence_view import replaced

    counts = sentence_summary(run)["verdicts"]
    said = [
        f"{method}: {', '.join(f'{n} {verdict}' for verdict, n in found.items())}" for method, found in counts.items()
    ]
    shown = Table(title=Text(run.title), caption=Text("\n".join(said)), caption_justify="left")
    for name in ("sentence", "method", "words", "combinations", "verdict", "bound", "counterexample", "s"):
        shown.add_column(name, justify="left" if name in ("method", "verdict", "counterexample") else "right")
    for s in run.sentences:
        changed = replaced(run, s)
        itself = "" if s.counterexample is None else "the sentence itself"
        bound = "–" if s.bound is None else f"{s.bound:+.4g}"
        row = (str(s.number), s.method, str(s.replaceable), s.combinations, s.verdict, bound)
        shown.add_row(*row, ", ".join(changed) or itself, f"{s.seconds:.2f}")
    return shown


def radius_summary(run: Run) -> dict[str, Any]:
    """Median radii per method, and the certified-accuracy curve, as plain JSON."""
    steps = _steps(run)
    return {
        "inputs": len(run.inputs),
        "correct": sum(x.clean > 0 for x in run.inputs),
        "median": {method: _median([r.certified for r in run.radii if r.method == method]) for method in run.methods},
        "curve": {method: [[e, run.certified_accuracy(method, e)] for e in steps] for method in run.methods},
        "radii": [
            {
                "input": run.inputs[r.input].index,
                "method": r.method,
                "certified": r.certified,
                "refused": r.refused,
                "attacked": r.attacked,
                "seconds": r.seconds,
            }
            for r in run.radii
        ],
    }


def radius_table(run: Run) -> Table:
    """The quartiles of the radii as a table for the terminal."""
    remark = None if any(x.clean > 0 for x in run.inputs) else Text(NONE_CORRECT)
    shown = Table(title=Text(f"{run.title} ({len(run.inputs)} inputs)"), caption=remark, caption_justify="left")
    for name in ("method", "lower quartile", "median", "upper quartile", "largest", "s/input"):
        shown.add_column(name, justify="left" if name == "method" else "right")
    for method in run.methods:
        mine = sorted(r.certified for r in run.radii if r.method == method)
        spent = sum(r.seconds for r in run.radii if r.method == method) / max(1, len(mine))
        shown.add_row(method, *(f"{_quantile(mine, q):.4g}" for q in (0.25, 0.5, 0.75, 1.0)), f"{spent:.2f}")
    attacked = sorted(float("inf") if r.attacked is None else r.attacked for r in run.radii[: len(run.inputs)])
    shown.add_section()
    cells = [f"< {_quantile(attacked, q):.4g}" for q in (0.25, 0.5, 0.75, 1.0)]
    shown.add_row("attack", *cells, "", style="dim")
    return shown


def curve(run: Run) -> Table:
    """The certified accuracy at round ε as a table for the terminal."""
    steps = _steps(run)
    shown = Table(
        title="certified accuracy: the share of inputs whose radius is at least ε",
        pad_edge=False,
        collapse_padding=True,
    )
    shown.add_column("ε")
    for e in steps:
        shown.add_column(f"{e:g}", justify="right")
    for method in run.methods:
        shown.add_row(method, *(f"{run.certified_accuracy(method, e) or 0:.0%}" for e in steps))
    return shown


def _steps(run: Run) -> list[float]:
    """Six to fifteen round values of ε, up to the first at which nothing is certified."""
    most = max((r.certified for r in run.radii), default=0.0) or 1.0
    step = next(m * 10.0**k for k in range(-9, 9) for m in (1, 2, 5) if m * 10.0**k >= most / 12)
    return [float(f"{step * i:.6g}") for i in range(1, int(most / step) + 2)]


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, max(0, round(q * (len(ordered) - 1))))] if ordered else 0.0


def _median(numbers: Sequence[float]) -> float:
    return _quantile(sorted(numbers), 0.5)
