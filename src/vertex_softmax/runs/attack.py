"""`attack`: the lowest margins that projected gradient descent reaches, of a model as `certify` takes it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.runs.certification import in_order
from vertex_softmax.runs.classes import Asked
from vertex_softmax.runs.unions import best_of, members_of
from vertex_softmax.search.attack import Attack, pgd
from vertex_softmax.sets import InputSet
from vertex_softmax.sets.loading import Model, checked, read


# More than six parameters: a public signature, of which the last five are optional keywords.
@full_precision()
def attack(
    model: Model,
    input_set: InputSet,
    label: int | Sequence[int] | Tensor,
    *,
    targets: int | Sequence[int] | Tensor | None = None,
    position: int | None = None,
    steps: int = 40,
    restarts: int = 4,
    seed: int = 0,
) -> Attack:
    """The lowest margins reached in each set, and the points of the set at which they were; see `search.attack.pgd`.

    `model`, `input_set`, `label`, `targets` and `position` are those of `certify`. Every point lies in its set, without
    tolerance; the margins are the network's, in float64. A margin below 0 may be rounding: `certify` says `falsified`
    only of what is more.

        found = vx.attack(model, vx.LpBall(images, 0.5, p=2, clip=(0, 1)), labels)
        found.worst < 0, found.counterexamples
    """
    asked = Asked.of(label, targets, position, len(checked(input_set)))
    margins, inputs, order = [], [], []
    for group in read(model).groups(input_set):
        some, mine = input_set[list(group.which)], asked.at(list(group.which))
        home = some.lower.device
        graph = group.graph.to(torch.float64, home)
        classes = mine.classes(graph.output.shape, len(some), home)

        def logits(x: Tensor) -> Tensor:
            return classes.logits(graph.evaluate(x.reshape(len(x), *graph.input.shape)))  # noqa: B023

        how = {"steps": steps, "restarts": restarts, "seed": seed}
        members = members_of(some)
        found = best_of([pgd(logits, each, classes.labels, targets=classes.targets, **how) for each in members])
        margins.append(found.margins)
        inputs.append(found.inputs)
        order.append(group.which)
    return Attack(in_order(margins, order), in_order(inputs, order))
