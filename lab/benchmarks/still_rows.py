"""stories260K with one token free: `crown` with the rows that cannot move left out, and with all rows.

python lab/benchmarks/still_rows.py [--data FOLDER] [--tokens 8] [--eps 0.001] [--out FILE]

Both versions in turn, processor seconds of one thread; the token in the middle moves, and the last one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from language import ball, network

from vertex_softmax import __version__
from vertex_softmax.bounds import still_rows
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.runs.certify import certify, load

ROOT = Path(__file__).parents[2]
SHARES = {"without still rows": still_rows.LEAST_SHARE, "all rows": 2.0}
"""Which share of numbers has to be still for their rows to be left out; more than all of them never are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "stories260K")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--eps", type=float, default=0.001)
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "still-rows.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, x = network("stories", asked.data, asked.tokens)
    label = model(x).argmax(-1)
    rows = []
    for token in (asked.tokens // 2, asked.tokens - 1):
        moving = ball(x, token, asked.eps)
        graph = load(model, moving)
        for name, share in SHARES.items():
            still_rows.LEAST_SHARE = share
            begin = time.process_time()
            bound = certify(graph, moving, label, "crown", attack=None).worst.item()
            rows.append({"token": token, "rows": name, "bound": bound, "processor_s": time.process_time() - begin})
            print(rows[-1], flush=True)
    content = {"benchmark": "still-rows", "version": __version__, "tokens": asked.tokens, "epsilon": asked.eps}
    write_whole(asked.out, json.dumps({**content, "rows": rows}, indent=1).encode())


if __name__ == "__main__":
    main()
