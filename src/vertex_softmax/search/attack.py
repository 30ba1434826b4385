"""Projected gradient descent on margins: upper bounds of what any verifier can prove, and counterexamples.

Invariant: every input returned lies in the set, without tolerance, and the margin returned with it is the network's
margin at that input, in floating point.

    found = pgd(model, LinfBall(images, 0.02, clip=(0, 1)), labels)
    found.margins                 # (batch, classes): the lowest logit[label] − logit[target] that was reached
    found.worst < 0               # which inputs are misclassified at found.counterexamples
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.foundation.precision import full_precision
from vertex_softmax.graph.ir import Graph
from vertex_softmax.sets import InputSet

Function: TypeAlias = Callable[[Tensor], Tensor]
ACROSS = 4.0
"""A step of this share of a set's radius goes through it, from wherever it begins."""
POINTS = 8192
"""The most points that go through the network at once; larger batches are handled in parts."""


@dataclass(frozen=True, eq=False)
class Attack:
    """The lowest margins reached: margins[i, t] = logit[label i] − logit[t] at inputs[i, t], a point of the set.

    +inf at t = label i and at classes that do not count. No sound lower bound of that margin over the set is above
    margins[i, t].
    """

    margins: Tensor
    """(batch, classes)"""
    inputs: Tensor
    """(batch, classes, *input shape); the centre of the set at the label"""

    @property
    def worst(self) -> Tensor:
        """The lowest margin over all targets, (batch,); below 0 if a misclassified input was found."""
        return self.margins.amin(1)

    @property
    def counterexamples(self) -> Tensor:
        """The inputs at which `worst` is reached, (batch, *input shape)."""
        return self.inputs[torch.arange(len(self.inputs), device=self.inputs.device), self.margins.argmin(1)]

    def __repr__(self) -> str:
        least = f", least margin {float(self.worst.amin()):.4g}" if self.margins.numel() else ""
        return f"Attack({int((self.worst < 0).sum())} of {len(self.margins)} inputs misclassified{least})"


# More than six parameters: a public signature, of which the last five are optional keywords.
@full_precision()
def pgd(
    model: Function | nn.Module | Graph,
    input_set: InputSet,
    label: int | Sequence[int] | Tensor,
    *,
    steps: int = 40,
    step_size: float | None = None,
    restarts: int = 4,
    seed: int = 0,
    targets: int | Sequence[int] | Tensor | None = None,
) -> Attack:
    """The lowest margins that projected gradient descent reaches in the set; the same seed gives the same result.

    model: any differentiable function of tensors (n, *input shape) to (n, classes), in float64; a module in another
    precision is copied into float64. label: one for all inputs, or one each. For every target class, `restarts` points
    (the centre, the point of the set against its gradient, then random points of the inside and of the rim alternately)
    take `steps` steps of the set (`InputSet.step`) that lower the margin to that target: signed gradient steps in a
    box. The set's steps begin at half of its radius and decrease to 0 along a cosine; with `step_size`, an absolute
    number, they are signed gradient steps of that size, projected. Every point visited counts for every target. The
    result of an input does not depend on the others in the batch, except for rounding.

    targets: the classes that count, one or (T) for all inputs, or (batch, T); None: all but the label.
    """
    for name, value, least in (("steps", steps, 0), ("restarts", restarts, 1)):
        if value < least:
            raise InvalidValueError(f"{name} is {value}; it must be at least {least}")
    if step_size is not None and not step_size > 0:
        raise InvalidValueError(f"step_size is {step_size!r}; it must be a number, more than 0")
    function = _function(model, input_set.lower.device)
    with torch.no_grad():
        logits = function(input_set.centre)
    labels = _labels(label, input_set, logits)
    aims = _targets(targets, labels, logits.shape[1])
    how = Descent(steps, restarts, step_size, seed)
    values, points = descended(function, input_set, labels, aims, how)
    margins = torch.full(logits.shape, torch.inf, dtype=torch.float64, device=labels.device).scatter(1, aims, values)
    inputs = input_set.centre[:, None].repeat(1, logits.shape[1], *[1] * (points.dim() - 2))
    inputs[torch.arange(len(inputs), device=aims.device)[:, None], aims] = points
    return Attack(margins, inputs)


