"""The accuracy of Max-of-k networks over all of their inputs: proved, checked, and by brute force.

python lab/benchmarks/max_of_k.py [--coq FOLDER] [--seeds 0 1] [--out FILE] [--keep FOLDER]

Networks: those that examples/max_of_k trains (64 tokens, sequences of 4; one for each seed), and Max-of-2 networks with
published weights, the files theories/MaxOfTwoNumbers*Simpler/Parameters.v of a checkout of JasonGross's
neural-net-coq-interp (--coq; it is on GitHub, and not in this repository). Of the first seed also: what giving up parts
of at most 512 sequences costs and saves. Seconds are processor time of one thread; evaluations are parts whose bound
was evaluated.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from anchors import facts  # noqa: E402
from examples.max_of_k.__main__ import measured  # noqa: E402
from examples.max_of_k.network import Weights, brute_force, trained  # noqa: E402

from vertex_softmax.foundation.files import write_whole  # noqa: E402

NAMES = {"E": "W_E", "P": "W_pos", "W_U": "W_U", "b_U": "b_U"}
"""Names of the weights in the Coq files; the others are those of the first layer's attention."""


def published(path: Path) -> Weights:
    """The weights of a Max-of-2 network from a Coq file: lists of hexadecimal floats, one head."""
    text = path.read_text()
    weights = {}
    for name in ("E", "P", "W_Q", "W_K", "W_V", "W_O", "W_U", "b_Q", "b_K", "b_V", "b_O", "b_U"):
        found = re.search(
            rf"Definition {NAMES.get(name, f'L0_attn_{name}')} :=\s*([^.]*?\[.*?\])\s*\.\s", text, re.DOTALL
        )
        if found is None:
            raise SystemExit(f"{path}: there is no {name}")
        words = re.findall(r"-?0x[\da-f.]+p[+-]?\d+|[\[\];]", found[1])
        nested = "".join(word if word in "[]" else "," if word == ";" else str(float.fromhex(word)) for word in words)
        weights[name] = np.array(json.loads(nested), dtype=np.float64)  # str of a float and back is exact
        if name not in ("E", "P", "W_U", "b_U", "b_O"):
            weights[name] = weights[name][0]  # the one head
    return weights


def row(name: str, weights: Weights, keep: Path | None = None, **options: Any) -> dict[str, Any]:
    """The measured numbers of one network and one way to search; `keep`: where its folder is to stay."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if keep is None else keep / re.sub(r"\W+", "-", name).strip("-")
        folder.mkdir(parents=True, exist_ok=True)
        found = {"name": name, **measured(weights, folder, **options)}
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coq", type=Path, help="a checkout of neural-net-coq-interp")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "max_of_k.json")
    parser.add_argument("--keep", type=Path, help="keep every proof here; `vertex report FOLDER` makes a page of one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = [] if options.coq is None else sorted(options.coq.glob("theories/MaxOfTwoNumbers*Simpler/Parameters.v"))
    rows = [row(f"Max-of-2, published: {path.parent.name}", published(path), options.keep) for path in files]
    for seed in options.seeds:
        begin = time.process_time()
        weights = trained(64, 4, seed=seed)
        trained_at = time.process_time()
        right = brute_force(weights)
        seconds = {"train_s": trained_at - begin, "brute_force_s": time.process_time() - trained_at}
        rows.append({**row(f"Max-of-4, seed {seed}", weights, options.keep, right=right), **seconds})
        if seed == options.seeds[0]:
            rows.append(row(f"Max-of-4, seed {seed}, smallest 512", weights, options.keep, smallest=512, right=right))
    write_whole(options.out, json.dumps({"benchmark": "max_of_k", **facts(), "rows": rows}, indent=1).encode())


if __name__ == "__main__":
    main()
