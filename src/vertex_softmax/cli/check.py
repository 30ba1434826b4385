"""`vertex check`: does a certificate prove what it says, of this model, and what a specification asks?

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

from vertex_softmax.cli import values as cli_values
from vertex_softmax.cli.common import complain, reporting, say
from vertex_softmax.foundation.errors import InvalidValueError, VertexError

if TYPE_CHECKING:
    from vertex_softmax.certificate.checker import Finding
    from vertex_softmax.certificate.checker.file import File
    from vertex_softmax.specs.property import Property

GRACE = 2.0
"""Seconds after the timeout until the certificate is rejected without waiting for what is still being computed."""


@reporting
def check(
    certificate: Annotated[Path, typer.Argument(help="The certificate.")],
    model: Annotated[Path, typer.Argument(help="The ONNX file that it is about, or .onnx.gz.")],
    spec: Annotated[
        Path | None,
        typer.Argument(help="VNNLIB file, or .vnnlib.gz: is it this property that is proved?", show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds; a certificate that takes longer is rejected.")] = 3600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Say everything as one JSON object.")] = False,
) -> None:
    """Replay a certificate in rigorous arithmetic, compare its network with a model's, and its claim with a property.

    Three things must hold: the model's SHA-256 is the one named in the certificate; the network written in the
    certificate is what Vertex reads from the model, number by number; and the checker, which believes nothing that the
    file claims, proves a positive margin. With a specification a fourth: the certificate's boxes and cases cover all of
    it, exactly. What is proved, over which inputs, is printed in words: read it, above all without a specification.
    Exit codes: 0 accepted, 1 rejected, 2 bad input.

    Examples:
        vertex verify model.onnx property.vnnlib --certificate proof.vertex
        vertex check proof.vertex model.onnx property.vnnlib
        vertex check proof.vertex model.onnx --json
    """
    cli_values.seconds("--timeout", timeout)
    for path in (certificate, model, *([] if spec is None else [spec])):
        if not path.exists():
            raise InvalidValueError(f"{path} does not exist")
    try:
        import flint  # noqa: F401
    except ImportError as error:
        raise InvalidValueError("python-flint is missing: pip install 'vertex-softmax[proof]'") from error
    with _limited(timeout, as_json):
        asked = None if spec is None else _asked(spec)
        verdict, file = _replayed(certificate, timeout)
        reason = verdict.reason
        if verdict.accepted and file is not None:
            reason = _other_network(file, model, timeout) or _other_question(file, asked)
    _tell(verdict, reason, None if spec is None else str(spec), as_json)
    raise typer.Exit(1 if reason else 0)


def _asked(spec: Path) -> Property:
    from vertex_softmax.specs.vnnlib import read_vnnlib

    return read_vnnlib(spec)


def _replayed(certificate: Path, seconds: float) -> tuple[Finding, File | None]:
    """The verdict, and the certificate as it was read: once, so that all that is said is of the same bytes."""
    from vertex_softmax.certificate.checker import Finding
    from vertex_softmax.certificate.checker import check as replay
    from vertex_softmax.certificate.checker.file import read
    from vertex_softmax.certificate.checker.proof import UNREADABLE, why

    try:
        file = read(certificate)
    except UNREADABLE as error:
        return Finding.rejected(why(error)), None
    return replay(file, seconds=seconds), file


def _tell(verdict: Finding, reason: str, spec: str | None, as_json: bool) -> None:
    """What was found: on stdout, the reason and the statement on stderr."""
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


def _other_network(file: File, model: Path, seconds: float) -> str:
    """Why the certificate is not about this model, which is read once; empty if it is."""
    from vertex_softmax.certificate.instances import difference
    from vertex_softmax.graph.from_onnx.file import OnnxFile
    from vertex_softmax.graph.from_onnx.importer import from_onnx
    from vertex_softmax.graph.simplify import simplify

    deadline = time.perf_counter() + seconds
    try:
        source = OnnxFile.read(model)
        about = file.header.get("model")
        if not isinstance(about, dict) or source.identity != about.get("sha256"):
            return "the certificate is for another model: the SHA-256 of the file is not the one it names"
        return difference(file, simplify(from_onnx(source, seconds=seconds), deadline=deadline))
    except VertexError as error:
        return f"the model cannot be read: {error}"


def _other_question(file: File, asked: Property | None) -> str:
    """Why the certificate does not prove the specification; empty if it does, or if none is given."""
    if asked is None:
        return ""
    from vertex_softmax.certificate.comparison import missing

    return missing(file, asked)


@contextlib.contextmanager
def _limited(seconds: float, as_json: bool) -> Iterator[None]:
    """Reject when the time is over, whatever is still under way then: a pass, the import of the model."""
    lock = threading.Lock()

    def end() -> None:
        lock.acquire()  # never given back: the process ends here
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
        lock.acquire()  # whoever is first speaks alone
    finally:
        timer.cancel()
