"""All instances through all methods, and the count of wrong answers, which must be 0: `vertex bench soundness`.

Invariant: an instance is in the journal with all its answers or not at all; the same command goes on from there. The
instances are functions of their names alone; times are not.
"""

from __future__ import annotations

import collections
import concurrent.futures
import importlib.util
import json
import multiprocessing
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vertex_lab.journals import fingerprint
from vertex_softmax import __version__
from vertex_softmax.foundation.errors import InternalError, InvalidValueError
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.runs.journal import Journal
from vertex_softmax.runs.machine import cores

FAMILIES = ("exact", "hat", "file")
"""All that are asked about unless others are named."""
TREE = "tree"
"""Small networks in great number, for branch and bound alone (bent.py)."""
SOURCES = ("soundness", *(f"fuzz/{name}.py" for name in ("attentions", "build", "layers", "recipe")))
"""What the instances are made by."""
Say = Callable[[str], None]


def names_of(families: tuple[str, ...], seeds: int, first: int, *, quick: bool) -> list[str]:
    """The instances' names. quick: of each op or kind one, at depths and inputs in turn."""
    from vertex_lab.soundness.networks import keys

    found = [key.name for key in keys(seeds, first) if key.family in families]
    if "file" in families:
        if importlib.util.find_spec("onnxruntime") is None:
            raise InvalidValueError(
                "the family `file` needs onnx and onnxruntime: pip install 'vertex-softmax[onnx]', "
                "or leave it out: --family exact --family hat"
            )
        from vertex_lab.soundness.files import names

        found += [f"file-{name}" for name in names(seeds, first)]
    if TREE in families:
        from vertex_lab.soundness.bent import names as tree_names

        found += [f"{TREE}-{name}" for name in tree_names(seeds, first)]
    return _one_each(found) if quick else found


