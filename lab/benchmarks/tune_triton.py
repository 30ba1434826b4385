"""Sweep launch shapes (rows per program, warps) of the Triton kernel on a CUDA device; JSON to the given folder.

PYTHONPATH=src python lab/benchmarks/tune_triton.py OUT [entries as a power of two]
"""

import functools
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import triton
from triton.testing import do_bench

from vertex_lab.softmax_box_bench import boxes, cuda_copy_bandwidth
from vertex_softmax.softmax_box import triton_backend

KEYS = (32, 128, 512, 1024, 4096, 64, 256, 2048)
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def shapes(keys, itemsize):
    """Launch shapes with at most 32 words of each array per thread and a row's chunks within a thread."""
    vector = 16 // itemsize
    for warps in (1, 2, 4, 8, 16):
        for width in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
            for rows in (1, 2, 4, 8, 16, 32):
                lanes = rows * max(1, width // vector)
                words = rows * keys / (32 * warps) * (itemsize / 4)
                if width > keys or not 8 <= words <= 32 or lanes < 32 * warps or lanes > 64 * warps:
                    continue
                if (keys >= 512 and rows > 2) or (warps >= 8 and keys < 2048) or (warps >= 4 and keys < 512):
                    continue
                yield triton_backend.Launch(rows, width, warps)


def compile_all(keys, dtype):
    """Fill Triton's cache: the parent runs one such process per size at the same time."""
    c, lower, upper = boxes(512, keys, DTYPES[dtype], "cuda")
    for launch in shapes(keys, c.element_size()):
        triton_backend.minimum(c, lower, upper, launch=launch)


def main(out, power):
    started = time.time()
    jobs = [
        subprocess.Popen([sys.executable, __file__, "compile", str(keys), name]) for keys in KEYS for name in DTYPES
    ]
    for job in jobs:
        job.wait()
    print(f"compiled in {time.time() - started:.0f} s", flush=True)
    copy = cuda_copy_bandwidth()
    print(f"{torch.cuda.get_device_name()} copy {copy / 1e12:.2f} TB/s, triton {triton.__version__}")
    results = {"device": torch.cuda.get_device_name(), "copy_bytes_per_s": copy, "entries": 1 << power, "rows": []}
    out.mkdir(parents=True, exist_ok=True)
    for name, dtype in DTYPES.items():
        for keys in KEYS:
            c, lower, upper = boxes((1 << power) // keys, keys, dtype, "cuda")
            moved = 3 * c.numel() * c.element_size()
            found = []
            for launch in shapes(keys, c.element_size()):
                call = functools.partial(triton_backend.minimum, c, lower, upper, launch=launch)
                ms = do_bench(call, warmup=5, rep=25, return_mode="median")
                found.append((moved / (ms / 1e3) / copy, launch))
                results["rows"].append(
                    {"dtype": name, "keys": keys, **launch._asdict(), "ms": ms, "share": found[-1][0]}
                )
            found.sort(reverse=True)
            print(
                f"[{time.time() - started:.0f}] {name} K={keys}: "
                + "  ".join(f"{s:.3f} {tuple(shape)}" for s, shape in found[:6]),
                flush=True,
            )
            (out / "tune_triton.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_all(int(sys.argv[2]), sys.argv[3])
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 28)
