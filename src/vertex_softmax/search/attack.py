"""Projected gradient descent on margins: upper bounds of what any verifier can prove, and counterexamples.

Invariant: every input returned lies in the set, without tolerance, and the margin returned with it is the network's
margin at that input, in floating point.

    found = pgd(model, LinfBall(images, 0.02, clip=(0, 1)), labels)
    found.margins                 # (batch, classes): the lowest logit[label] − logit[target] that was reached
    found.worst < 0               # which inputs are misclassified at found.counterexamples
"""

from __future__ import annotations

import copy
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
POINTS = 8192
"""The most points that go through the network at once; larger batches are handled in parts."""


@dataclass(frozen=True, eq=False)
class Attack:
    """The lowest margins reached: margins[i, t] = logit[label i] − logit[t] at inputs[i, t], a point of the set.

    +inf at t = label i. No sound lower bound of that margin over the set is above margins[i, t].
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


# More than six parameters: a public signature, of which the last four are optional keywords.
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
) -> Attack:
    """The lowest margins that projected gradient descent reaches in the set; the same seed gives the same result.

    model: any differentiable function of tensors (n, *input shape) to (n, classes), in float64; a module in another
    precision is copied into float64. label: one for all inputs, or one each. For every target class, `restarts` points
    (the centre, the corner against its gradient, then random points and random corners alternately) take `steps` signed
    gradient steps that lower the margin to that target, clamped to the set. step_size is absolute; None starts at half
    of each entry's radius and decreases to 0 along a cosine. Every point visited counts for every target. The result of
    an input does not depend on the others in the batch, except for rounding.
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
    classes = logits.shape[1]
    generator = torch.Generator().manual_seed(seed)
    shape = (restarts, *input_set.shape[1:])
    draws = torch.rand(shape, generator=generator, dtype=torch.float64).to(logits.device)
    margins, inputs = [], []
    for part in torch.arange(len(input_set)).split(max(1, POINTS // (restarts * (classes - 1)))):
        search = _MarginDescent(function, input_set.at(part), labels[part], classes)
        search.descend(search.starts(draws), steps, step_size)
        margins.append(search.margins)
        inputs.append(search.inputs)
    return Attack(torch.cat(margins), torch.cat(inputs))


class _MarginDescent:
    """The lowest margins reached so far and the inputs at which they were; every point goes through `_visit`.

    Points are (batch, targets, points, *shape), targets being the classes other than the label.
    """

    def __init__(self, function: Function, input_set: InputSet, labels: Tensor, classes: int) -> None:
        self.function, self.labels, self.classes = function, labels, classes
        self.lower, self.upper, self.centre = (
            x[:, None, None] for x in (input_set.lower, input_set.upper, input_set.centre)
        )
        batch = len(input_set)
        others = torch.arange(classes, device=labels.device).expand(batch, classes)
        self.targets = others[others != labels[:, None]].reshape(batch, classes - 1)
        self.margins = torch.full((batch, classes), torch.inf, dtype=torch.float64, device=labels.device)
        self.inputs = input_set.centre[:, None].repeat(1, classes, *[1] * (input_set.centre.dim() - 1))

    def starts(self, draws: Tensor) -> Tensor:
        """The starting points, (batch, targets, restarts, *shape), from random numbers (restarts, *shape) in [0, 1]."""
        centre = self.centre.expand(-1, self.classes - 1, -1, *self.centre.shape[3:])
        points = [centre]
        for i in range(1, len(draws)):
            if i == 1:
                gradient = self._visit(centre)
                points.append(torch.where(gradient > 0, self.lower, torch.where(gradient < 0, self.upper, centre)))
            elif i % 2 == 0:
                points.append((self.lower + draws[i] * (self.upper - self.lower)).expand_as(centre))
            else:
                points.append(torch.where(draws[i] < 0.5, self.lower, self.upper).expand_as(centre))
        return torch.cat(points, dim=2)

    def descend(self, x: Tensor, steps: int, step_size: float | None) -> None:
        """Take signed gradient steps from x (batch, targets, restarts, *shape)."""
        radius = (self.upper - self.lower) / 2
        for i in range(steps + 1):
            x = torch.minimum(torch.maximum(x, self.lower), self.upper)
            gradient = self._visit(x)
            decay = 0.25 * (1 + torch.cos(torch.tensor(torch.pi * i / max(steps, 1), dtype=torch.float64)).item())
            x = x - (decay * radius if step_size is None else step_size) * gradient.sign()

    def _visit(self, x: Tensor) -> Tensor:
        """Record the margins at x (batch, targets, points, *shape); return the gradients of each point's own margin."""
        x = x.detach().requires_grad_()
        batch, targets, points = x.shape[:3]
        with torch.enable_grad():
            logits = self.function(x.flatten(0, 2)).reshape(batch, targets * points, self.classes)
            margins = logits.gather(2, self.labels[:, None, None].expand(-1, targets * points, 1)) - logits
            own = self.targets[:, :, None].expand(batch, targets, points).reshape(batch, targets * points, 1)
            total = margins.gather(2, own).sum()
            gradient = torch.autograd.grad(total, x, allow_unused=True)[0] if total.requires_grad else None
        seen = margins.detach().scatter(2, self.labels[:, None, None].expand(-1, targets * points, 1), torch.inf)
        lowest, point = seen.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).min(1)
        where = point.reshape(batch, self.classes, *[1] * (x.dim() - 3)).expand(-1, -1, *x.shape[3:])
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
