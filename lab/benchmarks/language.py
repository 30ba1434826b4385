"""Real language models: how far one of their tokens may move in ℓ∞ before the prediction changes.

python lab/benchmarks/language.py stories --data FOLDER [--tokens 8] [--methods crown] [--device cuda] [--out FOLDER]
python lab/benchmarks/language.py sapiens --data FOLDER [--tokens 8] [--methods crown] [--device cuda] [--out FOLDER]

stories: stories260K (llama2.c; FOLDER has stories260K.bin): five layers, RMSNorm, SwiGLU, rotary positions; "Once upon
a time, there was" and its next token. sapiens: a RoBERTa of four layers, d = 128 (PyPI's sapiens 1.0.5; FOLDER has
checkpoint_vh.pt): the part of an antibody in which the residue before the token that moves has the largest margin. The
token in the middle moves. ε is bisected on a logarithmic scale until it is known to 10 %, by the attack in the same
way; `fall` is how far the bound falls from the largest certified ε to 1.5 times that, in clean margins. Writes
language-MODEL-TOKENS.json after each question. One thread.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from sst import largest
from torch import Tensor, nn

from vertex_lab.language.sapiens import ids_of, read_sapiens
from vertex_lab.language.stories import read_stories
from vertex_softmax import Box, __version__
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.search.attack import pgd

STORY = (1, 403, 407, 261, 378, 432, 383, 286, 261, 398)
"""<s> Once upon a time , there was a little"""
ANTIBODY = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
"""The variable region of a heavy chain (germline IGHV3-23)."""


def network(kind: str, data: Path, tokens: int) -> tuple[nn.Module, Tensor]:
    """A network in float64 and the vectors of its tokens, (1, tokens, dim)."""
    if kind == "stories":
        story = read_stories(data / "stories260K.bin", tokens).double()
        return story, story.words(torch.tensor([STORY[:tokens]]))
    model = read_sapiens(data / "checkpoint_vh.pt", tokens // 2 - 1).double()
    parts = [ANTIBODY[i : i + tokens - 2] for i in range(len(ANTIBODY) - tokens + 3)]
    vectors = model.embed_tokens(torch.tensor([ids_of(part) for part in parts]))
    best = model(vectors).topk(2).values
    chosen = int((best[:, 0] - best[:, 1]).argmax())
    return model, vectors[chosen : chosen + 1]


def ball(x: Tensor, token: int, eps: float) -> Box:
    """All inputs that differ from x in one token, by at most ε in every number."""
    radius = torch.zeros_like(x)
    radius[:, token] = eps
    return Box(x - radius, x + radius)


def measure(kind: str, options: argparse.Namespace) -> None:
    """Radii by the attack and by each method, written after each."""
    model, x = network(kind, options.data, options.tokens)
    with torch.no_grad():
        scores = model(x)
    label, token = scores.argmax(1), options.tokens // 2
    best = scores.topk(2).values[0]
    record: dict[str, Any] = {"benchmark": f"language-{kind}", "version": __version__, "tokens": options.tokens}
    record |= {"device": options.device, "moves": token, "margin": float(best[0] - best[1]), "methods": {}}
    graph = load(model, Box(x, x))

    def resists(eps: float) -> bool:
        return float(pgd(model, ball(x, token, eps), label, steps=40, restarts=2).worst) > 0

    record["attack"] = largest(resists, 0.05)
    start = record["attack"] / 10
    if options.start is not None:
        start = options.start
    for method in options.methods:
        bounds: dict[float, float] = {}

        def write(found: dict[str, Any], method: str = method) -> None:
            record["methods"][method] = found
            path = options.out / f"language-{kind}-{options.tokens}.json"
            write_whole(path, json.dumps(record, indent=1).encode())

        begin = time.perf_counter()

        def bound(eps: float, method: str = method, bounds: dict[float, float] = bounds) -> float:
            result = certify(
                graph, ball(x, token, eps), label, method, options=Options(goal=0.0), device=options.device, attack=None
            )
            bounds[eps] = float(result.worst[0])
            write({"bounds": sorted(bounds.items()), "finished": False})
            print(f"{kind} {method} ε {eps:.4g} bound {bounds[eps]:.4g}", flush=True)
            return bounds[eps] if bool(result.certified[0]) else min(bounds[eps], 0.0)

        radius = largest(lambda eps: bound(eps) > 0, start, 1.6)
        seconds = (time.perf_counter() - begin) / len(bounds)
        fall = bounds[radius] - bound(1.5 * radius) if radius > 0 else float("nan")
        found = {
            "radius": radius,
            "attack / radius": record["attack"] / radius if radius > 0 else None,
            "seconds per question": seconds,
            "fall in clean margins": fall / record["margin"],
            "bounds": sorted(bounds.items()),
            "finished": True,
        }
        print(json.dumps({k: v for k, v in found.items() if k != "bounds"}), flush=True)
        write(found)
        start = radius or start


def main() -> None:
    """Measure one network."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stories", "sapiens"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--methods", nargs="+", default=("crown",))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--start", type=float, help="the first ε that is asked (a tenth of the attack's radius)")
    parser.add_argument("--out", type=Path, default=Path("lab/benchmarks/runs"))
    options = parser.parse_args()
    measure(options.what, options)


if __name__ == "__main__":
    main()
