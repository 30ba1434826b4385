"""`vertex suite`: make the benchmark that is given away, compare it with published checksums, and ask our verifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vertex_softmax.cli import values
from vertex_softmax.cli.common import group, reporting, say
from vertex_softmax.foundation.errors import InvalidValueError

app = group(
    """Make a benchmark of attention networks with norms for other verifiers.

    Examples:
        vertex suite make out/suite --families max_of_k --quick
        vertex suite check out/suite
        vertex suite verdicts out/suite --seconds 5 --each 1
    """
)
Out = Annotated[Path, typer.Argument(help="The suite's folder.", show_default=False)]


@app.command("make")
@reporting
def make_suite(
    out: Out,
    families: Annotated[
        str | None, typer.Option(help="Only these families, with commas between.", show_default="all")
    ] = None,
    data: Annotated[Path, typer.Option(envvar="VERTEX_DATA", help="Folder with deept/ and mnist/.")] = Path("data"),
    weights: Annotated[
        Path, typer.Option(help="Folder of trained weights; those that are not there are trained and kept.")
    ] = Path("out/suite-weights"),
    quick: Annotated[bool, typer.Option("--quick", help="Two inputs of each family's smallest networks.")] = False,
) -> None:
    """Write ONNX and VNNLIB files, instances.csv, checksums and a README in the layout of VNN-COMP.

    Families: digits, max_of_k, sst, deept. Those whose data is missing are left out, which is said. On one machine the
    same command gives the same bytes. Training the six networks of `sst` takes about an hour on one core.

    Examples:
        vertex suite make out/suite --families max_of_k --quick
    """
    from vertex_lab.suite.family import Request
    from vertex_lab.suite.maker import FAMILIES, make
    from vertex_softmax.runs.demo.training import one_thread

    names = list(FAMILIES) if families is None else [name.strip() for name in families.split(",") if name.strip()]
    with one_thread():
        counts = make(out, names, Request(data, weights, quick, say))
    for name, count in counts.items():
        typer.echo(f"{name}: {count} instances, {out / name / 'instances.csv'}")
    say(f"written: {out / 'README.md'}, {out / 'checksums.sha256'}")


@app.command("check")
@reporting
def check_suite(
    out: Out,
    against: Annotated[
        Path | None, typer.Option(help="A list of SHA-256 sums.", show_default="OUT/checksums.sha256")
    ] = None,
) -> None:
    """Compare a suite's files with a list of checksums; exit code 1 if a file differs, is missing or is too many.

    Examples:
        vertex suite check out/suite
        vertex suite check out/suite --against out/suite/checksums.sha256
    """
    from vertex_lab.suite.maker import CHECKSUMS, differences

    faults = differences(out, out / CHECKSUMS if against is None else against)
    for fault in faults:
        typer.echo(fault)
    if faults:
        raise typer.Exit(1)
    typer.echo("every file is as the list says")


@app.command("verdicts")
@reporting
def suite_verdicts(
    out: Out,
    seconds: Annotated[float, typer.Option(min=0.1, help="For each instance.")] = 20.0,
    each: Annotated[
        int | None, typer.Option(min=1, help="Only so many instances of each network.", show_default="all")
    ] = None,
    families: Annotated[
        str | None, typer.Option(help="Only these families, with commas between.", show_default="all")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time, each on one thread.")] = 1,
    file: Annotated[Path | None, typer.Option(help="Where the JSON goes.", show_default="OUT-verdicts.json")] = None,
) -> None:
    """Ask our verifier about every instance, as `vertex sweep` does, and compare with what is known of the levels.

    Exit code 1 if an answer contradicts its level: sat inside, or unsat outside. An answer that is there is kept: the
    same command goes on where it was stopped.

    Examples:
        vertex suite verdicts out/suite --seconds 5 --each 1
    """
    from vertex_lab.suite.maker import FAMILIES
    from vertex_lab.suite.verdicts import Asked, contradictions, verdicts

    if not (out / "checksums.sha256").is_file():
        raise InvalidValueError(f"{out} has no checksums.sha256: make the suite first, `vertex suite make {out}`")
    values.seconds("--seconds", seconds)
    values.jobs("--jobs", jobs)
    place = out.with_name(f"{out.name}-verdicts.json") if file is None else file
    names = tuple(FAMILIES) if families is None else tuple(name.strip() for name in families.split(","))
    found = verdicts(out, place, Asked(seconds, each, jobs, names), say)
    for name, counts in found["counts"].items():
        typer.echo(f"{name}: {json.dumps(counts)}")
    say(f"written: {place}")
    if wrong := contradictions(found):
        for line in wrong:
            typer.echo(line)
        raise typer.Exit(1)
