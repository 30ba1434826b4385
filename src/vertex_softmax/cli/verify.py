"""`vertex verify`: one model, one property, one answer within a time.

Exit codes: 0 unsat (the property holds), 10 sat (it does not, and the counterexample was replayed), 3 unknown,
4 timeout, 2 error (bad input, a missing dependency, a file that cannot be written), 130 interrupted, 143 terminated. 1
is left to a crash, which is no answer.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple

import typer

from vertex_softmax import __version__
from vertex_softmax.cli import values as cli_values
from vertex_softmax.cli.common import reporting, say, watched
from vertex_softmax.cli.names import CASCADE, DEVICES, one_of
from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError, VertexError
from vertex_softmax.foundation.outputs import Outputs
from vertex_softmax.runs.processes import CODES

GRACE = 0.8
"""Seconds after the timeout until the answer is given without waiting for whatever is still being computed."""
SPARE = 1 << 28
"""Bytes beyond those in use before anything is read that --memory has to leave."""
FILES = 1 << 25
"""Bytes of files, such as libraries, that may yet come into memory; the system's limit does not count them."""
RESERVE = 0.5
"""Seconds of the budget that are kept for reading answers out and writing files."""
STARTED = time.perf_counter()
STDOUT = Path("-")
"""As the place of the JSON: it is then all that stdout gets."""


class _Found(NamedTuple):
    """An answer: as plain JSON, as the competition prints it, and the proof if one was asked for and made."""

    facts: dict[str, Any]
    text: str
    proof: bytes | None = None


