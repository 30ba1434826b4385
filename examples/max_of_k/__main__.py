"""The accuracy of a small transformer over all of its inputs, proved by a fraction of their number of evaluations.

    python -m examples.max_of_k            # 64 tokens, sequences of 4: minutes on one core, most of them brute force
    python -m examples.max_of_k --quick    # 8 tokens, sequences of 3: seconds
    python -m examples.max_of_k --quick --out out/max_of_3 && vertex report out/max_of_3    # a page of the proof

The network reads k tokens and says which is the largest: one attention-only layer (network.py). It is trained, a lower
bound of its accuracy over ALL vocabulary^k sequences is proved by branch and bound with the exact softmax over choices
(search.py), the certificate is written (certificate.py) and checked by a program that knows nothing of the search
(checker.py). Brute force, one evaluation of the network for every sequence, says how good the bound is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from examples.max_of_k.certificate import write
from examples.max_of_k.checker import check
from examples.max_of_k.network import Weights, brute_force, save, trained
from examples.max_of_k.record import record
from examples.max_of_k.search import search
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from vertex_softmax.runs.accuracy import WorkStage
from vertex_softmax.runs.demo.training import one_thread


def measured(
    weights: Weights,
    folder: Path,
    *,
    smallest: int = 1,
    right: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """Search, write, check and count by brute force (unless `right` is given): numbers, processor seconds.

    The folder has weights.npz, certificate.json and accuracy.json, of which `vertex report` makes a page.
    """
    begin = time.process_time()
    found = search(weights, smallest=smallest)
    searched = time.process_time()
    save(weights, folder / "weights.npz")
    write(folder / "certificate.json", weights, found.proved)
    written = time.process_time()
    accepted = check(folder / "certificate.json", folder / "weights.npz")
    checked = time.process_time()
    seconds = None
    if right is None:
        right = brute_force(weights)
        seconds = time.process_time() - checked
    stages = [
        WorkStage("search", found.evaluations, searched - begin),
        WorkStage("check", accepted.parts, checked - written),
        *([] if seconds is None else [WorkStage("brute force", accepted.sequences, seconds)]),
    ]
    record(weights, found, right, stages, folder)
    return {
        "vocabulary": len(weights["E"]),
        "k": len(weights["P"]),
        "sequences": accepted.sequences,
        "right": int(right.sum()),
        "proved": accepted.proved,
        "proved but wrong": sum(int((~right[np.ix_(*part)]).sum()) for part in found.proved),
        "evaluations": found.evaluations,
        "splits without evaluation": found.split_by_label,
        "tables of terms": found.tables,
        "parts": accepted.parts,
        "bytes": (folder / "certificate.json").stat().st_size,
        "search_s": searched - begin,
        "check_s": checked - written,
        "brute_force_s": seconds,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, prove, check, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 tokens, sequences of 3, a short training")
    parser.add_argument("--smallest", type=int, default=1, help="give up parts of at most so many sequences")
    parser.add_argument("--out", type=Path, help="keep weights.npz, certificate.json and accuracy.json here")
    asked = parser.parse_args(arguments)
    with one_thread(), tempfile.TemporaryDirectory() as temporary:
        folder = asked.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        weights = trained(8, 3, d=8, steps=400) if asked.quick else trained(64, 4)
        row = measured(weights, folder, smallest=asked.smallest)
    total = row["sequences"]
    table = Table("", "sequences right", "share", "evaluations", "seconds", title=f"all {total:,} sequences")
    for name, right, evaluations, seconds in (
        ("brute force", row["right"], total, row["brute_force_s"]),
        ("proved", row["proved"], row["evaluations"], row["search_s"]),
        ("checked", row["proved"], row["parts"], row["check_s"]),
    ):
        table.add_row(name, f"{right:,}", f"{right / total:.4%}", f"{evaluations:,}", f"{seconds:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
