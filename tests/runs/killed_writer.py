"""Kill a process that writes a journal, again and again; what was found of it after each kill goes to stdout as JSON.

python killed_writer.py FOLDER ROUNDS. Writers are forked from here, where everything is imported already: each takes
milliseconds to start. A writer reports a trial's number through a pipe when `add` has returned, not before.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.journal import Journal


def payload(number: int) -> str:
    """Of many sizes, some so long that a kill falls into the middle of a write."""
    size = random.Random(number).choice((3, 50, 9_000, 100_000, 1_000_000))
    return hashlib.sha256(str(number).encode()).hexdigest() * (size // 64 + 1)


def write(path: Path, first: int, pipe: int) -> None:
    """Add trials, alone and in threes, until killed."""
    with Journal(path, "source") as journal:
        number = first
        while True:
            together = 3 if number % 5 == 0 else 1
            numbers = range(number, number + together)
            journal.add([{"key": str(n), "payload": payload(n)} for n in numbers])
            os.write(pipe, "".join(f"{n}\n" for n in numbers).encode())
            number += together


def forked(path: Path, first: int) -> tuple[int, int]:
    """A writer's process id and the end of the pipe it reports through."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            write(path, first, writing)
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading


def reported(pipe: int, least: int) -> list[int]:
    """The numbers that came through the pipe, as soon as there are some."""
    text = b""
    while text.count(b"\n") < least:
        part = os.read(pipe, 1 << 16)
        if not part:
            break
        text += part
    return [int(line) for line in text.split()]


def main(folder: Path, rounds: int) -> None:
    chance = random.Random(1)
    found, first, promised = [], 0, set[int]()
    for turn in range(rounds):
        path = folder / f"{turn // 4}.jsonl"  # of each file, four writers are killed
        if turn % 4 == 0:
            first, promised = 0, set()
        child, pipe = forked(path, first)
        promised.update(reported(pipe, 1))
        try:
            Journal(path, "source").__enter__()
            locked = False
        except InvalidValueError as error:
            locked = "another process is writing" in str(error)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        promised.update(reported(pipe, 1 << 30))
        os.close(pipe)
        before = path.read_bytes()
        with Journal(path, "source") as journal:
            after = path.read_bytes()
            lines = Counter(json.loads(line)["key"] for line in after.splitlines())
            found.append(
                {
                    "locked": locked,
                    "torn": not before.endswith(b"\n"),
                    "cut at a line's end": after == before[: before.rfind(b"\n") + 1],
                    "lost": sorted(n for n in promised if str(n) not in journal.known),
                    "twice": [key for key, count in lines.items() if count > 1],
                    "broken": [k for k, trial in journal.known.items() if trial["payload"] != payload(int(k))],
                    "beyond": len(journal.known) - len(promised),
                }
            )
            first = 1 + max(map(int, journal.known), default=-1)
            promised = {int(key) for key in journal.known}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
