"""`vertex verify`: one model, one property, one answer within a time limit.

Exit codes: 0 unsat (the property holds), 10 sat (it does not, and the counterexample was replayed), 3 unknown,
4 timeout, 2 error (bad input, a missing dependency, a file that cannot be written), 130 interrupted, 143 terminated. 1
means a crash, which is not an answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vertex_softmax import __version__
from vertex_softmax.cli import values
from vertex_softmax.cli.common import reporting, say, watched
from vertex_softmax.cli.names import CASCADE, DEVICES, one_of
from vertex_softmax.cli.sharing import (
    ClusterAddress,
    JournalFile,
    Sharing,
    WorkerCount,
    WorkerRunner,
    require_shareable,
    shared_search,
    sharing,
)
from vertex_softmax.foundation.errors import (
    InvalidValueError,
    NotEnoughMemoryError,
    OutOfTimeError,
    VertexError,
    is_out_of_memory,
)
from vertex_softmax.foundation.extras import require_proof_extra
from vertex_softmax.foundation.outputs import Outputs
from vertex_softmax.runs.freed_memory import keep_freed_memory
from vertex_softmax.runs.memory_limit import limit_memory, memory_left
from vertex_softmax.runs.processes import CODES

if TYPE_CHECKING:
    from vertex_softmax.certificate.certificate import Effort
    from vertex_softmax.methods.options import Options
    from vertex_softmax.runs.shared.search import SharedSearch
    from vertex_softmax.search.answers import Answer
    from vertex_softmax.search.verify_files import Instance

GRACE = 0.8
"""Seconds after the timeout at which the answer is given, even if a computation still runs."""
RESERVE = 0.5
"""Seconds of the time limit that are reserved for writing the answer."""
STARTED = time.perf_counter()
STDOUT = Path("-")
"""The value of --json for which the JSON goes to stdout, and nothing else does."""


class _GivenAnswer(NamedTuple):
    """The answer of this process."""

    facts: dict[str, Any]
    """the answer as plain JSON"""
    text: str
    """the answer in VNN-COMP's format"""
    proof: bytes | None = None
    """the certificate, if one was requested and found"""


class _AnswerWriter:
    """Gives the answer of this process exactly once, although the main thread and the watchdog may both try."""

    def __init__(self, result: Path | None, said: dict[str, Any], outputs: Outputs | None = None) -> None:
        self.lock, self.result, self.said, self.outputs = threading.Lock(), result, said, outputs or Outputs()

    def give(self, status: str, text: str, facts: dict[str, Any], files: Mapping[Path, bytes] | None = None) -> None:
        """Write the JSON and the other files, all or none, and print the answer.

        A second call waits for ever, while the first one ends the process.
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
    """Decorate a command so that an error is printed as the answer `error` on stdout, too. No file is written then."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (VertexError, OSError, MemoryError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            _print_error(error, as_json=kwargs.get("as_json") == STDOUT)
            raise

    return wrapped


