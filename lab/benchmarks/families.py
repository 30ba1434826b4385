"""What Vertex says of tiny models of known families, unmodified from their libraries: the table of docs/your-model.md.

python lab/benchmarks/families.py [--out FILE] [--names NAME ...]

Families whose library is not installed (`timm`) keep the rows that they have in FILE. To have it without touching the
environment, with the torchvision that belongs to the installed torch (another one breaks transformers too):
  pip install --no-deps --target /tmp/timm timm pillow torchvision==VERSION
  PYTHONPATH=/tmp/timm python lab/benchmarks/families.py
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from pathlib import Path

import torch

from vertex_lab.families.answers import FAMILIES, METHOD, answer, available

RUNS = Path(__file__).parent / "runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RUNS / "families.json")
    parser.add_argument("--names", nargs="*", help="only these families; the others keep their rows")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    before = RUNS / "families.json"
    old = json.loads(before.read_text(encoding="utf-8"))["rows"] if before.exists() else []
    kept = {(row["library"], row["family"]): row for row in old}
    rows = []
    for family in FAMILIES:
        key = (family.library, family.name)
        if not available(family) or (asked.names and family.name not in asked.names):
            rows += [kept[key]] if key in kept else []
            continue
        row = {"library": family.library, "family": family.name, "model": family.model, "moves": family.moves}
        row["version"] = importlib.metadata.version(family.library)
        if family.why_not:
            row["why not"] = family.why_not
        else:
            found = answer(family)
            row |= {"verdict": found.verdict, "bound": found.bound, "reached": found.reached}
        print(row, flush=True)
        rows.append(row)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps({"method": METHOD, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
