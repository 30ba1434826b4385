"""How fast is the primitive? Against the paper's algorithm (sort, gather, cumulative sums) in plain torch, in one run.

Timings alternate between the two, and the reported ratio is the median of the paired ratios; seconds are the medians.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vertex_softmax import __version__, softmax_box_min
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.softmax_box import native, torch_backend

CPU_KEYS = (16, 64, 128, 512, 1024)
CUDA_KEYS = (32, 128, 512, 1024, 4096)
GROWTH_KEYS = tuple(1 << power for power in range(4, 17))
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Timing:
    """One size: medians in nanoseconds per entry (rows × keys), and ratios of paired runs."""

    device: str
    dtype: str
    keys: int
    entries: int
    sort_ns: float
    default_ns: float
    outward_ns: float
    fallback_ns: float
    speedup: float
    outward_ratio: float
    bandwidth_share: float | None
    extra_bytes: int | None


def sort_version(c: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Algorithm 1 as one would first write it in torch: sort, gather, four cumulative sums, K + 1 ratios."""
    shift = upper.amax(-1, keepdim=True)
    L, U = (lower - shift).exp(), (upper - shift).exp()
    c, order = c.sort(-1)
    L, U = L.gather(-1, order), U.gather(-1, order)
    zero = c.new_zeros((*c.shape[:-1], 1))

    def prefix(x: Tensor) -> Tensor:
        return torch.cat([zero, x.cumsum(-1)], -1)

    def suffix(x: Tensor) -> Tensor:
        return torch.cat([x.flip(-1).cumsum(-1).flip(-1), zero], -1)

    return ((prefix(c * U) + suffix(c * L)) / (prefix(U) + suffix(L))).amin(-1)


