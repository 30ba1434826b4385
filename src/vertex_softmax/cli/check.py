"""`vertex check`: check that a certificate is valid, belongs to a model, and proves a specification.

Exit codes: 0 accepted, 1 rejected (the reason is on stderr), 2 bad input.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vertex_softmax.cli import values
from vertex_softmax.cli.common import complain, reporting, say
from vertex_softmax.foundation.errors import InvalidValueError, VertexError
from vertex_softmax.foundation.extras import require_proof_extra
from vertex_softmax.runs.freed_memory import keep_freed_memory

if TYPE_CHECKING:
    from vertex_softmax.certificate.checker import Finding
    from vertex_softmax.certificate.checker.file import File
    from vertex_softmax.specs.property import Property

GRACE = 2.0
"""Seconds after the timeout at which the certificate is rejected, even if a computation still runs."""


@reporting
def check(
    certificate: Annotated[Path, typer.Argument(help="The certificate.")],
    model: Annotated[Path, typer.Argument(help="The model that it is about: an ONNX file, or .onnx.gz.")],
    spec: Annotated[
        Path | None,
        typer.Argument(help="The property that it must prove: a VNNLIB file, or .vnnlib.gz.", show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds; a certificate that takes longer is rejected.")] = 3600.0,
    jobs: Annotated[
        int, typer.Option(help="Number of processes that share the work; the answer is the same as with one.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Replay a certificate in rigorous arithmetic, compare its network with a model, and its claim with a property.

    Three conditions must hold: the model's SHA-256 is the one named in the certificate; the network written in the
    certificate is the one that Vertex reads from the model, number by number; and the checker, which trusts nothing in
    the file, proves a positive margin. With a specification there is a fourth: the certificate's boxes and cases cover
    all of it, exactly. What is proved, and for which inputs, is printed in words: read it, above all without a
    specification. Exit codes: 0 accepted, 1 rejected, 2 bad input.

    Examples:
        vertex verify model.onnx property.vnnlib --certificate proof.vertex
        vertex check proof.vertex model.onnx property.vnnlib
        vertex check proof.vertex model.onnx --jobs 2
        vertex check proof.vertex model.onnx --json
    """
    values.seconds("--timeout", timeout)
    values.jobs("--jobs", jobs)
    if jobs > 1:  # each job has its share of the cores; read when numpy is imported
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    for path in (certificate, model, *([] if spec is None else [spec])):
        if not path.exists():
            raise InvalidValueError(f"{path} does not exist")
    require_proof_extra()
    keep_freed_memory()
    with _limited(timeout, as_json):
        prop = None if spec is None else _read_property(spec)
        finding, file = _replayed(certificate, timeout, jobs)
        reason = finding.reason
        if finding.accepted and file is not None:
            reason = _network_difference(file, model, timeout, prop) or _not_covered(file, prop)
    _print_finding(finding, reason, None if spec is None else str(spec), as_json)
    raise typer.Exit(1 if reason else 0)


def _read_property(spec: Path) -> Property:
    from vertex_softmax.specs.vnnlib import read_vnnlib

    return read_vnnlib(spec)


def _replayed(certificate: Path, seconds: float, jobs: int) -> tuple[Finding, File | None]:
    """What the checker finds, and the certificate, which is read once, so that everything is about the same bytes."""
    from vertex_softmax.certificate.checker import Finding
    from vertex_softmax.certificate.checker import check as replay
    from vertex_softmax.certificate.checker.file import read
    from vertex_softmax.certificate.checker.jobs import UNREADABLE, why

    try:
        file = read(certificate)
    except UNREADABLE as error:
        swapped = certificate.name.endswith((".onnx", ".onnx.gz", ".vnnlib", ".vnnlib.gz"))
        return Finding.rejected(why(error) + ("; give the certificate first, then the model" if swapped else "")), None
    return replay(file, seconds=seconds, jobs=jobs), file


