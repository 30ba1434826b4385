"""`certify` and `bound`: a model, an input set, a method; a verdict or an interval."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.bounds.aims import Watchers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.still_rows import without_still_rows
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, memory_explained
from vertex_softmax.foundation.extras import require_proof_extra
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.foundation.progress import Progress
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.bab import rules_of
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import Method, lower_bounds, method_named, searched_bounds
from vertex_softmax.methods.sizing import batch_size, batches
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.elementwise import Log
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.softmax import Softmax
from vertex_softmax.runs.centres import Centres, rounding
from vertex_softmax.runs.certification import Certification, effort_of, in_order, together
from vertex_softmax.runs.choices import decided_by_choices
from vertex_softmax.runs.classes import Asked, Classes
from vertex_softmax.runs.counterexamples import DEFAULT, Attacking, Counterexamples, attacked
from vertex_softmax.runs.kept_searches import KeptSearches
from vertex_softmax.runs.met_inside import MetInside
from vertex_softmax.runs.told import Told
from vertex_softmax.runs.unions import hull, members_of, united
from vertex_softmax.runs.verdicts import CENTRE, Margins, require_consistent, verdicts_of, with_ties
from vertex_softmax.sets import InputSet
from vertex_softmax.sets.choice_region import ChoiceRegion
from vertex_softmax.sets.loading import Loaded, Model, checked, load, read
from vertex_softmax.sets.region import Region

__all__ = ["Model", "bound", "certify", "load"]

ADVICE = (
    "take a cheaper method (`crown`, `ibp`), fewer inputs or targets at once, or a machine with more; with "
    "Options(memory=Memory(total=…)) of vertex_softmax.bounds.memory it is said beforehand what fits"
)
"""What helps where memory is exhausted."""
OUTPUTS = 1 << 25
"""The most coefficients of the objectives by which `bound` asks for outputs at once."""


@memory_explained(ADVICE)
@full_precision()
def certify(
    model: Model,
    input_set: InputSet,
    label: int | Sequence[int] | Tensor,
    method: str = "joint",
    *,
    options: Options | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    certificate: bool = False,
    rigorous: bool = False,
    targets: int | Sequence[int] | Tensor | None = None,
    position: int | None = None,
    attack: Attacking | None = DEFAULT,
    progress: Progress | None = None,
) -> Certification:
    """Is the label the largest output for every input of the set? One answer per input of the batch.

    `model`: a PyTorch module in eval mode, a path to an ONNX file, a Graph, or what `sets.loading.read` made of one,
    which is then not read again. The set's tensors are (batch, ...); the module sees them one at a time. Before
    anything is said, the graph that is bounded is held against the model itself at every input, at its centre and at
    points of its set: the module run eagerly, or onnxruntime. Bounds are floating point (float64 unless told
    otherwise): `lower` may exceed the true bound by rounding. A model of several inputs has a `sets.Product`; of a
    `sets.Union` every member has to be verified, and each is bounded for itself.

    `certificate`: prove every `verified` so that it survives floating point (`Certification.certificates`); what cannot
    be proved is unknown, with the margin of the proof as reason. `rigorous`: besides, `lower` is only what was proved
    (−inf where nothing was tried: at inputs that are falsified). Both need the extra `proof`.

    `targets`: only these classes count, whatever the others have: one class, some for all inputs, or a row for each.
    `position`: of an output (positions, classes), as language models have, the row that holds the classes; −1 is the
    last. `attack`: inputs that are not verified are attacked, shortly; a point of the set that the model itself
    misclassifies beyond rounding is in `Certification.counterexamples`, and the verdict is `falsified`. With
    `Options.goal` the attack comes first, and what it falsifies has no bounds (−inf). None: only the centre of the set
    may falsify. `progress` is called again and again, with the name of a stage, how much of it is done and how much
    there is: "reading the model", "boxes", "zonotopes", "ascent", "parts", "attack", "proofs", "inputs".
    """
    begin = time.perf_counter()
    options, chosen = _options(options), method_named(method)
    proofs = certificate or rigorous
    _dtype(dtype)
    if proofs and dtype != torch.float64:
        raise InvalidValueError(f"dtype is {dtype}; certificates are made in torch.float64")
    if proofs:
        require_proof_extra()
    place = _device(device, checked(input_set))
    asked = Asked.of(label, targets, position, len(input_set))
    told = Told(progress, len(input_set) * len(members_of(input_set)))
    told.stage("reading the model", 0, 1)
    original = read(model)
    groups = original.groups(input_set)
    told.stage("reading the model", 1, 1)
    seconds = {"import": time.perf_counter() - begin}
    peak = _PeakMemory(place)
    how = _How(chosen, options, dtype, place, rigorous if proofs else None, original, _attacking(attack), told=told)
    parts = [_answer(group.graph, input_set[list(group.which)], asked.at(list(group.which)), how) for group in groups]
    found = together(parts, [group.which for group in groups])
    seconds = {**seconds, **found.seconds}
    seconds["total"] = time.perf_counter() - begin
    return dataclasses.replace(found, seconds=seconds, peak_bytes=peak.bytes())


@dataclasses.dataclass(frozen=True)
class _How:
    """How every group of inputs is answered."""

    method: Method
    options: Options
    dtype: torch.dtype
    device: torch.device
    rigorous: bool | None
    """None: no proofs."""
    original: Loaded
    attack: Attacking | None = None
    attacked: bool = False
    """whether what is left was attacked before any bound"""
    file: dict[str, object] = dataclasses.field(default_factory=dict)
    """how a certificate names the file that the model was read from"""
    told: Told = dataclasses.field(default_factory=lambda: Told(None, 0))
    searches: KeptSearches = dataclasses.field(default_factory=KeptSearches)
    """what branch and bound has done, for proofs"""


def _answer(graph: Graph, input_set: InputSet, asked: Asked, ask: _How) -> Certification:
    """The answer for inputs that have one graph."""
    dtype, device = ask.dtype, ask.device
    exact = (graph if ask.rigorous is not None else _logits(graph)).to(torch.float64, device)
    if ask.rigorous is not None:
        _require_room_for_proofs(exact, ask.options)
    members = members_of(input_set)
    count = len(members[0].region(exact.input.shape, dtype, device).box.lower)
    classes = asked.classes(exact.output.shape, count, device)
    parts = [_decided_first(exact, each, classes, ask) or _bounded(exact, each, classes, ask) for each in members]
    found = united(parts)
    if ask.rigorous is None:
        return found
    where = [each.region(exact.input.shape, torch.float64, torch.device("cpu")) for each in members]
    return _proved(found, exact, where, classes, dataclasses.replace(ask, file=_named(ask.original, input_set)))


def _decided_first(exact: Graph, input_set: InputSet, classes: Classes, ask: _How) -> Certification | None:
    """The answer if an attack comes first: where it finds a counterexample, no bound is computed (−inf).

    That is so if a verdict is enough (`Options.goal`); None otherwise.
    """
    count = len(classes.labels)
    if ask.attack is None or ask.options.goal is None or count != len(input_set):
        return None
    size = batch_size(exact, ask.method, ask.options, ask.device, ask.dtype)
    parts = []
    for i in range(0, count, size):
        centres = Centres(exact, input_set[i : i + size], ask.original, ask.method, ask.options)
        parts.append(_attacked(centres, classes.at(slice(i, i + size)), ask))
    found = together(parts, [tuple(which.tolist()) for which in torch.arange(count).split(size)])
    done = [i for i, verdict in enumerate(found.verdicts) if verdict is Verdict.FALSIFIED]
    rest = [i for i, verdict in enumerate(found.verdicts) if verdict is not Verdict.FALSIFIED]
    ask.told.inputs_answered(len(done))
    if not rest:
        return found
    others = classes.at(torch.tensor(rest, device=ask.device))
    left = _bounded(exact, input_set[rest], others, dataclasses.replace(ask, attacked=True))
    return together([found.at(done), left], [done, rest])


def _attacked(centres: Centres, classes: Classes, ask: _How) -> Certification:
    """The answer of the attack alone: falsified, or unknown; there are no bounds."""
    begin = time.perf_counter()
    with torch.no_grad():
        scores = classes.logits(centres.graph.evaluate(centres.points))
    clean = scores.gather(1, classes.labels[:, None]) - scores.gather(1, classes.targets)
    wrong = centres.misclassified(classes, (clean.amin(1) < 0) & clean.isfinite().all(1))
    nothing = Certification(
        lower=classes.spread(torch.full_like(clean, -torch.inf)).to(ask.dtype),
        verdicts=tuple(Verdict.FALSIFIED if bad else Verdict.UNKNOWN for bad in wrong.tolist()),
        reasons=tuple(f"{CENTRE} (margin {margin:.6g})" for margin in clean.amin(1).tolist()),
        method=str(ask.method),
        clean=classes.spread(clean).to(ask.dtype),
        seconds={},
        labels=classes.labels,
        counterexamples=_centres_that_are_wrong(centres, wrong),
    )
    decided = _decided(nothing, clean, centres, classes, ask)[0]
    return dataclasses.replace(decided, seconds={"attack": time.perf_counter() - begin})


def _bounded(exact: Graph, input_set: InputSet, classes: Classes, ask: _How) -> Certification:
    """The answer by bounds and, unless it is switched off, the attack, for inputs that have one graph."""
    graph = exact.to(ask.dtype, ask.device)
    region = input_set.region(graph.input.shape, ask.dtype, ask.device)
    count, parts = len(region.box.lower), []
    order = batches(graph, ask.method, ask.options, region)
    for which in order:
        some = input_set[which.tolist()] if count == len(input_set) else input_set  # else the batch is one input
        centres = Centres(exact, some, ask.original, ask.method, ask.options)
        parts.append(_certified(graph, region.at(which), centres, classes.at(which), ask))
        ask.told.inputs_answered(len(parts[-1].verdicts))
    return together(parts, [which.tolist() for which in order])


def _named(original: Loaded, input_set: InputSet) -> dict[str, object]:
    """How a certificate names the file that a model was read from; nothing if it is no file.

    `inputs` are those of the file whose numbers are joined in the network's input, in this order.
    """
    if original.identity is None:
        return {}
    joined = original.input_names(input_set)
    named: dict[str, object] = {"sha256": original.identity, "file": original.name}
    return {**named, "inputs": list(joined)} if joined else named


def _logits(graph: Graph) -> Graph:
    """The graph without a log-softmax of its output at the end: margins are the same, whatever is taken from all."""
    top = graph.output
    below = top.inputs[0] if isinstance(top.op, Log) else top
    if below is top or not isinstance(below.op, Softmax) or below.op.mask is not None:
        return graph
    return dataclasses.replace(graph, output=below.inputs[0])


def _proved(
    found: Certification, graph: Graph, regions: Sequence[Region], classes: Classes, ask: _How
) -> Certification:
    """The certification with a proof of every `verified` over all sets, on the CPU. See runs/proofs.py."""
    from vertex_softmax.runs.proofs import Batch, with_proofs

    cpu = graph.to(torch.float64, torch.device("cpu"))
    batch = Batch(graph=cpu, regions=tuple(regions), classes=classes, file=ask.file, searches=ask.searches)
    return with_proofs(found, batch, ask.options, ask.told, rigorous=bool(ask.rigorous))


def _require_room_for_proofs(graph: Graph, options: Options) -> None:
    """Raise before anything is computed if proofs cannot be made: for want of a library, of an op, or of memory."""
    try:
        from vertex_softmax.certificate.certificate import forward_first
        from vertex_softmax.certificate.lowering import require_lowerable
        from vertex_softmax.certificate.room import require_room
    except ImportError as error:
        raise InvalidValueError(f"{error.name} is missing: pip install 'vertex-softmax[proof]'") from error
    require_lowerable(graph)
    require_room(graph, options.memory, forward=forward_first(graph))


def _certified(graph: Graph, region: Region, centres: Centres, classes: Classes, ask: _How) -> Certification:
    """The answer for inputs that are bounded together."""
    lower = region.box.lower
    batch, size = lower.shape[0], math.prod(graph.output.shape)
    C = classes.objectives(size, lower)
    bounded = without_still_rows(graph, region, ask.options.memory)
    question = Question.over(bounded, region, memory=ask.options.memory, progress=ask.told.progress)
    objective = Objective.dense(bounded.output, C.reshape(batch, -1, *graph.output.shape))
    with torch.no_grad():
        centre = centres.points.to(lower)
        clean = (C @ graph.evaluate(centre).reshape(batch, size, 1)).squeeze(-1)
    branch = ask.method is Method.BAB and isinstance(region, ChoiceRegion) and batch == 1
    effort: dict[str, float] = {}
    if branch and isinstance(region, ChoiceRegion):  # on words; if that does not decide, `joint` has its say
        by_words = decided_by_choices(graph, region, objective, centres, classes)
        if by_words.verdict is not Verdict.UNKNOWN:
            return Certification(
                lower=classes.spread(by_words.lower.unsqueeze(0)),
                verdicts=(by_words.verdict,),
                reasons=(by_words.reason,),
                method=str(ask.method),
                clean=classes.spread(clean),
                seconds=by_words.seconds,
                effort=by_words.effort,
                labels=classes.labels,
                counterexamples=by_words.counterexample.unsqueeze(0),
            )
        ask, effort = dataclasses.replace(ask, method=Method.JOINT), by_words.effort
    attacks = ask.attack is not None and ask.attack.targets > 0
    inside = MetInside(centres, classes) if attacks and batch == 1 == len(centres.input_set) else None
    record = None if ask.rigorous is None else ask.searches.record(graph, bounded, region)
    with torch.no_grad():
        if ask.method is Method.BAB:
            watchers = Watchers() if inside is None else inside.watchers(ask.told.of_search())
            watchers = dataclasses.replace(watchers, record=record)
            found, branched = searched_bounds(question, objective, ask.options, watchers)
            effort = {} if branched is None else effort_of(branched)
            if record is not None and branched is not None:
                ask.searches.add(question, rules_of(ask.options), record)
        else:
            found = lower_bounds(question, objective, ask.method, ask.options)
    positive = bool((found.lower > 0).any())
    guard = rounding(question, found, objective, ask.method, ask.options) if positive else None
    wrong = centres.misclassified(classes, (clean.amin(1) < 0) & clean.isfinite().all(1))
    margins = Margins(found, clean, guard, wrong)
    verdicts, reasons = verdicts_of(margins, classes)
    outcome = Certification(
        lower=classes.spread(found.lower),
        verdicts=verdicts,
        reasons=reasons,
        method=str(Method.BAB if branch else ask.method),
        clean=classes.spread(clean),
        seconds=dict(question.clock.seconds),
        effort=effort,
        labels=classes.labels,
        counterexamples=_centres_that_are_wrong(centres, wrong),
    )
    require_consistent(margins, classes, classes.spread(clean), wrong)
    met = None if inside is None else inside.found
    if met is not None:
        require_consistent(margins, classes, met.margins, met.where)
    decided, refuted = _decided(outcome, found.lower, centres, classes, ask, met)
    require_consistent(margins, classes, refuted.margins, refuted.where)
    reached = torch.minimum(refuted.margins, decided.clean.double())
    if inside is not None and inside.margins is not None:
        reached = torch.minimum(reached, inside.margins.to(reached))
    return with_ties(decided, reached)


def _centres_that_are_wrong(centres: Centres, wrong: Tensor) -> Tensor:
    """The centres that are misclassified, (batch, *input shape); NaN elsewhere."""
    points = centres.input_set.centre
    points = points if len(points) == len(wrong) else points.unsqueeze(0)  # the whole batch is one input
    return torch.where(wrong.to(points.device).reshape(-1, *[1] * (points.dim() - 1)), points, torch.nan)


def _decided(
    outcome: Certification,
    order: Tensor,
    centres: Centres,
    classes: Classes,
    ask: _How,
    met: Counterexamples | None = None,
) -> tuple[Certification, Counterexamples]:
    """The outcome after an attack on the inputs that are unknown, and what the attack found, of all inputs.

    order: (batch, T), the targets with the least of these come first. met: of the one input there is, a counterexample
    that branch and bound has met: then no attack is needed. Six parameters: what is known, and how to go on.
    """
    count = len(outcome.verdicts)
    where, reached = torch.zeros(count, dtype=torch.bool, device=ask.device), outcome.clean.double().clone()
    points = outcome.counterexamples.clone()
    which = torch.tensor([i for i, verdict in enumerate(outcome.verdicts) if verdict is Verdict.UNKNOWN]).long()
    idle = ask.attack is None or (ask.attacked and met is None)
    if ask.attack is None or idle or not len(which) or len(centres.input_set) != count:
        return outcome, Counterexamples(where, points, reached)
    begin, there = time.perf_counter(), which.to(ask.device)
    ask.told.stage("attack", 0, len(which))
    some = dataclasses.replace(centres, input_set=centres.input_set[which])
    found = met or attacked(some, classes.at(there), order[there], ask.attack)
    where[there], reached[there] = found.where, found.margins
    verdicts, reasons = list(outcome.verdicts), list(outcome.reasons)
    for j in found.where.nonzero().flatten().tolist():
        i, target = int(which[j]), int(found.margins[j].argmin())
        points[i], verdicts[i] = found.points[j], Verdict.FALSIFIED
        reasons[i] = f"a point of the set is classified as {target} (margin {float(found.margins[j, target]):.6g})"
    decided = dataclasses.replace(
        outcome,
        verdicts=tuple(verdicts),
        reasons=tuple(reasons),
        counterexamples=points,
        seconds={**outcome.seconds, "attack": time.perf_counter() - begin},
    )
    return decided, Counterexamples(where, points, reached)


@memory_explained(ADVICE)
@full_precision()
def bound(
    model: Model,
    input_set: InputSet,
    method: str = "joint",
    *,
    options: Options | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Interval:
    """An interval for every output over the set, (batch, *output shape); NaN where there is no bound."""
    options, chosen = _options(options), method_named(method)
    place = _device(device, checked(input_set))
    _dtype(dtype)
    original = read(model)
    ask = _How(chosen, options, dtype, place, None, original)
    groups = original.groups(input_set)
    found = [
        hull([_interval(group.graph, each, ask) for each in members_of(input_set[list(group.which)])])
        for group in groups
    ]
    order = [group.which for group in groups]
    return Interval(in_order([part.lower for part in found], order), in_order([part.upper for part in found], order))


def _interval(graph: Graph, input_set: InputSet, ask: _How) -> Interval:
    """The interval of every output for inputs that have one graph."""
    graph = graph.to(ask.dtype, ask.device)
    region = input_set.region(graph.input.shape, ask.dtype, ask.device)
    order = batches(graph, ask.method, ask.options, region)
    parts = [_output_interval(graph, region.at(which), ask) for which in order]
    places = [which.tolist() for which in order]
    return Interval(in_order([part.lower for part in parts], places), in_order([part.upper for part in parts], places))


def _output_interval(graph: Graph, region: Region, ask: _How) -> Interval:
    """The interval of every output for inputs that are bounded together."""
    batch, size, shape = len(region.box.lower), math.prod(graph.output.shape), graph.output.shape
    bounded = without_still_rows(graph, region, ask.options.memory)
    question = Question.over(bounded, region, memory=ask.options.memory)
    some = max(1, OUTPUTS // (2 * size * batch))
    parts = [_some_outputs(question, range(i, min(i + some, size)), ask) for i in range(0, size, some)]
    return Interval(*(torch.cat(ends, 1).reshape(batch, *shape) for ends in zip(*parts, strict=True)))


def _some_outputs(question: Question, which: range, ask: _How) -> tuple[Tensor, Tensor]:
    """Both ends (batch, outputs) of some outputs, by their numbers."""
    top = question.graph.output
    unit = torch.zeros(len(which), math.prod(top.shape), dtype=ask.dtype, device=ask.device)
    unit[torch.arange(len(which)), torch.tensor(which)] = 1
    C = torch.cat([unit, -unit]).reshape(1, -1, *top.shape).expand(question.batch, -1, *top.shape)
    with torch.no_grad():
        bound = lower_bounds(question, Objective.dense(top, C), ask.method, ask.options)
    found = bound.lower
    for problem in bound.boxes.problems:
        found = torch.where(problem.where[:, None], torch.full_like(found, torch.nan), found)
    return found[:, : len(which)], -found[:, len(which) :]


def _attacking(attack: object) -> Attacking | None:
    if attack is not None and not isinstance(attack, Attacking):
        raise InvalidTypeError(
            f"attack is a {type(attack).__name__}; give vertex_softmax.runs.counterexamples.Attacking, or None for no "
            "attack"
        )
    return attack


def _options(options: object) -> Options:
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise InvalidTypeError(f"options is a {type(options).__name__}; give vertex_softmax.methods.options.Options")
    return options


def _device(device: object, input_set: InputSet) -> torch.device:
    """The device asked for, or the set's, if something can be computed there."""
    if device is None:
        return input_set.lower.device
    if not isinstance(device, torch.device | str):
        raise InvalidTypeError(f"device is {device!r}; give 'cpu', 'cuda', or a torch.device")
    try:
        place = torch.device(device)
        if place.type == "meta":
            raise InvalidValueError("device is 'meta', where tensors have no numbers; choose 'cpu' or 'cuda'")
        torch.zeros(1, device=place).add(1)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidValueError(
            f"device is {str(device)!r}, on which nothing can be computed here: {reason}"
        ) from error
    return place


def _dtype(dtype: object) -> torch.dtype:
    if not isinstance(dtype, torch.dtype) or dtype not in VERDICT:
        raise InvalidValueError(f"dtype is {dtype}; choose torch.float64 or torch.float32")
    return dtype


class _PeakMemory:
    """Most bytes in use since it was made: by tensors on a CUDA device, else by the whole process, ever."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def bytes(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        try:
            import resource
        except ImportError:  # not on Windows
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