@dataclass(frozen=True)
class Descent:
    """How long an attack descends, and from where."""

    steps: int = 40
    restarts: int = 4
    step_size: float | None = None
    seed: int = 0
    points: int = 0
    """the most points that go through the network at once, but for those of one input; 0: POINTS"""
    reach: float = 1.0
    """the set's steps are so many times as long"""
    until: float = math.inf
    """no further step from this time on, on the clock of time.perf_counter"""


def descended(
    function: Function, input_set: InputSet, labels: Tensor, targets: Tensor, how: Descent
) -> tuple[Tensor, Tensor]:
    """The lowest margins (batch, T) of the labels (batch) to the targets (batch, T), none of them the label.

    With them the points of the sets at which they were reached, (batch, T, *input shape).
    """
    if not len(input_set):
        return targets.double(), input_set.centre[:, None].repeat(
            1, targets.shape[1], *[1] * (len(input_set.shape) - 1)
        )
    margins, inputs, most = [], [], how.points or POINTS
    for part in torch.arange(len(input_set)).split(max(1, most // (how.restarts * max(1, targets.shape[1])))):
        search = _MarginDescent(function, input_set.at(part), labels[part], targets[part])
        search.descend(search.starts(how), how)
        margins.append(search.margins)
        inputs.append(search.inputs)
    return torch.cat(margins), torch.cat(inputs)


def descended_from(
    function: Function, input_set: InputSet, labels: Tensor, targets: Tensor, starts: Tensor, how: Descent
) -> tuple[Tensor, Tensor]:
    """The same from given points of the sets alone, (batch, points, *input shape), for every target."""
    search = _MarginDescent(function, input_set, labels, targets)
    search.descend(starts[:, None].expand(-1, targets.shape[1], *starts.shape[1:]), how)
    return search.margins, search.inputs


class _MarginDescent:
    """The lowest margins reached so far and the inputs at which they were; every point goes through `_visit`.

    Points are (batch, targets, points, *shape).
    """

    def __init__(self, function: Function, input_set: InputSet, labels: Tensor, targets: Tensor) -> None:
        self.function, self.input_set, self.labels, self.targets = function, input_set, labels, targets
        self.centre = input_set.centre
        self.margins = torch.full(targets.shape, torch.inf, dtype=torch.float64, device=labels.device)
        self.inputs = self.centre[:, None].repeat(1, targets.shape[1], *[1] * (self.centre.dim() - 1))

    def starts(self, how: Descent) -> Tensor:
        """The starting points, (batch, targets, restarts, *shape)."""
        count = self.targets.shape[1]
        centre = self.centre[:, None, None].expand(-1, count, -1, *self.centre.shape[1:])
        points = [centre]
        if how.restarts > 1:
            points.append(self._step(centre, self._visit(centre), ACROSS))
        if how.restarts > 2:
            random = self.input_set.sample(how.restarts, torch.Generator().manual_seed(how.seed))[:, None, 2:]
            points.append(random.expand(-1, count, *random.shape[2:]))
        return torch.cat(points, dim=2)

    def descend(self, x: Tensor, how: Descent) -> None:
        """Take steps from x (batch, targets, restarts, *shape), points of the sets."""
        for i in range(how.steps + 1):
            gradient = self._visit(x)
            if i == how.steps or time.perf_counter() >= how.until:
                return
            decay = 0.25 * (1 + torch.cos(torch.tensor(torch.pi * i / how.steps, dtype=torch.float64)).item())
            if how.step_size is None:
                x = self._step(x, gradient, how.reach * decay)
            else:
                away = (x - how.step_size * gradient.sign()).flatten(1, 2)
                x = self.input_set.project(away).reshape(x.shape)

    def _step(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """The set's step, of points and gradients (batch, targets, points, *shape)."""
        return self.input_set.step(x.flatten(1, 2), gradient.flatten(1, 2), share).reshape(x.shape)

    def _visit(self, x: Tensor) -> Tensor:
        """Record the margins at x (batch, targets, points, *shape); return the gradients of each point's own margin."""
        x = x.detach().requires_grad_()
        batch, targets, points = x.shape[:3]
        with torch.enable_grad():
            logits = self.function(x.flatten(0, 2)).reshape(batch, targets * points, -1)
            wanted = self.targets[:, None].expand(batch, targets * points, targets)
            margins = logits.gather(2, self.labels[:, None, None].expand(-1, targets * points, 1))
            margins = margins - logits.gather(2, wanted)
            own = torch.arange(targets, device=x.device)[:, None].expand(batch, targets, points).reshape(batch, -1, 1)
            total = margins.gather(2, own).sum()
            gradient = torch.autograd.grad(total, x, allow_unused=True)[0] if total.requires_grad else None
        lowest, point = margins.detach().nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).min(1)
        where = point.reshape(batch, targets, *[1] * (x.dim() - 3)).expand(-1, -1, *x.shape[3:])
        better = lowest < self.margins
        reached = x.detach().flatten(1, 2).gather(1, where)
        self.inputs = torch.where(better.reshape(*better.shape, *[1] * (x.dim() - 3)), reached, self.inputs)
        self.margins = torch.minimum(lowest, self.margins)
        return torch.zeros_like(x) if gradient is None else gradient.nan_to_num(nan=0.0)


def _function(model: Function | nn.Module | Graph, device: torch.device) -> Function:
    """The model as a function (n, *input shape) → (n, classes) in float64."""
    if isinstance(model, Graph):
        graph = model.to(torch.float64, device)
        return lambda x: graph.evaluate(x.reshape(len(x), *graph.input.shape)).flatten(1)
    if isinstance(model, nn.Module):
        if model.training:
            raise InvalidValueError(
                "the model is in train mode, where dropout and norms differ; call model.eval() first"
            )
        if any(p.is_floating_point() and p.dtype != torch.float64 for p in (*model.parameters(), *model.buffers())):
            return copy.deepcopy(model).double()
    return model


def _labels(label: int | Sequence[int] | Tensor, input_set: InputSet, logits: Tensor) -> Tensor:
    """The label of each input, (batch,); raises if labels or the network's logits at the centres are not valid."""
    batch = len(input_set)
    if logits.dim() != 2 or len(logits) != batch or logits.shape[1] < 2:
        raise InvalidValueError(
            f"the model gives {tuple(logits.shape)} for {batch} inputs; an attack needs logits (batch, classes)"
        )
    if logits.dtype != torch.float64:
        raise InvalidTypeError(f"the model gives {logits.dtype} for float64 inputs; convert it with .double()")
    if bool((bad := ~logits.isfinite().all(1)).any()):
        raise InvalidValueError(f"the model's logits at the centre of input {int(bad.nonzero()[0])} are not finite")
    found = torch.as_tensor(label, device=logits.device)
    if found.is_floating_point() or found.dtype == torch.bool:
        raise InvalidTypeError(f"label has dtype {str(found.dtype).removeprefix('torch.')}; labels are integers")
    if found.dim() > 1 or (found.dim() == 1 and len(found) not in {1, batch}):
        raise InvalidValueError(
            f"label has shape {tuple(found.shape)}; pass one label, or one for each of {batch} inputs"
        )
    found = found.long().expand(batch)
    if bool((wrong := (found < 0) | (found >= logits.shape[1])).any()):
        i = int(wrong.nonzero()[0])
        raise InvalidValueError(
            f"label {int(found[i])} of input {i} is not a class: they are 0 to {logits.shape[1] - 1}"
        )
    return found


def _targets(targets: int | Sequence[int] | Tensor | None, labels: Tensor, classes: int) -> Tensor:
    """The target classes of each input, (batch, T); raises if one is no class, or the label."""
    batch = len(labels)
    if targets is None:
        others = torch.arange(classes, device=labels.device).expand(batch, classes)
        return others[others != labels[:, None]].reshape(batch, classes - 1)
    found = torch.as_tensor(targets, device=labels.device)
    found = found.reshape(1) if found.dim() == 0 else found
    if found.is_floating_point() or found.dtype == torch.bool or found.dim() not in {1, 2} or 0 in found.shape[-1:]:
        raise InvalidValueError(f"targets is {targets!r}; give classes as integers, (T) or ({batch}, T), at least one")
    if found.dim() == 2 and len(found) != batch:
        raise InvalidValueError(f"targets has shape {tuple(found.shape)}; give ({batch}, T), a row for each input")
    found = found.long().expand(batch, -1)
    wrong = (found < 0) | (found >= classes) | (found == labels[:, None])
    if bool(wrong.any()):
        i, j = wrong.nonzero()[0].tolist()
        raise InvalidValueError(
            f"target {int(found[i, j])} of input {i} is its label or no class: they are 0 to {classes - 1}"
        )
    return found
