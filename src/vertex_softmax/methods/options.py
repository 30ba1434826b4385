"""The options of methods: what may be done differently. The defaults are the tightest with one pass for each box."""

from __future__ import annotations

import dataclasses
import math
import numbers
from enum import StrEnum

from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError

MOST_ATTENTIONS_BY_PASSES = 3
"""Networks without norms get boxes by zonotopes if they have more attentions than this, unless the options say
otherwise."""


class ScoreBoxes(StrEnum):
    """How the boxes of attention scores are made."""

    PASS = "pass"  # noqa: S105
    """a backward pass for each score"""
    INTERVAL = "interval"
    """the product of the boxes of queries and keys"""


class PreactivationBoxes(StrEnum):
    """How the boxes of other nonlinearities' inputs are made."""

    PASS = "pass"  # noqa: S105
    """a backward pass for each number"""
    STREAM = "stream"
    """by intervals from a box of the residual stream, which has a pass of its own: the paper's H⁺"""


class Suffix(StrEnum):
    """The lower slopes of ReLUs, and other free parameters, in the last pass."""

    ADAPTIVE = "adaptive"
    BEST = "best"
    """the best of adaptive, 0 and 1, for each objective"""
    OPTIMISED = "optimised"
    """every free parameter of every row rule of the method is optimised (by `Options.ascent`)"""


class JointParts(StrEnum):
    """What `joint` computes besides its own boxes and passes."""

    ALL = "all"
    """`hybrid` and `alpha-crown` as well: their boxes are met, and the bound is at least as large as theirs"""
    OWN = "own"
    """nothing else, which is enough for a verdict within a short time"""


@dataclasses.dataclass(frozen=True)
class Options:
    """Variants of the methods, among them those of the paper; limits of time and memory; the goal."""

    scores: ScoreBoxes | str = ScoreBoxes.PASS
    preactivations: PreactivationBoxes | str = PreactivationBoxes.PASS
    suffix: Suffix | str = Suffix.ADAPTIVE
    product: float = 0.5
    """the McCormick mix of products (`Rules.product`): 0.5 is the tightest; 1 is what CROWN implementations use. In
    `joint`, generators, centred rows and optimised boxes (`box_ascent`) always use 0.5"""
    ascent: Ascent | None = dataclasses.field(default_factory=lambda: Ascent(trend=True))
    """the ascent on the free parameters of the last pass, in methods that optimise them; None: they keep their
    defaults"""
    centred: bool = True
    """`joint`: bound the scores less their weighted means too (docs/method.md, section 3, and 8.4)"""
    generators: bool = True
    """`joint`: generators and ellipsoids of what is not affine in the input (docs/method.md, section 8.2 and 8.3). All
    methods but `ibp`: zonotopes in networks with norms or many attentions (docs/norms.md). False: boxes by passes"""
    attentions_by_passes: int = MOST_ATTENTIONS_BY_PASSES
    """networks with more attentions than this, and those with norms, get boxes by zonotopes, which are quicker, and in
    deep networks tighter; `crown` uses them whenever there is more than one attention"""
    pieces: int = 2
    """the number of pieces into which the affine vertex rule cuts the range of lse(s), in the ascent"""
    box_ascent: Ascent | None = None
    """`joint`: optimise the boxes of undecided pre-activations too; None: do not"""
    goal: float | None = None
    """stop as soon as every bound is above this, or is known not to get there; 0 is enough for a verdict. None: compute
    the best bounds"""
    parts: JointParts | str = JointParts.ALL
    """`joint`: whether to run the other methods as well"""
    search: Search = dataclasses.field(default_factory=Search)
    """`bab`: limits and settings of branch and bound, for each input"""
    batch: int | None = None
    """how many inputs to bound together; None: 16 on a CPU, 256 on a GPU
    (1024 if it has much memory and the network no norms), and fewer if generators would be too large"""
    memory: Memory = dataclasses.field(default_factory=Memory)

    def __post_init__(self) -> None:
        kinds: dict[str, type[StrEnum]] = {
            "scores": ScoreBoxes,
            "preactivations": PreactivationBoxes,
            "suffix": Suffix,
            "parts": JointParts,
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value not in list(kind):
                raise InvalidValueError(f"{name} is {value!r}; choose one of {', '.join(kind)}")
            object.__setattr__(self, name, kind(value))
        objects: dict[str, type] = {"search": Search, "memory": Memory}
        for name, kind in objects.items():
            if not isinstance(value := getattr(self, name), kind):
                raise InvalidTypeError(f"{name} is a {type(value).__name__}; give a {kind.__module__}.{kind.__name__}")
        for name in ("ascent", "box_ascent"):
            if not isinstance(value := getattr(self, name), Ascent | None):
                raise InvalidTypeError(
                    f"{name} is a {type(value).__name__}; give an {Ascent.__module__}.Ascent or None"
                )
        if self.attentions_by_passes < 0:
            raise InvalidValueError(f"attentions_by_passes is {self.attentions_by_passes}; it must be at least 0")
        if self.pieces < 1:
            raise InvalidValueError(f"pieces is {self.pieces}; at least one is needed")
        if self.goal is not None and not isinstance(self.goal, numbers.Real):
            raise InvalidTypeError(f"goal is {self.goal!r}; give a number, or None for the best bounds")
        if self.goal is not None and math.isnan(self.goal):
            raise InvalidValueError("goal is NaN; give a number, or None for the best bounds")
        if self.batch is not None and self.batch < 1:
            raise InvalidValueError(f"batch is {self.batch}; at least one input is bounded at a time")