class _Out:
    """The one answer of this process: given once, by whoever is first."""

    def __init__(self, result: Path | None, said: dict[str, Any], outputs: Outputs | None = None) -> None:
        self.lock, self.result, self.said, self.outputs = threading.Lock(), result, said, outputs or Outputs()

    def give(self, status: str, text: str, facts: dict[str, Any], files: Mapping[Path, bytes] | None = None) -> None:
        """Write the JSON and the other files, all or none, and print the answer.

        A second call waits for ever: the process is about to end.
        """
        self.lock.acquire()
        contents = dict(files or {})
        if self.result is not None:
            content = {"status": status, **facts, **self.said, "version": __version__}
            whole = json.dumps(content, allow_nan=False, indent=1)
            if self.result == STDOUT:
                text = whole
            else:
                contents[self.result] = whole.encode(errors="surrogateescape")
        try:
            self.outputs.write(contents)
        except OSError as error:
            named = " or ".join(map(str, contents))
            raise InvalidValueError(f"{named} cannot be written: {error.strerror}") from error
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _competing(command: Callable[..., None]) -> Callable[..., None]:
    """An error is an answer too: `error` on stdout, and why on stderr. No file is written then."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (VertexError, OSError, MemoryError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            _say_error(error, as_json=kwargs.get("as_json") == STDOUT)
            raise

    return wrapped


def _say_error(error: BaseException, *, as_json: bool) -> None:
    """On stdout, in one line."""
    text = json.dumps({"status": "error", "reason": str(error)}) if as_json else "error"
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@reporting
@_competing
def verify(
    model: Annotated[Path, typer.Argument(help="ONNX file, or .onnx.gz.")],
    spec: Annotated[Path, typer.Argument(help="VNNLIB file, or .vnnlib.gz.")],
    timeout: Annotated[float, typer.Option(help="Seconds in all, from the start of this process.")] = 100.0,
    method: Annotated[
        str,
        typer.Option(
            autocompletion=one_of(CASCADE),
            help="How far to go: attack, crown, joint or bab; or one method: ibp, alpha-crown, ...",
        ),
    ] = "bab",
    device: Annotated[str, typer.Option(autocompletion=one_of(DEVICES), help="cpu, or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads; as many as there are cores if not given.")] = None,
    memory: Annotated[float | None, typer.Option(help="GiB that this process may use; no limit if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Of the attack.")] = 0,
    as_json: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Where the answer goes as JSON, unless it is error; - is stdout, and nothing else there."
        ),
    ] = None,
    counterexample: Annotated[Path | None, typer.Option(help="Where a counterexample goes.")] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Where a proof goes that `vertex check` accepts; unsat is said only with it.")
    ] = None,
) -> None:
    """Prove a property of an ONNX model, or find a counterexample that onnxruntime confirms.

    Prints unsat, sat and the counterexample, unknown, timeout, or error, as the competition has it; the reason goes to
    stderr. Exit codes: 0 unsat, 10 sat, 3 unknown, 4 timeout, 2 error, 130 and 143 if it was interrupted.

    Examples:
        vertex verify model.onnx property.vnnlib --timeout 100
        vertex verify model.onnx property.vnnlib --json answer.json
        vertex verify model.onnx property.vnnlib --json -
        vertex verify model.onnx property.vnnlib --certificate proof.vertex
    """
    outputs = _claimed(as_json, counterexample, certificate, [model, spec])
    cli_values.seconds("--timeout", timeout)
    cli_values.seed("--seed", seed)
    cli_values.threads("--threads", threads)
    cli_values.gib("--memory", memory)
    if method not in CASCADE:
        raise InvalidValueError(f"--method is {method!r}; choose one of {', '.join(CASCADE)}")
    out = _Out(as_json, {"model": str(model), "spec": str(spec), "method": method, "timeout": timeout}, outputs)
    with _terminable(), _watchdog(timeout - _since_start(), out):
        found = _answer(model, spec, timeout, method, device, threads, memory, seed, certificate is not None, outputs)
        facts, files = found.facts, dict[Path, bytes]()
        status = facts.pop("status")
        if counterexample is not None and status == "sat":
            files[counterexample] = (found.text.partition("\n")[2] + "\n").encode()
        if certificate is not None and found.proof is not None:
            files[certificate] = found.proof
        out.give(status, found.text, facts, files)
    say(f"{status}: {facts['reason']} ({facts['seconds']['total']:.1f} s)")
    raise typer.Exit(CODES[status])


def _answer(
    model: Path,
    spec: Path,
    timeout: float,
    method: str,
    device: str,
    threads: int | None,
    memory: float | None,
    seed: int,
    proved: bool,
    outputs: Outputs,
) -> _Found:
    """The answer; `proved`: unsat is said only with a proof. The files that the model keeps numbers in are inputs."""
    import torch

    from vertex_softmax.graph.from_onnx.file import OnnxFile, packages
    from vertex_softmax.search.cascade import Budget
    from vertex_softmax.search.replay import counterexample_text
    from vertex_softmax.search.verify_files import described, load_instance, verify_instance

    if threads is not None:
        torch.set_num_threads(threads)
    if memory is not None:
        packages()  # what is imported counts, but has to be there
        _limit(memory)
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise InvalidValueError(f"--device is {device!r}; cpu is there, and cuda where torch sees a GPU")
    begin, spent = time.perf_counter(), _since_start()  # now that all is imported, which takes seconds
    try:
        file = OnnxFile.read(model)
        outputs.reads(file.external_files)
        instance = load_instance(file, spec)
    except MemoryError as error:
        raise InvalidValueError("there is not enough memory to read the files; give more by --memory") from error
    loading = time.perf_counter() - begin
    left = timeout - spent - loading - min(RESERVE, 0.05 * timeout)
    if left <= 0:
        facts: dict[str, Any] = {"status": "timeout", "reason": "reading the files took all of it", "seconds": {}}
        return _Found({**facts, "seconds": {"loading": loading, "total": spent + loading}}, "timeout")

    def report(stage: str, text: str) -> None:
        if watched():
            say(f"{time.perf_counter() - begin:6.1f} s  {stage}: {text}")

    answer = verify_instance(instance, Budget(left), method=method, device=device, seed=seed, report=report)
    facts, proof = described(answer), None
    if proved and facts["status"] == "unsat":
        ends = begin + loading + left
        more, proof = _proved(instance, model, ends, lambda text: report("proof", text))
        facts.update(more)
    facts["seconds"] = {"starting": spent, "loading": loading, **facts["seconds"]}
    facts["seconds"]["total"] = time.perf_counter() - begin + spent
    facts["model_sha256"] = instance.model_hash
    text = str(facts["status"])
    if answer.counterexample is not None:
        text += "\n" + counterexample_text(answer.counterexample)
    return _Found(facts, text, proof)


def _proved(
    instance: Any, model: Path, deadline: float, report: Callable[[str], None]
) -> tuple[dict[str, Any], bytes | None]:
    """What becomes of an unsat for which a proof is asked: the same with the proof, or no answer."""
    from vertex_softmax.bounds.branch_and_bound import Search
    from vertex_softmax.certificate.certificate import Effort
    from vertex_softmax.certificate.instances import prove_instance

    left = max(0.0, deadline - time.perf_counter())
    search = Search(seconds=left / 2)
    try:
        proof = prove_instance(instance, model.name, Effort(search=search, deadline=deadline), report)
    except OutOfTimeError:
        reason = "unsat in floating point; the time was over before there was a proof"
        return {"status": "timeout", "reason": reason}, None
    if proof.certificate is None:
        said = f"unknown (proof margin {proof.margin:.3g}): unsat in floating point, and not proved"
        said += f"; {proof.reason}" if proof.reason else ""
        return {"status": "unknown", "reason": said, "proof_margin": _plain(proof.margin)}, None
    data = proof.certificate.data
    facts = {"proof_margin": proof.certificate.margin, "proof_seconds": proof.seconds, "proof_bytes": len(data)}
    return facts, data


@contextlib.contextmanager
def _watchdog(seconds: float, out: _Out) -> Iterator[None]:
    """Say timeout when the time is over, whatever is still under way then."""

    def bark() -> None:
        code = "timeout"
        try:
            out.give("timeout", "timeout", {"reason": "the time was over", "seconds": {"total": _since_start()}})
        except (VertexError, OSError) as error:
            code = "error"
            _say_error(error, as_json=False)
            sys.stderr.write(f"error: the time was over, and {error}\n")
        finally:
            os._exit(CODES[code])

    timer = threading.Timer(max(0.0, seconds) + GRACE, bark)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the process as an interrupt does, with its own exit code."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(143)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _since_start() -> float:
    """Seconds since this process began, where the system tells; else since this module was read."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.perf_counter() - STARTED


