"""A counterexample to ibp_3_3_8_7894 of VNN-COMP 2023's `vit`, run by onnxruntime alone.

python lab/benchmarks/replay_7894.py --onnx ibp_3_3_8.onnx --vnnlib ibp_3_3_8_7894.vnnlib

The two files are public: benchmarks/vit of ChristopherBrix/vnncomp2023_benchmarks (unpack them first). The input is a
corner of the property's box: CORNER says for each of its 3072 numbers, by one bit, whether it is the upper end. Nothing
of Vertex is used. Prints the ends' check in exact arithmetic, Y_1, Y_9, and whether the property is violated.
"""

from __future__ import annotations

import argparse
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnxruntime

CORNER = (
    "1eff0000000f0f000000ef000002fe82001010c40000c2e60000e7c70000ffe700ffef0000c7ff0010c3ffc038e3ffc00b808080"
    "00000001308100833eff1eff0000000000000000ec000000e4ee0000ecfe011ffe44e33fffc4ffffceffff3f0000ffff1c00f8fe"
    "3f0000fc1ffe00f887fe7ef8ffe67f18ffe67e1bffff1013ffff0000ff030000ff010000ff1f0086ff7e00c6fffe00effffac2ef"
    "ffe8e5ef00e7c3ff10c3ffff38e3ffff38ffffff1bffe6fb19c080d339ffc7fb7fffffff00ffffff00ffff3fc0ffff1fc4ffff09"
    "c4ffff00ecfeff00ceffff190cffff1f1f40ffff3f0000ff1f0000f803fc00f803fe78f803007e1b01c07a1b00fc0203ffffffff"
    "ffdf8187ff00cd85ff04fec6fffefce6fffeffeffffeffefffffffff00c380e01081c0e01080e6e018c0e6e30180808100800001"
    "18c0c6033fffff030000ff00e000f300fc048300ec04c300ec04c300fe00e1007ec0e1007fece10003fefffc1ffcf8fc1fe800f8"
    "03fc00f803fc7c1001007c0300003c0300003801"
)
FOUND = re.compile(r"\(assert \((<=|>=) X_(\d+) ([^()\s]+)\)\)")


def ends(text: str) -> tuple[list[str], list[str]]:
    """The lower and the upper end of every number, as they are written."""
    found: dict[str, dict[int, str]] = {">=": {}, "<=": {}}
    for relation, place, value in FOUND.findall(text):
        found[relation][int(place)] = value
    lower, upper = ([side[i] for i in range(len(side))] for side in (found[">="], found["<="]))
    return lower, upper


def inside(end: str, *, up: bool) -> np.float32:
    """The float32 nearest to an end that does not lie outside."""
    value = np.float32(end)
    if up and Fraction(float(value)) > Fraction(end):
        return np.nextafter(value, np.float32(-np.inf))
    if not up and Fraction(float(value)) < Fraction(end):
        return np.nextafter(value, np.float32(np.inf))
    return value


def main() -> None:
    """Make the corner and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onnx", type=Path, required=True)
    parser.add_argument("--vnnlib", type=Path, required=True)
    options = parser.parse_args()
    lower, upper = ends(options.vnnlib.read_text())
    ups = np.unpackbits(np.frombuffer(bytes.fromhex(CORNER), dtype=np.uint8)).astype(bool)
    x = np.array([inside(high if up else low, up=bool(up)) for low, high, up in zip(lower, upper, ups, strict=True)])
    within = all(
        Fraction(low) <= Fraction(float(value)) <= Fraction(high)
        for low, value, high in zip(lower, x, upper, strict=True)
    )
    session = onnxruntime.InferenceSession(options.onnx)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.reshape(1, 3, 32, 32)})
    print(f"in the box: {within}; Y_1 {y[0, 1]:.7f}, Y_9 {y[0, 9]:.7f}; violated: {bool(y[0, 9] >= y[0, 1])}")


if __name__ == "__main__":
    main()
