"""Every parser of files that nobody vouches for, as a function of one file's bytes, and what it may answer.

Invariant: `judged` returns None if the parser returned, or raised a `VertexError` that is no `InternalError` and does
not come of memory that could not be had; anything else is a `Find`. The stated limits are made small first (`small`),
so that what escapes a limit is told apart from what a limit allows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from vertex_lab.experiments import summary
from vertex_lab.zoo.datasets import dataset
from vertex_softmax.certificate import checker
from vertex_softmax.certificate.checker import network, passes, proof
from vertex_softmax.foundation.errors import InternalError, InvalidValueError, VertexError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx import replay
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.runs import run as runs
from vertex_softmax.runs.accuracy import read_accuracy
from vertex_softmax.runs.demo import training
from vertex_softmax.runs.journal import Journal
from vertex_softmax.runs.report import accuracy_page, run_page, sweep_page, templates
from vertex_softmax.runs.report.words import TokenReading
from vertex_softmax.runs.subject import read_inputs
from vertex_softmax.runs.sweep import sweep
from vertex_softmax.runs.sweep.instances import SweepInstance, read_instances
from vertex_softmax.runs.sweep.runner import Settings, digests
from vertex_softmax.runs.vocabulary import read_vocabulary
from vertex_softmax.search.replay import Replay
from vertex_softmax.specs import normal_form
from vertex_softmax.specs import vnnlib2 as specs2
from vertex_softmax.specs.vnnlib import read_vnnlib

STARVED = ("alloc", "not enough memory", "out of memory", "memoryerror")
"""Words of errors that come of memory that could not be had."""
SOURCE = "the sources that wrote the journal"
TABLE = "bootstrap"
"""The experiment whose table is changed."""
CUT = 4
"""Bytes that say how long the first part of an input of two parts is."""


@dataclasses.dataclass(frozen=True)
class Find:
    """What a parser did that it must not: `key` is the same for the same fault."""

    key: str
    text: str


Parser = Callable[[bytes, Path], object]
PARSERS: dict[str, Parser] = {}


def parser(function: Parser) -> Parser:
    """Register a parser by the name of its function."""
    PARSERS[function.__name__.removesuffix("_").replace("_", "-")] = function
    return function


def judged(name: str, data: bytes, folder: Path) -> Find | None:
    """What was wrong with the parser's answer to these bytes; `folder` is empty, or as it was left."""
    try:
        PARSERS[name](data, folder)
    except VertexError as error:
        if isinstance(error, InternalError) or any(word in str(error).lower() for word in STARVED):
            return found(error)
    except Exception as error:  # noqa: BLE001 (whatever it is: it is the find)
        return found(error)
    return None


def found(error: BaseException) -> Find:
    """Named by its type and the last place in Vertex that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "vertex_softmax" in frame.filename] or list(frames)
    place = f"{Path(ours[-1].filename).stem}-{ours[-1].lineno}" if ours else "nowhere"
    text = "".join(traceback.format_exception(error))
    return Find(f"{type(error).__name__}-{place}", text[-8000:])


@contextlib.contextmanager
def small() -> Iterator[None]:
    """Inside, the limits on what a small file may ask for are a thousandth or so of what they are; templates stay."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(templates, "named", functools.cache(templates.named)))
        for module, name, limit in (
            (build, "LARGEST", 1 << 20),
            (replay, "POINTS", 1),
            (network, "MOST_NUMBERS", 1 << 16),
            (passes, "MOST_COLUMNS", 1 << 18),
            (proof, "MOST_COLUMNS", 1 << 18),
            (network, "MOST_WORK", 1 << 32),
            (normal_form, "NUMBERS", 1 << 18),
            (specs2, "NUMBERS", 1 << 18),
            (normal_form, "DISJUNCTS", 1 << 12),
            (normal_form, "LITERALS", 1 << 16),
            (training, "MOST_NUMBERS", 1 << 20),
        ):
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, limit))
        yield


def parts(data: bytes) -> tuple[bytes, bytes]:
    """An input of two files."""
    length = int.from_bytes(data[:CUT], "little")
    return data[CUT : CUT + length], data[CUT + length :]


def joined(first: bytes, second: bytes) -> bytes:
    """Two files as one input."""
    return len(first).to_bytes(CUT, "little") + first + second


# Models, properties, certificates ------------------------------------------------------------------------------------


@parser
def onnx(data: bytes, folder: Path) -> None:
    """As `vertex verify` reads it: with numbers beside it, the replay, the simplified graph, the sweep's digest."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    beside = folder / "numbers.bin"
    if not beside.exists():
        beside.write_bytes(bytes(range(256)) * 4)
    digests(SweepInstance("model", "spec", 1.0, path, beside))
    graph = from_onnx(path)
    simplify(graph)
    simplify(graph)
    Replay(path).output(torch.zeros(graph.input.shape).numpy())


@parser
def vnnlib(data: bytes, _folder: Path) -> None:
    """Both versions; the word that begins a file says which."""
    read_vnnlib(data)


@parser
def vnnlib2(data: bytes, _folder: Path) -> None:
    """With what tells version 2 put before it where it is missing."""
    start = b"(vnnlib-version <2.0>)\n"
    read_vnnlib(data if data.startswith(start[:15]) else start + data)


@parser
def certificate(data: bytes, _folder: Path) -> None:
    """The checker has no errors of its own but a verdict."""
    verdict = checker.check(data)
    if any(word in verdict.reason.lower() for word in STARVED):
        raise MemoryError(verdict.reason)


# Data ----------------------------------------------------------------------------------------------------------------


@parser
def idx(data: bytes, folder: Path) -> None:
    """Images and labels of MNIST's test files, plain or gzip by what they begin with."""
    place = folder / "mnist"
    place.mkdir(exist_ok=True)
    for name, content in zip(("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"), parts(data), strict=True):
        packed = content[:2] == b"\x1f\x8b"
        (place / f"{name}.gz").unlink(missing_ok=True)
        (place / name).unlink(missing_ok=True)
        (place / (f"{name}.gz" if packed else name)).write_bytes(content)
    dataset("mnist", folder)