def _limit(gib: float) -> None:
    """No more memory than this for the process; what asks for more fails."""
    try:
        import resource
    except ImportError as error:
        raise InvalidValueError("--memory is not there on this system") from error
    files = _in_use("RssFile:") + FILES
    most, used = int(gib * 2**30) - files, _in_use("VmData:")
    if most < used + SPARE:
        raise InvalidValueError(
            f"--memory is {gib:g} GiB, and {(used + files) / 2**30:.2f} are in use before anything is read: give "
            f"{(used + files + SPARE) / 2**30 + 0.005:.2f} or more"
        )
    _, ceiling = resource.getrlimit(resource.RLIMIT_DATA)
    if ceiling == resource.RLIM_INFINITY or most <= ceiling:  # else the system's own limit is the smaller one
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _in_use(name: str) -> int:
    """Bytes of a line of the process's status, where the system tells; else 0."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def _claimed(
    as_json: Path | None, counterexample: Path | None, certificate: Path | None, inputs: list[Path]
) -> Outputs:
    """Fail now rather than after the work: each output has a place of its own, and none is a file that is read."""
    outputs = Outputs(inputs)
    for option, path in (("--json", as_json), ("--counterexample", counterexample), ("--certificate", certificate)):
        if path is None or (option == "--json" and path == STDOUT):
            continue
        if path == STDOUT:
            raise InvalidValueError(f"{option} is -, which only --json takes for stdout: give the place of a file")
        outputs.claim(path)
        folder = path.parent
        if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise InvalidValueError(f"{path} cannot be written: choose a file in a folder that is there and writable")
    return outputs


def _plain(x: float) -> float | None:
    return x if math.isfinite(x) else None
