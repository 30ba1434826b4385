#!/usr/bin/env bash
# On a CUDA machine: the GPU tests, the benchmark, and the launch shapes again. JSON and logs go to the given folder.
#   bash benchmarks/on_device.sh OUT            (needs torch, triton, pytest, hypothesis, python-flint, typer, rich)
set -uo pipefail
out=${1:?usage: on_device.sh OUT}
mkdir -p "$out"
export PYTHONPATH=src:tests${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 COLUMNS=150
timeout 170 python3 benchmarks/softmax_box.py --device cuda --out "$out" 2>&1 | tee "$out/bench.txt"
timeout 330 python3 -m pytest -m gpu tests/softmax_box/test_gpu.py -q -p no:cacheprovider -W ignore 2>&1 | tee "$out/tests.txt"
timeout ${TUNE:-60} python3 benchmarks/tune_triton.py "$out" 28 2>&1 | tee "$out/tune.txt"
