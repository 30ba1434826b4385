"""Which relaxation an op uses where it has several. Every choice is sound; they differ in tightness and cost."""

from __future__ import annotations

import dataclasses
import functools
from enum import StrEnum

from vertex_softmax.foundation.errors import InvalidValueError


class RowRule(StrEnum):
    """How an attention row Σ_j p_j w_j is bounded (one class each in ops/attention)."""

    LSE = "lse"
    """linear bounds of softmax in the scores, McCormick for the product with the values: CROWN"""
    VERTEX = "vertex"
    """the exact minimum over the score box, a constant for each row: the paper's rule"""
    BETTER = "better"
    """for each row whichever of these two promises more"""
    AFFINE = "affine"
    """the affine vertex rule: an exact minorant for given slopes on scores and values (docs/method.md, section 7)"""


class ReluSlope(StrEnum):
    """The slope of the lower line of a ReLU whose sign is not decided."""

    ADAPTIVE = "adaptive"
    """1 if the upper end is farther from 0 than the lower end, else 0"""
    ZERO = "zero"
    ONE = "one"


@dataclasses.dataclass(frozen=True)
class Rules:
    """The relaxation of every kind of op in one backward pass."""

    attention: RowRule = RowRule.LSE
    pieces: int = 1
    """affine vertex rule: into how many pieces the range of lse(s) is cut, each with a multiplier of its own"""
    relu: ReluSlope = ReluSlope.ADAPTIVE
    product: float = 0.5
    """mix of McCormick's planes of Multiply and MatMul: 0.5 is the plane at the centre, 0 and 1 the corner planes"""
    coupled: bool = False
    """affine vertex rule: a share λ of each row, a free parameter, is left to the exact score-box optimum"""
    free: bool = False
    """the pass is part of an ascent: curved functions also prepare what their free slopes need"""
    parallel: bool = False
    """one linear function for both sides, with its error: what generators are made from"""
    sums: bool = False
    """bound functionals of rows with generators by the exact sums over their columns, where that is affordable"""
    exact: bool = True
    """bound functionals of affine values exactly even where that is expensive; else by an ellipsoid (ops/forms.py)"""
    balls: bool = True
    """rows over one ball that is no cube by the ball rule (ops/attention/ball_row.py), where it applies"""

    def __post_init__(self) -> None:
        for name, value, kind in (("attention", self.attention, RowRule), ("relu", self.relu, ReluSlope)):
            if not isinstance(value, kind):
                raise InvalidValueError(f"{name} is {value!r}; it is one of {kind.__name__}: {', '.join(kind)}")
        if self.pieces < 1:
            raise InvalidValueError(f"pieces is {self.pieces!r}; at least one is needed")
        if self.parallel and (self.product != 0.5 or self.attention != RowRule.AFFINE):
            raise InvalidValueError("parallel rules are those of attention='affine' and product=0.5; choose these")
        if self.parallel and (self.free or self.coupled):
            raise InvalidValueError("parallel rules have no free parameters; choose free=False and coupled=False")
        if not 0.0 <= self.product <= 1.0:
            raise InvalidValueError(f"product is {self.product!r}; it is a mix: choose a number from 0 to 1")


@functools.cache
def narrowed(rules: Rules, names: tuple[str, ...] | None) -> Rules:
    """Rules with every field but these at its default, so that rules that differ elsewhere are equal; None: all fields.

    Parallel rules are left as they are: their fields depend on each other.
    """
    if names is None or rules.parallel:
        return rules
    return Rules(**{name: getattr(rules, name) for name in names})
