"""What Vertex says of a family, and what its module itself gives at points of the set.

Invariant: `reached` is the least margin of the module's own output, in its own precision, at points of the set; a bound
above it is wrong.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import torch

import vertex_softmax as vx
from vertex_lab.families import hugging_face, timm_models
from vertex_lab.families.family import Family, Question

FAMILIES: tuple[Family, ...] = (*hugging_face.FAMILIES, *timm_models.FAMILIES)
METHOD, POINTS = "crown", 24


@dataclasses.dataclass(frozen=True)
class Answer:
    """The verdict of a family's question, the bound of its margin, and the least margin at points of the set."""

    verdict: str
    bound: float
    reached: float


def available(family: Family) -> bool:
    """Whether the library of a family is installed."""
    return importlib.util.find_spec(family.library) is not None


def answer(family: Family) -> Answer:
    """Certify the family's question, then run its module at points of the set."""
    question = family.make()
    label = question.label
    found = vx.certify(question.model, question.inputs, label, METHOD, position=question.position)
    return Answer(str(found.verdict), float(found.worst[0]), _least_margin(question, int(label)))


def _least_margin(question: Question, label: int) -> float:
    """The least margin of the label at random points of the set, half of them on its rim, by the module itself."""
    inputs = question.inputs
    points = inputs.sample(POINTS, torch.Generator().manual_seed(1))[0]
    least = float("inf")
    for point in points:
        values = question.model.outputs(inputs, (1, *point.shape), point[None, None])
        if values is None:
            raise TypeError("the model is no module")
        scores = values[0, 0] if question.position is None else values[0, 0, question.position]
        others = torch.cat([scores[:label], scores[label + 1 :]])
        least = min(least, float(scores[label] - others.max()))
    return least