def _print_error(error: BaseException, *, as_json: bool) -> None:
    """Print the answer `error` on stdout, on one line."""
    text = json.dumps({"status": "error", "reason": str(error)}) if as_json else "error"
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# More than six parameters: the arguments and options of the command.
@reporting
@_competing
def verify(
    model: Annotated[
        str,
        typer.Argument(
            help="ONNX file, or .onnx.gz; or package.module:function or FILE.py:function, a function without arguments "
            "that returns a torch.nn.Module. Importing it runs its code."
        ),
    ],
    spec: Annotated[Path, typer.Argument(help="VNNLIB file, or .vnnlib.gz.")],
    timeout: Annotated[float, typer.Option(help="Time limit in seconds, from the start of this process.")] = 100.0,
    method: Annotated[
        str,
        typer.Option(
            autocompletion=one_of(CASCADE),
            help="How far the cascade goes: attack, crown, joint or bab; or one method: ibp, alpha-crown, ...",
        ),
    ] = "bab",
    device: Annotated[str, typer.Option(autocompletion=one_of(DEVICES), help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Number of threads; by default the number of cores.")] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            help="Memory limit of this process in GiB; what may need more is refused before it begins.",
            show_default="no limit",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the attack.")] = 0,
    as_json: Annotated[
        Path | None,
        typer.Option(
            "--json", help="File for the answer as JSON, not written for error; with - stdout has the JSON alone."
        ),
    ] = None,
    counterexample: Annotated[Path | None, typer.Option(help="File for a counterexample.")] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(help="File for a proof that `vertex check` accepts; without a proof the answer is not unsat."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="File .safetensors that is loaded into a Python model; all names must fit.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="The shape of one input of a Python model, such as 1,28,28.", show_default="of the property"),
    ] = None,
    workers: WorkerCount = None,
    runner: WorkerRunner = "local",
    address: ClusterAddress = None,
    journal: JournalFile = None,
) -> None:
    """Prove a property of a model, or find a counterexample that the model itself confirms (ONNX: in onnxruntime).

    Prints unsat, sat with the counterexample, unknown, timeout, or error, in the format of VNN-COMP; the reason goes to
    stderr. Exit codes: 0 unsat, 10 sat, 3 unknown, 4 timeout, 2 error, 130 and 143 if it was interrupted. The input set
    is what the property says, boxes of numbers: for balls in other norms, and for words, see `vertex certify --help`.

    Examples:
        vertex verify model.onnx property.vnnlib --timeout 100
        vertex verify model.onnx property.vnnlib --json answer.json
        vertex verify model.onnx property.vnnlib --json -
        vertex verify model.onnx property.vnnlib --certificate proof.vertex
        vertex verify model.onnx property.vnnlib --workers 2 --journal tree
        vertex verify model.py:net property.vnnlib --shape 2
    """
    from vertex_softmax.runs.code_names import is_python_model, source_file

    code = is_python_model(model)
    read = [path for path in (source_file(model) if code else values.path("MODEL", model), spec, weights) if path]
    outputs = _claimed(as_json, counterexample, certificate, read)
    shared = sharing(workers, runner, address, journal)
    values.seconds("--timeout", timeout)
    values.seed("--seed", seed)
    values.threads("--threads", threads)
    values.gib("--memory", memory)
    if method not in CASCADE:
        raise InvalidValueError(f"--method is {method!r}; choose one of {', '.join(CASCADE)}")
    if not code and (weights is not None or shape is not None):
        raise InvalidValueError("--weights and --shape are for Python models; an ONNX file has both")
    if code and certificate is not None:
        raise InvalidValueError(
            "--certificate is for ONNX files, which `vertex check` reads; a Python model gets one from "
            "vertex_softmax.certify(…, certificate=True)"
        )
    if certificate is not None:
        require_proof_extra()
    if shared is not None:
        require_shareable(method, code=code, proved=certificate is not None)
    if journal is not None:
        outputs.claim(journal)
    question = {"model": model, "spec": str(spec), "method": method, "timeout": timeout}
    out = _AnswerWriter(as_json, question, outputs)
    request = _Request(
        model=model,
        spec=spec,
        timeout=timeout,
        method=method,
        device=device,
        threads=threads or (1 if shared is not None else None),
        memory=memory,
        seed=seed,
        shared=shared,
        proved=certificate is not None,
        code=code,
        weights=weights,
        shape=None if shape is None else values.shape("--shape", shape),
    )
    with _terminable(), _watchdog(timeout - _since_start(), out):
        found = _answer(request, outputs)
        facts, files = found.facts, dict[Path, bytes]()
        status = facts.pop("status")
        if counterexample is not None and status == "sat":
            files[counterexample] = (found.text.partition("\n")[2] + "\n").encode()
        if certificate is not None and found.proof is not None:
            files[certificate] = found.proof
        out.give(status, found.text, facts, files)
    say(f"{status}: {facts['reason']} ({facts['seconds']['total']:.1f} s)")
    if journal is not None and facts.get("parts", {}).get("open"):
        say(f"{journal} has {facts['parts']['closed']} closed parts; the same command goes on from there")
    raise typer.Exit(CODES[status])


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What `vertex verify` is asked: its arguments and options."""

    model: str
    spec: Path
    timeout: float
    method: str
    device: str
    threads: int | None
    memory: float | None
    """GiB"""
    seed: int
    proved: bool
    """whether the answer may be unsat only with a proof"""
    code: bool
    """whether the model is a Python function that returns a module"""
    weights: Path | None
    shape: tuple[int, ...] | None
    shared: Sharing | None
    """how branch and bound is shared; None: it is done in this process"""


def _answer(request: _Request, outputs: Outputs) -> _GivenAnswer:
    """The answer to a request. The model's external data files are added to the inputs that `outputs` protects."""
    import torch

    from vertex_softmax.graph.from_onnx.file import OnnxFile, packages
    from vertex_softmax.search.answers import Budget
    from vertex_softmax.search.replay import counterexample_text
    from vertex_softmax.search.verify_files import described, load_instance, verify_instance

    timeout, device = request.timeout, request.device
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    if request.memory is not None:
        packages()  # imported before the limit is set, since it counts
        if request.proved:
            import vertex_softmax.certificate.instances  # noqa: F401
        limit_memory(request.memory)
    else:
        keep_freed_memory()
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise InvalidValueError(
            f"--device is {device!r}; cpu is always available, and cuda if torch finds a GPU on this machine"
        )
    begin, spent = time.perf_counter(), _since_start()  # now that all is imported, which takes seconds
    try:
        if request.code:
            from vertex_softmax.runs.python_models import python_model
            from vertex_softmax.runs.verify_models import load_module_instance

            module = python_model(request.model, request.weights)
            instance = load_module_instance(module, request.spec, request.shape)
        else:
            file = OnnxFile.read(Path(request.model))
            outputs.reads(file.external_files)
            instance = load_instance(file, request.spec)
    except MemoryError as error:
        raise InvalidValueError("there is not enough memory to read the files; give more by --memory") from error
    if request.proved:
        from vertex_softmax.certificate.lowering import require_lowerable

        require_lowerable(instance.graph)
    loading = time.perf_counter() - begin
    left = timeout - spent - loading - min(RESERVE, 0.05 * timeout)
    if left <= 0:
        facts: dict[str, Any] = {"status": "timeout", "reason": "reading the files took all the time", "seconds": {}}
        return _GivenAnswer({**facts, "seconds": {"loading": loading, "total": spent + loading}}, "timeout")

    def report(stage: str, text: str) -> None:
        if watched():
            say(f"{time.perf_counter() - begin:6.1f} s  {stage}: {text}")

    options = _options(request)
    with _branching(request, options, instance, outputs, report) as shared:
        answer = verify_instance(
            instance,
            Budget(left),
            method=request.method,
            options=options,
            device=device,
            seed=request.seed,
            report=report,
            branching=shared,
            recorded=request.proved,
        )
    facts, proof = described(answer), None
    if shared is not None:
        facts["parts"] = shared.parts
    if request.proved and facts["status"] == "unsat":
        from vertex_softmax.certificate.certificate import Effort

        say_proof = functools.partial(report, "proof")
        effort = Effort(deadline=begin + loading + left, memory=options.memory, lean=True)
        more, proof = _proved(instance, answer, Path(request.model), effort, say_proof)
        facts.update(more)
    facts["seconds"] = {"starting": spent, "loading": loading, **facts["seconds"]}
    facts["seconds"]["total"] = time.perf_counter() - begin + spent
    facts["model_sha256"] = instance.model_hash
    text = str(facts["status"])
    if answer.counterexample is not None:
        text += "\n" + counterexample_text(answer.counterexample, instance.prop)
    return _GivenAnswer(facts, text, proof)


def _options(request: _Request) -> Options:
    """The options of the bounds, with what the memory limit leaves now that the files are read.

    On a GPU the numbers are in the GPU's memory, which the limit of the process does not count.
    """
    from vertex_softmax.bounds.memory import Memory
    from vertex_softmax.methods.options import Options

    options = Options()
    if request.shared is not None:
        from vertex_softmax.runs.shared.task import SHARED

        options = SHARED
    if request.memory is None or request.device != "cpu":
        return options
    return dataclasses.replace(options, memory=Memory(total=memory_left()))


def _branching(
    request: _Request, options: Options, instance: Instance, outputs: Outputs, report: Callable[[str, str], None]
) -> contextlib.AbstractContextManager[SharedSearch | None]:
    """Who does branch and bound in place of this process; None if nobody does."""
    if request.shared is None:
        return contextlib.nullcontext(None)
    each = {"device": request.device, "threads": request.threads, "memory": request.memory, "options": options}
    files = (request.model, request.spec)
    return shared_search(instance, files, request.shared, each, outputs, lambda text: report("bab", text))


def _proved(
    instance: Instance, answer: Answer, model: Path, effort: Effort, report: Callable[[str], None]
) -> tuple[dict[str, Any], bytes | None]:
    """Try to prove an unsat: facts about the proof and its bytes; or, if there is none, the answer instead of unsat."""
    from vertex_softmax.bounds.branch_and_bound import Search
    from vertex_softmax.certificate.instances import prove_instance

    left = 0.0 if effort.deadline is None else max(0.0, effort.deadline - time.perf_counter())
    effort = dataclasses.replace(effort, search=Search(seconds=left / 2))
    try:
        proof = prove_instance(instance, model.name, effort, report, answer.searched)
    except OutOfTimeError:
        reason = "unsat in floating point; the time was over before there was a proof"
        return {"status": "timeout", "reason": reason}, None
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        refused = isinstance(error, NotEnoughMemoryError)
        why = str(error) if refused else "there was not enough memory for a proof"
        return {"status": "unknown", "reason": f"unsat in floating point, and not proved: {why}"}, None
    if proof.certificate is None:
        said = f"unknown (proof margin {proof.margin:.3g}): unsat in floating point, and not proved"
        said += f"; {proof.reason}" if proof.reason else ""
        return {"status": "unknown", "reason": said, "proof_margin": _plain(proof.margin)}, None
    data = proof.certificate.data
    facts = {"proof_margin": proof.certificate.margin, "proof_seconds": proof.seconds, "proof_bytes": len(data)}
    return facts, data


@contextlib.contextmanager
def _watchdog(seconds: float, out: _AnswerWriter) -> Iterator[None]:
    """Answer `timeout` and end the process when the time is over, whatever is still being computed."""

    def give_up() -> None:
        code = "timeout"
        try:
            out.give("timeout", "timeout", {"reason": "the time was over", "seconds": {"total": _since_start()}})
        except (VertexError, OSError) as error:
            code = "error"
            _print_error(error, as_json=False)
            sys.stderr.write(f"error: the time was over, and {error}\n")
        finally:
            os._exit(CODES[code])

    timer = threading.Timer(max(0.0, seconds) + GRACE, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """In this context, SIGTERM ends the process in the same way as an interrupt, with exit code 143."""

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
    """Seconds since this process started, if the system provides it; else since this module was imported."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.perf_counter() - STARTED


def _claimed(
    as_json: Path | None, counterexample: Path | None, certificate: Path | None, inputs: list[Path]
) -> Outputs:
    """The output files; raises before any work if one cannot be written, or two or an input are the same file."""
    outputs = Outputs(inputs)
    for option, path in (("--json", as_json), ("--counterexample", counterexample), ("--certificate", certificate)):
        if path is None or (option == "--json" and path == STDOUT):
            continue
        if path == STDOUT:
            raise InvalidValueError(f"{option} is -, which means stdout for --json only: give the name of a file")
        outputs.claim(path)
        folder = path.parent
        if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise InvalidValueError(f"{path} cannot be written: choose a file in a folder that exists and is writable")
    return outputs


def _plain(x: float) -> float | None:
    return x if math.isfinite(x) else None
