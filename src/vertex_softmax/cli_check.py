"""`vertex check`: does a certificate prove what it says, of this model?

Exit codes: 0 accepted, 1 rejected (the reason is on stderr), 2 bad input.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vertex_softmax.cli_common import complain, reporting, say
from vertex_softmax.errors import InvalidValueError, VertexError


@reporting
def check(
    certificate: Annotated[Path, typer.Argument(help="The certificate.")],
    model: Annotated[Path, typer.Argument(help="The ONNX file that it is about, or .onnx.gz.")],
    as_json: Annotated[bool, typer.Option("--json", help="Say everything as one JSON object.")] = False,
) -> None:
    """Replay a certificate in rigorous arithmetic, and compare its network with a model's.

    Three things must hold: the model's SHA-256 is the one named in the certificate; the network written in the
    certificate is what Vertex reads from the model, number by number; and the checker, which believes nothing that the
    file claims, proves a positive margin. Exit codes: 0 accepted, 1 rejected, 2 bad input.

    Examples:
        vertex verify model.onnx property.vnnlib --certificate proof.vertex
        vertex check proof.vertex model.onnx
        vertex check proof.vertex model.onnx --json
    """
    for path in (certificate, model):
        if not path.exists():
            raise InvalidValueError(f"{path} does not exist")
    try:
        import flint  # noqa: F401
    except ImportError as error:
        raise InvalidValueError("python-flint is missing: pip install 'vertex-softmax[proof]'") from error
    from vertex_softmax.certificate.checker import check as replay

    verdict = replay(certificate, model)
    reason = verdict.reason or _other_network(certificate, model)
    accepted = verdict.accepted and not reason
    if as_json:
        found = {"accepted": accepted, "reason": reason, "margin": verdict.margin, "seconds": verdict.seconds}
        typer.echo(json.dumps({**found, "statement": verdict.statement if accepted else ""}))
    else:
        typer.echo(f"accepted: margin {verdict.margin:.6g}" if accepted else "rejected")
        took = f"({verdict.seconds:.1f} s)"
        say(f"{verdict.statement} {took}") if accepted else complain(f"{reason} {took}")
    raise typer.Exit(0 if accepted else 1)


def _other_network(certificate: Path, model: Path) -> str:
    """Why the certificate's network is not the model's; empty if it is."""
    from vertex_softmax.certificate.checker.file import read
    from vertex_softmax.certificate.instances import difference
    from vertex_softmax.graph.from_onnx import from_onnx
    from vertex_softmax.graph.simplify import simplify

    try:
        return difference(read(certificate), simplify(from_onnx(model), exact=True))
    except VertexError as error:
        return f"the model cannot be read: {error}"
