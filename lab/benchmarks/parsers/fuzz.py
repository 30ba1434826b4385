"""Fuzz the parsers of files that nobody vouches for: python lab/benchmarks/parsers/fuzz.py PARSER SECONDS DIR

PARSER is one of targets.PARSERS, or `all`: each in processes of its own, at once, and DIR/summary.json at the end.
DIR/PARSER has corpus/ (inputs that reached something new; a second run goes on from them), finds/ (NAME.bin and
NAME.txt with the traceback, one per fault), worker.log (the fuzzer's own lines) and result.json. A find does not end
the run: an exception is kept and the fuzzer goes on; a crash, a timeout or too much memory ends the worker, and another
one is started for the rest of the time. Exit code 1 if there is a find. Needs atheris.

python lab/benchmarks/parsers/fuzz.py --replay PARSER FILE tries one input alone, without atheris.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT = 20
"""Seconds for one input."""
ROOM = 2 << 30
"""Bytes that a worker may use beyond what it has after its imports."""
SPAN = 150
"""Seconds of one worker: what libraries leak does not add up to a find."""
SHARED = Path("/dev/shm")  # noqa: S108
LONGEST = {"certificate": 1 << 15, "cifar": 1 << 16, "instances": 1 << 18}
"""Bytes of an input; 8192 for the others."""
INPUT = "input"
"""The file with the input that is tried."""
MOST_DEATHS = 200
COUNTER = struct.Struct("<q")
NAMES = (
    "onnx",
    "vnnlib",
    "vnnlib2",
    "certificate",
    "idx",
    "cifar",
    "npz",
    "safetensors",
    "weights",
    "journal",
    "sweep",
)
NAMES += ("sweep-summary", "run", "accuracy", "vocabulary", "instances", "table")


def main(arguments: list[str]) -> int:
    """See the module."""
    if len(arguments) == 5 and arguments[0] == "--worker":
        work(arguments[1], int(arguments[2]), Path(arguments[3]), Path(arguments[4]))
        return 0
    if len(arguments) == 3 and arguments[0] == "--replay":
        return replay(arguments[1], Path(arguments[2]))
    if len(arguments) != 3 or arguments[0] not in (*NAMES, "all") or not arguments[1].isdigit():
        print(__doc__, f"\nPARSER: all, {', '.join(NAMES)}", file=sys.stderr)
        return 2
    name, seconds, out = arguments[0], int(arguments[1]), Path(arguments[2]).absolute()
    if name == "all":
        return everything(seconds, out)
    result = supervise(name, seconds, out / name)
    print(json.dumps(result, indent=1))
    return 1 if result["finds"] else 0


def replay(name: str, path: Path) -> int:
    """One input alone: its time and its find."""
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parents[2] / "src"), str(here.parents[1])]
    import targets

    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        found = targets.replayed(name, path.read_bytes(), Path(folder))
    print(f"{time.process_time() - begin:.1f} s of the processor", "no find" if found is None else found.text, sep="\n")
    return 1 if found else 0


def everything(seconds: int, out: Path) -> int:
    """All parsers at once; DIR/summary.json has what each came to."""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__]
    running = {}
    for name in NAMES:
        with (out / f"{name}.log").open("wb") as log:
            running[name] = subprocess.Popen([*command, name, str(seconds), str(out)], stdout=log, stderr=log)
    for process in running.values():
        process.wait()
    found = {}
    for name in NAMES:
        place = out / name / "result.json"
        found[name] = json.loads(place.read_text()) if place.exists() else {"finds": ["it did not run"], "parser": name}
    finds = sum(len(result["finds"]) for result in found.values())
    summary = {"seconds": seconds, "python": sys.version.split()[0], "finds": finds, "parsers": found}
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for name, result in found.items():
        print(f"{name:14} {result.get('executions', 0):>10,} executions, {len(result['finds'])} finds")
    return 1 if finds else 0


def supervise(name: str, seconds: int, place: Path) -> dict[str, Any]:
    """Workers one after the other until the time is over; result.json."""
    for folder in ("corpus", "finds"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    begin, counted, workers, deaths = time.monotonic(), 0, 0, 0
    log = place / "worker.log"
    log.write_bytes(b"")
    counter = place / "executions"
    while (left := seconds - (time.monotonic() - begin)) > 3 or not workers:
        counter.write_bytes(COUNTER.pack(0))
        workers += 1
        before = set((place / "finds").iterdir())
        with log.open("ab") as stream, tempfile.TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as folder:
            span = max(1, min(int(left), SPAN))
            command = [sys.executable, __file__, "--worker", name, str(span), str(place), folder]
            code = subprocess.run(command, stdout=stream, stderr=stream, check=False).returncode
            executed = COUNTER.unpack(counter.read_bytes())[0]
            counted += executed
            if code:
                deaths += 1
                if set((place / "finds").iterdir()) == before:  # it was killed, or the fuzzer itself is wrong
                    _died(place / "finds" / f"died-{deaths}", Path(folder) / INPUT, log)
        if code and (not executed or deaths > MOST_DEATHS):
            break
    lines = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", log.read_text(errors="replace"))
    cover = max((tuple(map(int, line)) for line in lines), default=(0, 0, 0))
    counter.unlink()
    result: dict[str, Any] = {
        "parser": name,
        "seconds": round(time.monotonic() - begin, 1),
        "executions": counted,
        "coverage": cover[0],
        "features": cover[1],
        "corpus": cover[2],
        "workers": workers,
        "deaths": deaths,
        "finds": sorted({path.stem for path in (place / "finds").iterdir()}),
    }
    saved = place / "result.json"
    earlier = json.loads(saved.read_text()) if saved.exists() else {}
    for key in ("seconds", "executions", "deaths"):  # of all runs in this folder
        result[f"total_{key}"] = round(earlier.get(f"total_{key}", 0) + result[key], 1)
    saved.write_text(json.dumps(result, indent=1) + "\n")
    return result


def _died(name: Path, last: Path, log: Path) -> None:
    """Keep the last input and the end of the log of a worker that left nothing else."""
    name.with_suffix(".txt").write_bytes(log.read_bytes()[-4000:])
    if last.exists():
        name.with_suffix(".bin").write_bytes(last.read_bytes())


def work(name: str, seconds: int, place: Path, folder: Path) -> None:
    """One fuzzer, in this process."""
    import atheris
    import onnx  # noqa: F401 (before the rest: neither these nor torch are instrumented)
    import onnxruntime  # noqa: F401
    import torch

    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parents[2] / "src"), str(here.parents[1])]
    with atheris.instrument_imports(include=["vertex_softmax", "vertex_lab"]):
        import targets
    import mutators
    import onnx_mutator
    import seeds

    torch.set_num_threads(1)
    last, folder = folder / INPUT, folder / "files"
    folder.mkdir()
    for number, data in enumerate(seeds.SEEDS[name]()):  # what is imported or made once is so before memory counts
        (place / "corpus" / f"seed-{number}").write_bytes(data)
        if targets.judged(name, data, folder) is not None:
            print(f"seed {number} is a find")
    base = limited()
    arguments = [f"-max_total_time={seconds}", f"-timeout={TIMEOUT}", f"-rss_limit_mb={base + (ROOM >> 20)}"]
    arguments += [f"-max_len={LONGEST.get(name, 1 << 13)}", f"-artifact_prefix={place / 'finds'}/", "-len_control=0"]
    arguments += ["-print_final_stats=1", "-reload=0", str(place / "corpus")]
    mutate = MUTATORS(mutators, onnx_mutator)[name]

    def custom(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)  # noqa: S311
        try:
            found = mutate(data, rng, lambda part: atheris.Mutate(part, max(len(part) + 64, 64)))
        except Exception:  # noqa: BLE001 (a mutator that cannot: the fuzzer goes on with what it had)
            return data
        return found if len(found) <= most else found[:most] if rng.random() < 0.1 else data

    with targets.small():
        atheris.Setup(
            [sys.argv[0], *arguments], recording(name, place, folder, last, targets.judged), custom_mutator=custom
        )
        atheris.Fuzz()


def MUTATORS(mutators: Any, onnx_mutator: Any) -> dict[str, Any]:  # noqa: N802
    """The mutator of every parser."""
    tables = mutators.both(mutators.json_, mutators.tokens)
    return {
        "onnx": onnx_mutator.model,
        "vnnlib": mutators.packed(mutators.tokens),
        "vnnlib2": mutators.tokens,
        "certificate": mutators.headed("certificate"),
        "idx": mutators.both(mutators.packed(mutators.big_endian), mutators.packed(mutators.big_endian)),
        "cifar": mutators.packed(mutators.tar),
        "npz": mutators.zip_,
        "safetensors": mutators.headed(),
        "weights": mutators.both(mutators.json_, mutators.headed()),
        "journal": mutators.lines,
        "sweep": mutators.both(mutators.lines, mutators.rows),
        "sweep-summary": mutators.json_,
        "run": mutators.json_,
        "accuracy": mutators.json_,
        "vocabulary": mutators.json_,
        "instances": mutators.rows,
        "table": tables,
    }


def limited() -> int:
    """No more than ROOM beyond what is mapped now; the MiB that are in use."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    mapped, used = (int(status[key].split()[0]) for key in ("VmSize", "VmRSS"))
    limit = (mapped << 10) + 2 * ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return used >> 10


def recording(name: str, place: Path, folder: Path, last: Path, judged: Callable[..., Any]) -> Callable[[bytes], None]:
    """What the fuzzer calls: finds are kept by their key, and counted."""
    known = {path.stem for path in (place / "finds").glob("*.txt")}
    counter = os.open(place / "executions", os.O_WRONLY)
    count = 0

    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        if count % 16 == 1:
            os.pwrite(counter, COUNTER.pack(count), 0)
        last.write_bytes(data)
        find = judged(name, data, folder)
        if find is not None and find.key not in known:
            known.add(find.key)
            (place / "finds" / f"{find.key}.bin").write_bytes(data)
            (place / "finds" / f"{find.key}.txt").write_text(find.text, errors="replace")
            print(f"find {find.key}", flush=True)

    return one


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