def _one_each(found: list[str]) -> list[str]:
    """Of each op the i-th instance, for the i-th op."""
    groups: dict[str, list[str]] = {}
    for name in found:
        parts = name.split("-")
        groups.setdefault("-".join(p for p in parts if not p.isdigit() and p not in PLACES), []).append(name)
    return [group[(i + i // len(group)) % len(group)] for i, group in enumerate(groups.values())]


PLACES = ("vision", "tokens", "plain", "norm")


def judged(name: str, seconds: float) -> dict[str, Any]:
    """One instance and the answers to it; in a process of its own, on one thread."""
    import torch

    torch.set_num_threads(1)
    family, _, rest = name.partition("-")
    if family == "file":
        from vertex_lab.soundness.files import judged_file

        row = judged_file(rest, 2.5 * seconds)
    elif family == TREE:
        from vertex_lab.soundness.bent_judge import judged as judge_tree

        kind, _, seed = rest.partition("-")
        row = judge_tree(kind, int(seed), seconds)
    else:
        from vertex_lab.soundness.judge import judged as judge
        from vertex_lab.soundness.networks import Key

        opening, _, rest = rest.partition("-")
        op, depth, number = rest.rsplit("-", 2)
        row = judge(Key(family, opening, op, int(depth), int(number)), seconds=seconds)
    return {**row, "key": name}


def bench(
    out: Path,
    *,
    families: tuple[str, ...] = FAMILIES,
    seeds: int = 1,
    first: int = 0,
    quick: bool = False,
    jobs: int | None = None,
    seconds: float = 2.0,
    progress: Say = lambda _: None,
) -> dict[str, Any]:
    """Run what the journal OUT/soundness.jsonl has not; the counts are written to OUT/soundness.json, and returned."""
    offered = (*FAMILIES, TREE)
    unknown = set(families) - set(offered)
    if unknown or not families:
        raise InvalidValueError(f"family is {', '.join(unknown) or 'empty'}; choose of {', '.join(offered)}")
    if seeds < 1 or first < 0:
        raise InvalidValueError(f"seeds is {seeds} from {first}; give at least one, from 0 on")
    names = names_of(families, seeds, first, quick=quick)
    with Journal(out / "soundness.jsonl", f"{fingerprint(*SOURCES)} {seconds!r}") as journal:
        left = [name for name in names if name not in journal.known]
        progress(f"{len(names)} instances, {len(names) - len(left)} of them in {journal.path}")
        for row in _rows(left, jobs or cores(), seconds, progress):
            journal.add([row])
        rows = [journal.known[name] for name in names]
    result = {**_setting(seconds, seeds, first, quick=quick), **summary(rows)}
    write_whole(out / "soundness.json", json.dumps(result, indent=1).encode())
    return result


def _rows(names: list[str], jobs: int, seconds: float, progress: Say) -> Iterable[dict[str, Any]]:
    """Answers as they come, with an estimate of the rest."""
    if not names:
        return
    begin, context = time.monotonic(), multiprocessing.get_context("spawn")
    workers = concurrent.futures.ProcessPoolExecutor(max_workers=min(jobs, len(names)), mp_context=context)
    with workers:
        futures = {workers.submit(judged, name, seconds): name for name in names}
        try:
            for i, future in enumerate(concurrent.futures.as_completed(futures), 1):
                try:
                    row = future.result()
                except concurrent.futures.BrokenExecutor as error:
                    raise InternalError(f"a process that judged {futures[future]} or another ended: {error}") from error
                yield row
                for answer in row["answers"]:
                    if answer["wrong"]:
                        progress(f"WRONG: {row['key']}, {answer['method']}: {answer['wrong']}")
                if i % 10 == 0 or i == len(names):
                    rest = (time.monotonic() - begin) / i * (len(names) - i)
                    progress(f"{i} of {len(names)} instances, about {rest / 60:.1f} min to go")
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            raise


def _setting(seconds: float, seeds: int, first: int, *, quick: bool) -> dict[str, Any]:
    import torch

    return {
        "benchmark": "soundness",
        "version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seeds": seeds,
        "first_seed": first,
        "quick": quick,
        "seconds": seconds,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts by family and method, and what attacks did."""
    answers = [(row, answer) for row in rows for answer in row["answers"]]
    table = []
    for family in dict.fromkeys(row["family"] for row in rows):
        for method in dict.fromkeys(a["method"] for row, a in answers if row["family"] == family):
            mine = [(row, a) for row, a in answers if row["family"] == family and a["method"] == method]
            table.append({"family": family, "method": method, **_counts(mine)})
    broken = [row for row in rows if row["truth"] == "broken" and "attack" in row]
    return {
        "instances": len(rows),
        "answers": len(answers),
        "wrong": sum(bool(a["wrong"]) for _, a in answers),
        "mistakes": [f"{row['key']}, {a['method']}: {a['wrong']}" for row, a in answers if a["wrong"]],
        "ops": sorted({op for row in rows for op in row.get("ops", ())}),
        "truths": dict(collections.Counter(f"{row['family']} {row['truth']}" for row in rows)),
        "attacked": {
            family: [sum(row["attack"] < 0 for row in broken if row["family"] == family), count]
            for family, count in collections.Counter(row["family"] for row in broken).items()
        },
        "table": table,
    }


def _counts(mine: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Of one method in one family; `lost`: the median of how far bounds are below exact minima."""
    times = sorted(a["seconds"] for _, a in mine)
    lost = sorted(
        row["least"] - a["lower"] for row, a in mine if row.get("least") is not None and a.get("lower") is not None
    )
    return {
        "instances": len(mine),
        "wrong": sum(bool(a["wrong"]) for _, a in mine),
        "robust": sum(row["truth"] == "robust" for row, _ in mine),
        "verified": sum(a["verdict"] == "verified" for _, a in mine),
        "falsified": sum(a["verdict"] == "falsified" for _, a in mine),
        "unknown": sum(a["verdict"] == "unknown" for _, a in mine),
        "errors": sum(a["verdict"] == "error" for _, a in mine),
        "lost": lost[len(lost) // 2] if lost else None,
        "median_seconds": times[len(times) // 2],
        "most_seconds": times[-1],
    }
