"""Compare two saved runs of `vertex bench softmax-box`: the ratio of their speedups, size by size.

python lab/benchmarks/compare.py OLD.json NEW.json
"""

import json
import sys
from pathlib import Path


def load(path):
    return {(t["device"], t["dtype"], t["keys"]): t for t in json.loads(Path(path).read_text())["timings"]}


old, new = load(sys.argv[1]), load(sys.argv[2])
print(f"{'size':>24}  {'old':>7}  {'new':>7}  new/old")
for key in sorted(old.keys() & new.keys()):
    a, b = old[key]["speedup"], new[key]["speedup"]
    print(f"{key[0]:>6} {key[1]:>8} {key[2]:>8}  {a:6.1f}x  {b:6.1f}x  {b / a:6.2f}")
