"""DeepT's synonym network: is every combination of synonyms of a sentence classified like the sentence?

python lab/benchmarks/synonyms.py --data FOLDER [--first N] [--jobs J] [--seconds S]

FOLDER has synonym_bert.safetensors and sst/ (`vertex_lab.sentences.synonyms`). Every eligible sentence is decided by
`certify(model, TokenChoices, label, "bab")`; a counterexample is given to the module itself as ids, once more. Beside
it, for comparison, an attack in the box around the embeddings of the choices: where it succeeds and all combinations
are verified, the box is broken by points that are no words. One thread for each job; the time of a sentence is that of
one thread, with reading and exporting the module. Writes synonyms.json after each sentence; sentences that are already
in it are not asked again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from vertex_lab.sentences.synonyms import Replaceable, eligible, read_classifier, read_replaceable
from vertex_softmax import Box, TokenChoices, certify
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.options import Options
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets.loading import Loaded, read

_made: dict[str, Any] = {}
"""The module and what was read of it, once for each process."""


def main() -> None:
    """Decide all sentences that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--first", type=int, help="so many of the eligible sentences; all of them unless given")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of branching on choices, at most, for a sentence")
    parser.add_argument("--out", type=Path, default=Path("lab/benchmarks/runs"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    path: Path = options.out / "synonyms.json"
    record: dict[str, Any] = {"rows": {}}
    if path.exists():
        record = json.loads(path.read_text())
    some = eligible(read_classifier(options.data), read_replaceable(options.data))[: options.first]
    waiting = [each for each in some if str(each.number) not in record["rows"]]
    begin = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), _begin, (options.data,)) as pool:
        asked = [pool.submit(decided, each, options.seconds) for each in waiting]
        for done, future in enumerate(as_completed(asked), 1):
            number, row = future.result()
            record["rows"][str(number)] = row
            record["rows"] = dict(sorted(record["rows"].items(), key=lambda item: int(item[0])))
            record["summary"] = summary(record["rows"])
            left = (time.perf_counter() - begin) / done * (len(waiting) - done)
            print(
                f"{number}: {row['verdict']}, {row['seconds']:.1f} s; {done}/{len(waiting)}, {left:.0f} s left",
                flush=True,
            )
            write_whole(path, json.dumps(record, indent=1).encode())
    print(json.dumps(record.get("summary"), indent=2))


def _begin(data: Path) -> None:
    torch.set_num_threads(1)
    module = read_classifier(data)
    _made.update(module=module, read=read(module))


def decided(each: Replaceable, limit: float) -> tuple[int, dict[str, Any]]:
    """What is known of one sentence."""
    module, model = _made["module"], _made["read"]
    begin, worked = time.perf_counter(), time.process_time()
    words = TokenChoices(model, torch.tensor([each.ids]), each.choices)
    found = certify(model, words, each.label, "bab", options=Options(search=Search(seconds=limit)))
    row: dict[str, Any] = {
        "tokens": len(each.ids),
        "replaceable": len(each.choices),
        "combinations": each.combinations,
        "label": each.label,
        "verdict": str(found.verdict),
        "bound": found.rows()[0]["bound"],
        "clean": found.rows()[0]["clean"],
        "reason": found.reasons[0],
        "seconds": time.perf_counter() - begin,
        "processor seconds": time.process_time() - worked,
    }
    point = found.counterexamples[0]
    if not bool(point.isnan().any()):
        ids = words.ids_of(point[None, None])[0]
        with torch.no_grad():
            logits = module(ids)[0].tolist()
        inside = all(int(i) in each.choices.get(t, (each.ids[t],)) for t, i in enumerate(ids[0]))
        wrong = logits[1 - each.label] > logits[each.label]
        row |= {"counterexample": ids[0].tolist(), "logits": logits, "confirmed": inside and wrong}
    row["box broken"] = box_broken(model, words, each.label)
    return each.number, row


def box_broken(model: Loaded, words: TokenChoices, label: int) -> bool:
    """Whether an attack succeeds in the box around the embeddings of the choices."""
    graph = model.graph(words)
    return bool(pgd(graph, Box(words.lower, words.upper), label).worst < 0)


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts of verdicts, and the time of a sentence on one thread."""
    kept = list(rows.values())
    verdicts = [row["verdict"] for row in kept]
    return {
        "sentences": len(kept),
        **{name: verdicts.count(name) for name in ("verified", "falsified", "unknown")},
        "counterexamples confirmed by the module": sum(row.get("confirmed", False) for row in kept),
        "box broken": sum(row["box broken"] for row in kept),
        "verified although the box is broken": sum(row["box broken"] and row["verdict"] == "verified" for row in kept),
        "combinations": sum(row["combinations"] for row in kept),
        "mean seconds": statistics.mean(row["seconds"] for row in kept),
        "mean processor seconds": statistics.mean(row["processor seconds"] for row in kept),
        "most seconds": max(row["seconds"] for row in kept),
    }


if __name__ == "__main__":
    main()
