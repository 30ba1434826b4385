"""Which ε to ask about: three levels, from where an attack succeeds and from what a bound proves.

inside    certified: easy, and certainly robust
between   √(certified · attacked): open, and the harder the further apart the two are
outside   1.1 · attacked, times 1.1 again until the attack succeeds there: certainly not robust

`attacked` is the largest ε at which projected gradient descent fails, known to a factor of 1.1, and `certified` the
largest of attacked/2, attacked/4, attacked/8, … that our `crown` proves; of deep networks, whose bounds are dear, the
larger ones are not asked about (`Question.divisor`). ε is rounded to three digits, down inside and
up outside. Where nothing is certified there is no `inside`, and `between` is the last of those halves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vertex_lab.suite.family import Ends, Network, Question
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.runs.certify import certify
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import Box

PRECISION = 1.1
LEAST, MOST = 1e-7, 8.0
FIRST_FACTOR = 3.0
TRIES = 12
HALVES = 8
ATTACK = {"steps": 40, "restarts": 3, "seed": 0}


@dataclass(frozen=True)
class Level:
    """One ε of a question."""

    name: str
    eps: float | None
    certified: float | None = None
    attacked: float | None = None


def levels(graph: Graph, question: Question) -> list[Level]:
    """The levels of a question about a network in float64; one without ε if the question has a single box."""
    if question.around is None:
        return [Level("hull", None)]
    around = question.around

    def proved(eps: float) -> bool:
        how = Options(goal=0.0)
        return bool(
            certify(graph, box_of(graph, around(eps)), question.label, "crown", options=how, attack=None).certified[0]
        )

    def resists(eps: float) -> bool:
        return float(pgd(graph, box_of(graph, around(eps)), question.label, **ATTACK).worst[0]) > 0

    attacked = largest(resists, question.start)
    halves = [rounded(attacked / 2**k, math.floor) for k in range(1, HALVES + 1) if 2**k >= question.divisor]
    certified = next((eps for eps in halves if eps > 0 and proved(eps)), 0.0)
    found = [Level("inside", certified, certified, attacked)] if certified > 0 else []
    between = math.sqrt(certified * attacked) if certified > 0 else halves[-1]
    found.append(Level("between", rounded(between, round), certified, attacked))
    eps = PRECISION * attacked
    for _ in range(TRIES):
        if not resists(rounded(eps, math.ceil)):
            found.append(Level("outside", rounded(eps, math.ceil), certified, attacked))
            break
        eps *= PRECISION
    return [level for level in found if level.eps is not None and level.eps > 0]


def box_of(graph: Graph, ends: Ends) -> Box:
    """The set of one input in float64, (1, *input shape)."""
    lower, upper = (end.double().reshape(1, *graph.input.shape) for end in ends)
    return Box(lower, upper)


def rounded(eps: float, how: Callable[[float], int]) -> float:
    """Three significant digits."""
    if eps <= 0:
        return 0.0
    places = 2 - math.floor(math.log10(eps))
    return float(f"{how(eps * 10.0**places)}e{-places}")


def largest(holds: Callable[[float], bool], start: float, precision: float = PRECISION) -> float:
    """The largest ε tried for which `holds`, known to a factor of `precision`; 0 if not even LEAST does.

    Goes up or down from `start` by a factor and then bisects on a logarithmic scale.
    """
    low, high, eps = 0.0, math.inf, start
    while (low == 0.0 or high == math.inf) and LEAST <= eps <= MOST:
        if holds(eps):
            low, eps = eps, eps * FIRST_FACTOR
        else:
            high, eps = eps, eps / FIRST_FACTOR
    if low == 0.0 or high == math.inf:
        return low
    while high / low > precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def ends_of(question: Question, level: Level) -> Ends:
    """The box that is asked about, with ends that are float32 numbers and the centre between them."""
    if level.eps is None:
        if question.fixed is None:
            raise ValueError(f"{question.name} has neither an ε nor a box")
        lower, upper = question.fixed
    else:
        lower, upper = question.around(level.eps)  # type: ignore[misc]
    lower, upper, centre = lower.float(), upper.float(), question.centre.float()
    return torch.minimum(lower, centre), torch.maximum(upper, centre)


def correct(network: Network) -> list[str]:
    """The questions whose centre is not classified as they say: none, if the network was asked rightly."""
    with torch.no_grad():
        return [q.name for q in network.questions if int(network.module(q.centre[None]).argmax()) != q.label]