@parser
def cifar(data: bytes, folder: Path) -> None:
    """The archive, or one file of it."""
    place = folder / "cifar10"
    place.mkdir(exist_ok=True)
    packed = data[:2] == b"\x1f\x8b"
    for name in ("cifar-10-binary.tar.gz", "test_batch.bin"):
        (place / name).unlink(missing_ok=True)
    (place / ("cifar-10-binary.tar.gz" if packed else "test_batch.bin")).write_bytes(data)
    dataset("cifar10-gray", folder)


@parser
def npz(data: bytes, folder: Path) -> None:
    """Inputs and labels as arrays of numpy."""
    (folder / "inputs.npz").write_bytes(data)
    read_inputs(str(folder / "inputs.npz"))


@parser
def safetensors(data: bytes, folder: Path) -> None:
    """Inputs and labels as safetensors."""
    (folder / "inputs.safetensors").write_bytes(data)
    read_inputs(str(folder / "inputs.safetensors"))


@parser
def weights(data: bytes, folder: Path) -> None:
    """A model of the zoo: JSON and weights; the hash in the JSON is made right, whoever writes one file writes both."""
    text, numbers = parts(data)
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(text)
        if isinstance(record, dict) and "sha256" in record:
            record["sha256"] = hashlib.sha256(numbers).hexdigest()
            text = json.dumps(record).encode(errors="replace")
    (folder / "model.json").write_bytes(text)
    (folder / "model.safetensors").write_bytes(numbers)
    model, _ = training.load(folder / "model")
    of = model.architecture
    with torch.no_grad():
        model(torch.zeros(1, of.channels, of.image, of.image, dtype=next(model.parameters()).dtype))


# What Vertex itself wrote, and somebody may have changed --------------------------------------------------------------


@parser
def journal(data: bytes, folder: Path) -> None:
    """The trials of an experiment, read twice: the first time cuts off what a killed run was writing."""
    path = folder / "journal.jsonl"
    path.write_bytes(data)
    for _ in range(2):
        with Journal(path, SOURCE) as opened:
            for trial in opened.known.values():
                trial.get("found")


@parser
def sweep_(data: bytes, folder: Path) -> None:
    """A sweep that goes on from a journal, and the page of its folder. (first part: journal; second: results.csv)"""
    lines, results = parts(data)
    (folder / "journal.jsonl").write_bytes(lines)
    model = folder / "model.onnx"
    model.write_bytes(b"model")
    instance = SweepInstance("model.onnx", "spec.vnnlib", 60.0, model, model, "made")
    with mock.patch.object(sweep, "source", return_value=SOURCE):
        with Journal(folder / "journal.jsonl", SOURCE, sweep._kept) as opened:
            state, _ = sweep._resumed(sweep.State([instance], Settings(jobs=1, threads=1)), opened, folder)
        sweep._save(state, folder)
    (folder / "results.csv").write_bytes(results)
    (folder / "summary.json").unlink(missing_ok=True)
    sweep_page.page(folder)


@parser
def sweep_summary(data: bytes, folder: Path) -> None:
    """summary.json of a sweep, for its page."""
    (folder / "summary.json").write_bytes(data)
    (folder / "journal.jsonl").write_bytes(b"")
    (folder / "results.csv").write_bytes(b"")
    sweep_page.page(folder)


@parser
def run(data: bytes, folder: Path) -> None:
    """run.json, and its page."""
    (folder / "run.json").write_bytes(data)
    run_page.page(runs.read(folder))


@parser
def accuracy(data: bytes, folder: Path) -> None:
    """accuracy.json, and its page."""
    (folder / "accuracy.json").write_bytes(data)
    accuracy_page.page(read_accuracy(folder))


@parser
def vocabulary(data: bytes, folder: Path) -> None:
    """The texts of token ids, as a tokenizer's JSON and as lines."""
    for name in ("vocab.json", "vocab.txt"):
        (folder / name).write_bytes(data)
        with contextlib.suppress(InvalidValueError):
            TokenReading(read_vocabulary(folder / name).values()).shown(["a", "b"])


@parser
def instances(data: bytes, folder: Path) -> None:
    """A list of instances: a model and a property are there."""
    (folder / "instances.csv").write_bytes(data)
    for name in ("model.onnx", "property.vnnlib.gz"):
        (folder / name).touch()
    read_instances(folder / "instances.csv")


@parser
def table(data: bytes, folder: Path) -> None:
    """A table of `vertex reproduce` and its picture, for the summary page."""
    text, picture = parts(data)
    (folder / f"{TABLE}.json").write_bytes(text)
    (folder / f"{TABLE}.svg").write_bytes(picture)
    summary.write(folder)


def unzipped(data: bytes, most: int = 1 << 20) -> bytes:
    """What gzip data holds, at most so much; the data itself if it is none."""
    with contextlib.suppress(Exception), gzip.open(io.BytesIO(data)) as stream:
        return stream.read(most)
    return data


def replayed(name: str, data: bytes, folder: Path) -> Any:
    """`judged` with small limits, for one input alone."""
    with small():
        return judged(name, data, folder)