def _print_finding(verdict: Finding, reason: str, spec: str | None, as_json: bool) -> None:
    """Print the result and the claim on stdout, the reason for a rejection and the statement on stderr."""
    claim = verdict.claim if not reason else None
    if as_json:
        found: dict[str, Any] = {"accepted": not reason, "reason": reason, "margin": _plain(verdict.margin)}
        found |= {"seconds": verdict.seconds, "specification": spec}
        found |= {"statement": "" if reason else verdict.statement, "claim": None if claim is None else claim.facts}
        typer.echo(json.dumps(found))
        return
    took = f"({verdict.seconds:.1f} s)"
    if claim is None:
        typer.echo("rejected")
        complain(f"{reason} {took}")
        return
    typer.echo(f"accepted: margin {verdict.margin:.6g}")
    if spec is not None:
        typer.echo(f"this certificate proves the property of {spec} for this model")
    for heading, text in claim.words:
        typer.echo(f"  {heading:9} {text}")
    say(f"{verdict.statement} {took}")


def _plain(x: float) -> float | None:
    return x if abs(x) < float("inf") else None


def _network_difference(file: File, model: Path, seconds: float, prop: Property | None) -> str:
    """Why the certificate is not about this model, which is read once; empty if it is.

    With a specification, neither the order of the model's inputs nor an open size is the certificate's to choose.
    """
    from vertex_softmax.certificate.instances import difference
    from vertex_softmax.graph.from_onnx.file import OnnxFile, has_open_sizes, input_names, open_sizes
    from vertex_softmax.graph.from_onnx.importer import from_onnx
    from vertex_softmax.graph.simplify import simplify

    deadline = time.perf_counter() + seconds
    try:
        source = OnnxFile.read(model)
        about = file.header.get("model")
        if not isinstance(about, dict) or source.identity != about.get("sha256"):
            return "the certificate is for another model: the SHA-256 of the file is not the one it names"
        inputs = about.get("inputs")
        if inputs is not None and not (isinstance(inputs, list) and all(isinstance(name, str) for name in inputs)):
            return "the certificate does not name the model's inputs that its own input is made of"
        own = list(input_names(source.proto.graph))
        if prop is not None and inputs is not None and inputs != own:
            return (
                f"the certificate joins the model's inputs in the order {', '.join(map(repr, inputs))}, and a "
                f"specification counts their numbers in the model's own, {', '.join(map(repr, own))}: make a "
                "certificate of a set whose inputs are in that order"
            )
        shapes = [_input_shape(file)] if inputs is None and has_open_sizes(source.proto.graph) else None
        if prop is not None and prop.input_shape is None and shapes is not None:
            first, *others = open_sizes(source.proto.graph, own[0])
            if sum(others) > 1 or (first and shapes[0][:1] != (1,)):
                return (
                    f"the certificate is for inputs of shape {list(shapes[0])}, and the model leaves several sizes "
                    "open: a specification that declares no shape does not say which. Export the model with fixed sizes"
                )
        graph = from_onnx(source, inputs=inputs, shapes=shapes, seconds=seconds)
        return difference(file, simplify(graph, deadline=deadline))
    except VertexError as error:
        return f"the model cannot be read: {error}"


def _input_shape(file: File) -> tuple[int, ...]:
    """The shape of the certificate's input, which open sizes of a file then have; the two graphs are compared later."""
    nodes = file.header.get("graph")
    shape = nodes[0].get("shape") if isinstance(nodes, list) and nodes and isinstance(nodes[0], dict) else None
    return tuple(n for n in shape if type(n) is int) if isinstance(shape, list) else ()


def _not_covered(file: File, prop: Property | None) -> str:
    """Why the certificate does not prove the property; empty if it does, or if none is given."""
    if prop is None:
        return ""
    from vertex_softmax.certificate.comparison import missing

    return missing(file, prop)


@contextlib.contextmanager
def _limited(seconds: float, as_json: bool) -> Iterator[None]:
    """Reject the certificate and end the process when the time is over, whatever is still being computed."""
    lock = threading.Lock()

    def end() -> None:
        lock.acquire()  # it is never released: the process ends here
        reason = f"the time of {seconds:g} s was over before the check was"
        text = json.dumps({"accepted": False, "reason": reason}) if as_json else "rejected"
        try:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
            complain(reason)
        finally:
            os._exit(1)

    timer = threading.Timer(seconds + GRACE, end)
    timer.daemon = True
    timer.start()
    try:
        yield
        lock.acquire()  # only one of the two prints a result
    finally:
        timer.cancel()
