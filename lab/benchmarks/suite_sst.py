"""The whole family `sst`, trained, made and answered within minutes: on a machine with a GPU and many cores.

    PYTHONPATH=src:lab python3 lab/benchmarks/suite_sst.py OUT --data shared/data --jobs 15 --seconds 40

Every network is trained in a process of its own, all at once; then every question is made in one, those of the deepest
networks first; then every instance is asked about in one, with one thread and SECONDS. OUT then has
`sst-checksums.sha256`, `sst-verdicts.json` (both for `python -m vertex_lab.suite.merging OUT`), `sst-facts.json` and
the suite itself in OUT/suite, or in SUITE. No command line of Vertex is needed, nor any package beyond torch, numpy,
safetensors, onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from vertex_lab.sentences.data import read_vocabulary
from vertex_lab.sentences.kept import make as make_weights
from vertex_lab.sentences.kept import name_of
from vertex_lab.sentences.model import NORMS, SentenceArchitecture
from vertex_lab.suite import sst
from vertex_lab.suite.family import Network, Request
from vertex_lab.suite.maker import CHECKSUMS, MOST_BYTES, checksums, write_family
from vertex_lab.suite.verdicts import about, contradictions, counts, row_of
from vertex_softmax.foundation.files import read_whole, write_whole
from vertex_softmax.runs.sweep.instances import SweepInstance, read_instances
from vertex_softmax.search.answers import Budget
from vertex_softmax.search.verify_files import described, load_instance, verify_instance

BEGAN = time.perf_counter()


@dataclasses.dataclass(frozen=True)
class Piece:
    """A question of one network: what one process makes."""

    layers: int
    norm: str
    question: int


def said(text: str) -> None:
    """Print at once, with the seconds since the beginning."""
    print(f"{time.perf_counter() - BEGAN:6.1f} s  {text}", flush=True)


def trained(of: SentenceArchitecture, data: Path, weights: Path, device: str) -> str:
    """Train one network and keep its weights, unless they are there."""
    torch.set_num_threads(1)
    if (weights / f"{name_of(of)}.json").exists():
        return f"{name_of(of)} is there"
    lines: list[str] = []
    make_weights(of, data, weights, device, lines.append)
    return lines[-1]


def piece_made(piece: Piece, place: Path, data: Path, weights: Path) -> Path:
    """Write the files of one question into a folder of its own."""
    torch.set_num_threads(1)

    def one(request: Request) -> Iterator[Network]:
        for network in sst.networks(request, [piece.layers], [piece.norm]):
            yield dataclasses.replace(network, questions=network.questions[piece.question : piece.question + 1])

    write_family(place, dataclasses.replace(sst.FAMILY, networks=one), Request(data, weights))
    return place


def joined(places: Sequence[Path], out: Path) -> None:
    """The folders of all questions as one family, in their order; a network that two of them have must be the same."""
    networks: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for place in places:
        facts = json.loads(read_whole(place / "facts.json", MOST_BYTES, "make it again"))
        rows += facts["instances"]
        networks.update(facts["networks"])
        for path in (*place.glob("onnx/*"), *place.glob("vnnlib/*")):
            target = out / path.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and target.read_bytes() != path.read_bytes():
                raise SystemExit(f"{path.name} was made twice, and differs")
            shutil.copyfile(path, target)
    lines = [f"{row['onnx']},{row['vnnlib']},{row['timeout']}\n" for row in rows]
    write_whole(out / "instances.csv", "".join(lines).encode())
    facts_text = json.dumps({"networks": networks, "instances": rows}, indent=1) + "\n"
    write_whole(out / "facts.json", facts_text.encode())


def answered(folder: Path, instance: SweepInstance, seconds: float) -> tuple[str, dict[str, Any]]:
    """What `vertex verify` answers within the time, reading included; start-up of Python and torch is not counted."""
    torch.set_num_threads(1)
    begin = time.perf_counter()
    try:
        loaded = load_instance(folder / instance.model, folder / instance.spec)
        left = seconds - (time.perf_counter() - begin)
        found = described(verify_instance(loaded, Budget(max(left, 0.1))))
    except (RuntimeError, ValueError, MemoryError) as error:
        return instance.spec, {"status": "error", "stage": "", "reason": str(error)[:500], "run_time": 0.0}
    spent = time.perf_counter() - begin
    status = found["status"] if spent <= seconds + 1 else "timeout"
    return instance.spec, {"status": status, "stage": found["stage"], "run_time": spent, "bounds": found["bounds"]}


def together(pool: ProcessPoolExecutor, what: str, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of tasks (function, *arguments), in their order; each is said when it ends."""
    futures: list[Future[Any]] = [pool.submit(task[0], *task[1:]) for task in tasks]
    for done, future in enumerate(as_completed(futures), 1):
        said(f"{what} {done}/{len(futures)}: {str(future.result())[:160]}")
    return [future.result() for future in futures]


def main() -> None:
    """Train, make, ask."""
    parser = argparse.ArgumentParser(description="Train, make and answer the family sst at once.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path("shared/data"), help="folder with deept/sst")
    parser.add_argument("--weights", type=Path, default=Path("out/suite-weights"))
    parser.add_argument("--suite", type=Path, default=None, help="where the suite goes; OUT/suite if not given")
    parser.add_argument("--device", default="cuda", help="of the training")
    parser.add_argument("--jobs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=40.0, help="for each instance")
    parser.add_argument("--layers", type=int, nargs="+", default=list(sst.LAYERS))
    parser.add_argument("--sentences", type=int, default=sst.SENTENCES)
    options = parser.parse_args()
    sst_data = options.data / "deept" / "sst"
    suite = options.suite or options.out / "suite"
    family, parts = suite / "sst", options.out.with_name(f"{options.out.name}-parts")
    options.out.mkdir(parents=True, exist_ok=True)
    size = len(read_vocabulary(sst_data))
    nets = [SentenceArchitecture(size, layers, norm) for layers in options.layers for norm in NORMS]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        together(pool, "trained", [(trained, of, sst_data, options.weights, options.device) for of in reversed(nets)])
        pieces = [Piece(of.layers, of.norm, k) for of in nets for k in range(options.sentences)]
        places = [parts / f"{p.layers}-{p.norm}-{p.question}" for p in pieces]
        tasks = [(piece_made, p, at, options.data, options.weights) for p, at in zip(pieces, places, strict=True)]
        together(pool, "made", tasks[::-1])  # the deepest first
        joined(places, family)
        write_whole(suite / CHECKSUMS, checksums(suite).encode())
        write_whole(options.out / "sst-checksums.sha256", read_whole(suite / CHECKSUMS, MOST_BYTES, "make it again"))
        shutil.copyfile(family / "facts.json", options.out / "sst-facts.json")
        listed = read_instances(family / "instances.csv", options.seconds)
        asked = [(answered, family, instance, options.seconds) for instance in listed]
        lines = dict(together(pool, "answered", asked[::-1]))
    known = json.loads(read_whole(family / "facts.json", MOST_BYTES, "make it again"))["instances"]
    rows = dict(row_of(row, lines.get(row["vnnlib"], {})) for row in known)
    record = {**about(suite, options.seconds), "rows": {"sst": rows}}
    record["counts"] = counts(record["rows"])
    write_whole(options.out / "sst-verdicts.json", (json.dumps(record, indent=1) + "\n").encode())
    said(json.dumps(record["counts"]))
    if wrong := contradictions(record):
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
