"""An instance, the answers of every method, and what is wrong with them.

Invariant: an answer is wrong if it is `verified` and the truth is a counterexample, `falsified` and the truth is a
proof, or a bound above a margin that is known to be attained, by more than rounding. Unknown is never wrong.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from vertex_lab.soundness.networks import Key, Network, made, rounding
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops import OPS
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import certify
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets.loading import read


def judged(key: Key, methods: tuple[str, ...] = tuple(METHODS), seconds: float = 2.0) -> dict[str, Any]:
    """The instance of a key and the answers to it, as plain JSON. `seconds`: of branch and bound."""
    network = made(key)
    begin = time.perf_counter()
    with torch.no_grad():
        outputs = network.outputs(network.witness)[0]
    row: dict[str, Any] = {
        **key._asdict(),
        "key": key.name,
        "truth": "robust" if network.robust else "broken",
        "least": None if network.margins is None else float(network.margins.amin()),
        "witness": float((outputs[0] - outputs[1:]).amin()),
        **network.facts,
    }
    attack = pgd(network.module, network.input_set, 0, seed=key.seed)
    row["attack"] = float(attack.worst[0])
    row["answers"] = []
    try:
        model = read(network.module)
        graph = model.graph(network.input_set)
    except VertexError as error:
        row["answers"] = [_refused(method, error) for method in methods]
        return row
    row["ops"] = sorted({type(node.op).__name__ for node in graph.nodes()} & set(OPS))
    row["import_seconds"] = time.perf_counter() - begin
    for method in methods:
        begin = time.perf_counter()
        try:
            found = certify(model, network.input_set, 0, method, options=Options(search=Search(seconds=seconds)))
        except VertexError as error:
            row["answers"].append(_refused(method, error))
            continue
        spent = time.perf_counter() - begin
        row["answers"].append(
            {**_told(method, found), "wrong": mistake(network, found, row["attack"]), "seconds": spent}
        )
    return row


def mistake(network: Network, found: Certification, attacked: float) -> str:
    """What is wrong with an answer, in words; empty if nothing is."""
    verdict, allowed = found.verdicts[0], rounding(network)
    faults = []
    if verdict == Verdict.VERIFIED and not network.robust:
        faults.append("verified, and there is a counterexample")
    if verdict == Verdict.FALSIFIED and network.robust:
        faults.append("falsified, and it is robust")
    outputs = network.outputs(network.witness)[0]
    attained = (outputs[0] - outputs)[1:]
    over = float((found.lower[0, 1:] - attained).nan_to_num(nan=-torch.inf).amax())
    if over > allowed:
        faults.append(f"a bound is {over:.3g} above a margin of the witness")
    if float(found.lower[0, 1:].amin()) > attacked + allowed:
        faults.append("a bound is above the margin that an attack reached")
    return "; ".join(faults)


def _told(method: str, found: Certification) -> dict[str, Any]:
    lower = float(found.lower[0].amin())
    return {"method": method, "verdict": str(found.verdicts[0]), "lower": lower if abs(lower) < torch.inf else None}


def _refused(method: str, error: VertexError) -> dict[str, Any]:
    return {"method": method, "verdict": "error", "lower": None, "wrong": "", "seconds": 0.0, "reason": str(error)}
