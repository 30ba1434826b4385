"""Files and what they say, for the tests of VNNLIB."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import numpy as np

from vertex_softmax.specs.property import Inequality, Property
from vertex_softmax.specs.vnnlib import read_vnnlib

F = Fraction


def text(*asserted: str, inputs: int = 2, outputs: int = 3, box: bool = True) -> str:
    """A file that declares, bounds every input by 0 and 1, and asserts; the first assertion is on line 8."""
    lines = [f"(declare-const X_{i} Real)" for i in range(inputs)]
    lines += [f"(declare-const Y_{k} Real)" for k in range(outputs)]
    if box:
        lines += [f"(assert (>= X_{i} 0)) (assert (<= X_{i} 1))" for i in range(inputs)]
    return "\n".join([*lines, *asserted]) + "\n"


def read(*asserted: str, **made_with: int) -> Property:
    return read_vnnlib(text(*asserted, **made_with).encode())


def only(spec: Property) -> Inequality:
    """The one inequality of a property that has one."""
    ((inequality,),) = [c.inequalities for case in spec.cases for c in case.conjunctions]
    return inequality


def same(a: Property, b: Property) -> bool:
    ends = ("lower", "upper", "inner_lower", "inner_upper")
    return (a.inputs, a.outputs, len(a.cases)) == (b.inputs, b.outputs, len(b.cases)) and all(
        c.conjunctions == d.conjunctions and all(np.array_equal(getattr(c, e), getattr(d, e)) for e in ends)
        for c, d in zip(a.cases, b.cases, strict=True)
    )


UP, DOWN, LARGEST = math.inf, -math.inf, sys.float_info.max


MORE = "0.1000000000000000056"  # more than that float, which is nearest to it too
