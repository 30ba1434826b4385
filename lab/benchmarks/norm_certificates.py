"""Do networks with norms have certificates where `crown` verifies? A few questions of each network, each at its radius.

python lab/benchmarks/norm_certificates.py [--only TEXT ...] [--questions 2] [--share .97] [--jobs 1] [--out FILE]
    [--saved] [--sst FOLDER] [--models FOLDER] [--language FOLDER] [--digits FOLDER]

Networks: sentences (sst.py: 3, 6 and 12 layers, with and without variance; the saved rows of fewest tokens), digits
(norms.py; the first images), stories260K and Sapiens (language.py, 8 tokens). ε is --share of the radius that the
benchmark saved; for the last two see STORIES and SAPIENS. For each question: the bound of `crown`, the margin that is
proved, and the seconds of crown, of the proof and of its check; or why there is none. With --saved crown is not asked
where its bound at the radius is saved: at a smaller ε it is no lower. Writes after every question; questions that are
in the file already are not asked again. One thread for each job.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import language
import norms
import numpy as np
import sst
import torch
from torch import Tensor

from vertex_lab.sentences.data import read_sentences, read_vocabulary
from vertex_lab.sentences.model import NORMS, SentenceArchitecture
from vertex_lab.zoo.datasets import digits
from vertex_softmax import TokenBall, __version__
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.certificate.certificate import CertificatePart, Effort, prove
from vertex_softmax.certificate.prove import ForbiddenCase
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.sets import LinfBall
from vertex_softmax.sets.loading import read

RUNS = Path(__file__).parent / "runs"
STORIES, SAPIENS = 0.0128, 0.0037
"""ε at which `crown` verifies stories260K and Sapiens; their radii are .0136 and .0040."""


class NormQuestion(NamedTuple):
    """One box of inputs and a label; `asked` gives the network, the set, and the label."""

    network: str
    name: str
    eps: float
    saved: float | None
    """the bound of crown at a radius that is not below eps; None: ask"""
    asked: Callable[[], tuple[Any, Any, int]]


def questions(options: argparse.Namespace) -> Iterator[NormQuestion]:
    """All of them, small networks first."""
    saved = json.loads((RUNS / "norms.json").read_text())["networks"]
    for name in norms.NETWORKS:
        radii = next(of["radii"]["crown"] for key, of in saved.items() if key.removesuffix(" (before)") == name)
        for image in range(options.questions):
            eps = options.share * radii[image]
            asked = functools.partial(_digit, options, name, image, eps)
            yield NormQuestion(f"digits, {name}", str(image), eps, None, asked)
    for layers in sst.LAYERS:
        for norm in NORMS:
            rows = json.loads((RUNS / f"sst-{layers}-{norm}.json").read_text())["rows"]
            for row in sorted(rows, key=lambda each: each["tokens"])[: options.questions]:
                radius, bounds = row["crown"]["radius"], dict(row["crown"]["bounds"])
                of, eps = (layers, norm, row["sentence"]), options.share * radius
                saved = bounds[radius] if options.saved and eps <= radius else None
                asked = functools.partial(_sentence, options, *of, eps)
                yield NormQuestion(f"sst-{layers}-{norm}", str(of[2]), eps, saved, asked)
    yield NormQuestion("stories260K", "0", STORIES, None, functools.partial(_token, options, "stories", STORIES))
    yield NormQuestion("Sapiens", "0", SAPIENS, None, functools.partial(_token, options, "sapiens", SAPIENS))


def _digit(options: argparse.Namespace, name: str, image: int, eps: float) -> tuple[Any, Any, int]:
    data = digits()
    model = norms.made(name, data, options.digits)
    with torch.no_grad():
        right = (model(data.eval_images.double()).argmax(1) == data.eval_labels).nonzero().flatten()
    at = int(right[image])
    return model, LinfBall(data.eval_images[at : at + 1], eps, clip=(0, 1)), int(data.eval_labels[at])


# Five: the network is named by three of them.
def _sentence(options: argparse.Namespace, layers: int, norm: str, i: int, eps: float) -> tuple[Any, Any, int]:
    vocabulary = read_vocabulary(options.sst)
    model = read(sst.loaded(SentenceArchitecture(len(vocabulary), layers, norm), options.models))
    some = read_sentences(options.sst, "test", vocabulary)
    ids = some.ids[i]
    return model, TokenBall.of(model, torch.tensor([ids]), eps, tokens=[len(ids) // 2]), some.labels[i]


def _token(options: argparse.Namespace, kind: str, eps: float) -> tuple[Any, Any, int]:
    model, x = language.network(kind, options.language, 8)
    with torch.no_grad():
        label = int(model(x).argmax(1))
    return model, language.ball(x, 4, eps), label


def measured(question: NormQuestion) -> dict[str, Any]:
    """crown, the proof, and its check."""
    torch.set_num_threads(1)
    model, ball, label = question.asked()
    row: dict[str, Any] = {"network": question.network, "question": question.name, "eps": question.eps}
    graph = load(model, ball)
    if question.saved is None:
        begin, of = time.perf_counter(), model if isinstance(ball, TokenBall) else graph
        result = certify(of, ball, torch.tensor([label]), "crown", options=Options(goal=0.0), attack=None)
        row |= {"crown": float(result.worst[0]), "verdict": str(result.verdict), "crown_s": time.perf_counter() - begin}
    else:
        row["crown at its radius"] = question.saved
    graph = graph.to(torch.float64, torch.device("cpu"))
    lower, upper = (_numbers(x, graph.input.shape) for x in (ball.lower, ball.upper))
    classes = int(np.prod(graph.output.shape))
    eye = np.eye(classes)
    cases = [ForbiddenCase((eye[label] - eye[k])[None], np.zeros(1), np.ones(1)) for k in range(classes) if k != label]
    proof = prove(graph, [CertificatePart(lower, upper, cases)], Effort(Ascent(steps=0), search=None))
    accepted = proof.certificate is not None  # `prove` gives only what `check` accepted, from its bytes
    row |= {"proved": proof.margin, "accepted": accepted, "reason": proof.reason, "prove_s": proof.seconds["prove"]}
    if proof.certificate is not None:
        row |= {"check_s": proof.seconds["check"], "bytes": len(proof.certificate.data)}
    return row | {"peak_GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def _numbers(x: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """One input in double precision."""
    return np.asarray(x[0].double().reshape(shape).numpy())


def main() -> None:
    """Ask what was not asked yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="networks whose name contains one of these")
    parser.add_argument("--questions", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.97)
    parser.add_argument("--saved", action="store_true", help="do not ask crown where a bound of it is saved")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RUNS / "norm-certificates.json")
    parser.add_argument("--sst", type=Path, default=Path("out/dev/sst"))
    parser.add_argument("--models", type=Path, default=Path("out/sst"))
    parser.add_argument("--language", type=Path, default=Path("out/dev/lang"))
    parser.add_argument("--digits", type=Path, default=Path("out/norms"))
    options = parser.parse_args()
    record: dict[str, Any] = {"benchmark": "norm-certificates", "version": __version__, "rows": []}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    known = {(row["network"], row["question"], row["eps"]) for row in record["rows"]}
    open_ = [q for q in questions(options) if any(text in q.network for text in options.only) and q[:3] not in known]
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(measured, open_):
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
            write_whole(options.out, json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
