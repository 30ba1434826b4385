#!/usr/bin/env bash
# On a CUDA machine: the benchmark, the GPU tests, and the launch shapes again. JSON and logs go to the given folder.
#   bash lab/benchmarks/on_device.sh OUT            (needs torch, triton, pytest, hypothesis, python-flint, typer, rich)
set -uo pipefail
out=${1:?usage: on_device.sh OUT}
mkdir -p "$out"
export PYTHONPATH=src:lab:.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 COLUMNS=150
# Ten minutes in all. With Triton's cache empty the tests compile over 300 kernels, about a second each.
timeout 120 python3 lab/benchmarks/softmax_box.py --device cuda --out "$out" 2>&1 | tee "$out/bench.txt"
timeout 420 python3 -m pytest -m gpu tests/softmax_box/test_gpu.py -o faulthandler_timeout=60 --durations=15 -p no:cacheprovider -W ignore 2>&1 | tee "$out/tests.txt"
timeout "${TUNE:-60}" python3 lab/benchmarks/tune_triton.py "$out" 28 2>&1 | tee "$out/tune.txt"
