"""Products of sets: one set for each input of a model that takes several, all of which may move at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.graph.input_layout import InputLayout
from vertex_softmax.sets.base import InputSet
from vertex_softmax.sets.product_region import product_of
from vertex_softmax.sets.region import Region


class Product(InputSet):
    """All tuples of one point of each set: the inputs of a model, each in its own set, whatever the others are.

    The sets are given as the model takes its inputs: by position, or by name (of an argument of `forward`, of an input
    of an ONNX file). All have the same batch size: input i of the batch is the tuple of their inputs i. An input that
    does not move has the set Box(x, x).

    A point of the product is one flat tensor: the numbers of the first set's point, then those of the second. So are
    `lower`, `centre`, `Certification.counterexamples` and so on, (batch, numbers); `split` gives the model's inputs.

        both = Product(LpBall(images, 0.5), text=LinfBall(vectors, 0.01))
        result = certify(model, both, labels)
        images, vectors = both.split(result.counterexamples)
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("lower", "upper", "sets", "layout")
    COMPOSED: ClassVar[bool] = True

    _sets: tuple[InputSet, ...]
    _layout: InputLayout

    def __init__(self, /, *sets: InputSet, **named: InputSet) -> None:
        given = [*((f"set {i}", each) for i, each in enumerate(sets)), *named.items()]
        if not given:
            raise InvalidValueError("a product needs a set for each input of the model; none was given")
        for name, each in given:
            _require_part(name, each)
        first, lead = given[0]
        for name, each in given:
            if len(each) != len(lead):
                raise InvalidValueError(
                    f"{first} holds {len(lead)} inputs and {name} {len(each)}; all sets of a product have the same "
                    "batch size"
                )
            if each.lower.device != lead.lower.device:
                raise InvalidValueError(
                    f"{first} is on {lead.lower.device} and {name} on {each.lower.device}; make them on one"
                )
        self._fill(tuple(each for _, each in given), (None,) * len(sets) + tuple(named))

    def _fill(self, sets: tuple[InputSet, ...], names: tuple[str | None, ...]) -> None:
        layout = InputLayout(tuple(each.shape[1:] for each in sets), names)
        lower, upper = (layout.join([end(each) for each in sets]) for end in (_lower, _upper))
        self._set(lower=lower, upper=upper, sets=sets, layout=layout)

    @property
    def sets(self) -> tuple[InputSet, ...]:
        """The sets, in the order in which their numbers are joined."""
        return self._sets

    @property
    def layout(self) -> InputLayout:
        """The shapes and the names of the inputs."""
        return self._layout

    @property
    def names(self) -> tuple[str | None, ...]:
        """The name of each input; None for those given by position."""
        return self._layout.names

    @property
    def centre(self) -> Tensor:
        """The centres of the sets, joined, (batch, numbers)."""
        return self._layout.join([each.centre for each in self._sets])

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Joined numbers (..., numbers) as the inputs of the model, (..., *input shape) each, in the sets' order."""
        return self._layout.split(x)

    def join(self, *inputs: Tensor) -> Tensor:
        """Inputs of the model, (..., *input shape) each, in the sets' order, as joined numbers (..., numbers)."""
        return self._layout.join(inputs)

    def _pick(self, index: Tensor) -> Product:
        picked = type(self).__new__(type(self))
        picked._fill(tuple(each.at(index) for each in self._sets), self.names)
        return picked

    def region(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Region:
        """The sets as bounds see them, rounded outward to a precision; each part with its own geometry."""
        size = self._layout.size
        if tuple(shape) not in ((size,), (1, size)):
            raise InvalidValueError(
                f"the product has {size} numbers, joined, but the network takes {tuple(shape)}; give the module or the "
                "ONNX file that takes the inputs, or a Graph of the joined numbers"
            )
        return product_of([each.region(each.shape[1:], dtype, device) for each in self._sets], shape)

    def contains(self, x: Tensor) -> Tensor:
        """Whether each x (batch, numbers) lies in its set, (batch) bool: each input in its own."""
        if tuple(x.shape) != self.shape:
            raise InvalidValueError(f"x has shape {tuple(x.shape)}; the set has {self.shape}")
        pairs = zip(self._sets, self.split(x), strict=True)
        return torch.stack([each.contains(own) for each, own in pairs]).all(0)

    def project(self, x: Tensor) -> Tensor:
        """Points of the sets near any points x, (batch, k, numbers) both: each input projected by its own set."""
        return self._by_parts(lambda each, own: each.project(own), x)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Random points of the sets, (batch, count, numbers); at odd places all inputs are on their rims."""
        return self._layout.join([each.sample(count, generator) for each in self._sets])

    def step(self, x: Tensor, gradient: Tensor, share: float) -> Tensor:
        """One step of an attack: every input by the step of its own set."""
        slopes = iter(self.split(gradient))
        return self._by_parts(lambda each, own: each.step(own, next(slopes), share), x)

    def _by_parts(self, change: Callable[[InputSet, Tensor], Tensor], x: Tensor) -> Tensor:
        return self._layout.join([change(each, own) for each, own in zip(self._sets, self.split(x), strict=True)])

    def _summary(self) -> str:
        named = zip(self.names, self._sets, strict=True)
        return " × ".join(f"{each!r}" if name is None else f"{name}: {each!r}" for name, each in named)


def _lower(given: InputSet) -> Tensor:
    return given.lower


def _upper(given: InputSet) -> Tensor:
    return given.upper


def _require_part(name: str, given: object) -> None:
    """Raise unless a set can be a part of a product."""
    if not isinstance(given, InputSet):
        raise InvalidTypeError(f"{name} is a {type(given).__name__}; give a set for each input, as Box or LpBall")
    if given.COMPOSED:
        raise InvalidTypeError(
            f"{name} is a {type(given).__name__}; give the sets of a product themselves, and in place of a product "
            "with a union the union of products"
        )
    if getattr(given, "ids", None) is not None:
        raise InvalidValueError(
            f"{name} is a {type(given).__name__} with token ids; in a product every input is numbers: give the module "
            "behind its embedding, and the embeddings without ids"
        )