def boxes(rows: int, keys: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """The paper's random boxes: centre N(0, 1), radius 2·U(0, 1), coefficients N(0, 1); each (rows, keys)."""
    generator = torch.Generator(device=device).manual_seed(0)
    shape = (rows, keys)
    c = torch.randn(shape, generator=generator, dtype=dtype, device=device)
    centre = torch.randn(shape, generator=generator, dtype=dtype, device=device)
    radius = torch.rand(shape, generator=generator, dtype=dtype, device=device).mul_(2)
    return c, centre - radius, centre.add_(radius)


def _timed(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def time_size(keys: int, entries: int, dtype: torch.dtype, device: str, repeats: int, copy: float | None) -> Timing:
    """Time one size: sort, default, outward and the torch fallback, alternating."""
    c, lower, upper = boxes(max(1, entries // keys), keys, dtype, device)
    total = c.numel()
    calls: dict[str, Callable[[], object]] = {
        "sort": lambda: sort_version(c, lower, upper),
        "default": lambda: softmax_box_min(c, lower, upper),
        "outward": lambda: softmax_box_min(c, lower, upper, outward=True),
        "fallback": lambda: torch_backend.minimum(c, lower, upper, solver=torch_backend.newton),
    }
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(_timed(call, device))
    # the quick calls once more among themselves: their ratio should not carry the cache state the sort leaves behind
    pairs = [(_timed(calls["default"], device), _timed(calls["outward"], device)) for _ in range(3 * repeats)]
    median = {name: statistics.median(values) for name, values in seconds.items()}
    fast = min(median["default"], statistics.median(a for a, _ in pairs)) if device == "cuda" else median["default"]
    share = None if copy is None else 3 * total * c.element_size() / fast / copy
    return Timing(
        device=device,
        dtype=str(dtype).removeprefix("torch."),
        keys=keys,
        entries=total,
        sort_ns=median["sort"] / total * 1e9,
        default_ns=median["default"] / total * 1e9,
        outward_ns=median["outward"] / total * 1e9,
        fallback_ns=median["fallback"] / total * 1e9,
        speedup=statistics.median(a / b for a, b in zip(seconds["sort"], seconds["default"], strict=True)),
        outward_ratio=statistics.median(b / a for a, b in pairs),
        bandwidth_share=share,
        extra_bytes=_cuda_extra(c, lower, upper) if device == "cuda" else None,
    )


def _cuda_extra(c: Tensor, lower: Tensor, upper: Tensor) -> int:
    """Bytes the call allocates beyond its result."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = softmax_box_min(c, lower, upper)
    torch.cuda.synchronize()
    result = math.prod(out.shape) * c.element_size()
    return torch.cuda.max_memory_allocated() - before - result


def cuda_copy_bandwidth() -> float:
    """Bytes per second, read plus written, of a device-to-device copy of 4 GiB: the ceiling to compare with."""
    a = torch.empty(1 << 30, dtype=torch.float32, device="cuda").normal_()
    b = torch.empty_like(a)
    b.copy_(a)
    return 2 * a.numel() * 4 / statistics.median(_timed(lambda: b.copy_(a), "cuda") for _ in range(20))


MEMORY_PROBE = """
import sys, torch
from vertex_softmax import softmax_box_min
torch.set_num_threads(1)
def status(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1]) * 1024
keys, targets = int(sys.argv[1]), 9
rows = 4_000_000 // keys // targets
c = torch.zeros(targets, rows, keys, dtype=torch.float64).normal_()
lower = torch.zeros(rows, keys, dtype=torch.float64).normal_()
upper = lower + 1
softmax_box_min(c[:1, :1], lower[:1], upper[:1])
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
out = softmax_box_min(c, lower, upper)
print(max(0, status("VmHWM") - before - out.numel() * 8))
"""


def cpu_extra_bytes(keys: int) -> int | None:
    """Peak resident memory beyond the result, for 9 targets against one box each, in a fresh process (Linux only)."""
    if not sys.platform.startswith("linux"):
        return None
    found = subprocess.run([sys.executable, "-c", MEMORY_PROBE, str(keys)], capture_output=True, text=True, check=True)
    return int(found.stdout)


def growth(entries: int, repeats: int, progress: Progress) -> list[dict[str, float]]:
    """Nanoseconds per entry as K grows to 65,536: flat means linear."""
    found = []
    for keys in GROWTH_KEYS:
        progress(f"growth K = {keys}")
        c, lower, upper = boxes(max(1, entries // keys), keys, torch.float64, "cpu")
        row: dict[str, float] = {"keys": keys}
        for name in ("newton", "threshold"):
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                softmax_box_min(c, lower, upper, algorithm=name)
                times.append(time.perf_counter() - start)
            row[name] = min(times) / c.numel() * 1e9
        found.append(row)
    return found


def run(*, device: str, out: Path, quick: bool, progress: Progress) -> dict[str, Any]:
    """Run the benchmark on `device` ("cpu" with one thread, or "cuda") and save OUT/softmax-box-DEVICE.json."""
    if device not in {"cpu", "cuda"}:
        raise InvalidValueError(f"device is {device!r}; choose cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidValueError("device is 'cuda' but torch sees no CUDA device; use --device cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = _measure(device, quick, progress)
    finally:
        torch.set_num_threads(threads)
    write_whole(out / f"softmax-box-{device}.json", json.dumps(result, indent=1).encode())
    return result


def _measure(device: str, quick: bool, progress: Progress) -> dict[str, Any]:
    cuda = device == "cuda"
    copy = cuda_copy_bandwidth() if cuda else None
    entries = (1 << 24 if quick else 1 << 30) if cuda else (400_000 if quick else 4_000_000)
    timings = []
    for dtype in (torch.float32, torch.float64):
        if cuda and dtype == torch.float64:
            entries //= 2  # the same bytes: the sort version needs about six times the size of c, l and u
        for keys in CUDA_KEYS if cuda else CPU_KEYS:
            progress(f"{str(dtype).removeprefix('torch.')} K = {keys}")
            timings.append(time_size(keys, entries, dtype, device, 3 if quick else 5, copy))
    return {
        "benchmark": "softmax-box",
        "version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": torch.cuda.get_device_name() if cuda else _processor(),
        "kernel": "triton" if cuda else native.variant(),
        "threads": 1,
        "copy_bytes_per_second": copy,
        "timings": [asdict(timing) for timing in timings],
        "growth": [] if cuda else growth(entries, 1 if quick else 3, progress),
        "extra_bytes": {} if cuda else {keys: cpu_extra_bytes(keys) for keys in ((16, 128) if quick else CPU_KEYS)},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
