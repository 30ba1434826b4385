"""Instances for `certify`: a torch network of two or more classes, an input set of one input, and the truth.

Invariant: the truth is known without any bound. EXACT: the least margins are attained at `witness`, by construction
(backs.py over features.py over openings.py), and the last shift puts the least of all at `distance` above or below 0.
HATS: `witness` is misclassified, by a hat over less than a millionth of the set; without the hat the network is robust.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vertex_lab.soundness import backs
from vertex_lab.soundness.features import FEATURES, Feature, Function, candidates
from vertex_lab.soundness.openings import Image, Opening, Tokens, opened
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.sets import InputSet

INPUTS = ("vision", "tokens")
BACKS = ("hull", "monotone")
DEPTHS = (1, 2, 3)
DISTANCES = (1e-1, 1e-2, 1e-3, 1e-5)
"""Of the least margin from 0, as a share of how far the margin was seen to range."""
LARGEST = 1e6
"""No output of theirs is larger."""
SEEN = 1000
"""Points at which a claimed minimum is compared with the network."""


class Key(NamedTuple):
    """What an instance is made from, with `made`; always the same one."""

    family: str
    """exact or hat"""
    opening: str
    """vision or tokens"""
    op: str
    """of FEATURES, or a layer of hats.LAYERS"""
    depth: int
    seed: int

    @property
    def name(self) -> str:
        """In one word."""
        return f"{self.family}-{self.opening}-{self.op}-{self.depth}-{self.seed}"

    def generator(self) -> torch.Generator:
        """Drawn from by all that is random in it."""
        number = 0
        for part in self:
            for letter in str(part):
                number = (number * 131 + ord(letter)) % (1 << 61)
        return torch.Generator().manual_seed(number)


@dataclasses.dataclass
class Network:
    """One instance; label 0."""

    key: Key
    module: nn.Module
    input_set: InputSet
    robust: bool
    margins: Tensor | None
    """(classes): the least margins, exactly but for rounding, inf at the label; None where they are not known"""
    witness: Tensor
    """(1, *input shape) of the set: where the least margin is, or a misclassified point"""
    facts: dict[str, object]

    def outputs(self, x: Tensor) -> Tensor:
        """The network as torch computes it in float64, at inputs (or embeddings) of the set."""
        with torch.no_grad():
            found: Tensor = self.module(x)
        return found


class Exact(nn.Module):
    """Opening, features, back, and logits (batch, 3) with the margins M + shift and M + shift + more."""

    feature: Feature

    def __init__(self, opening: Image | Tokens, op: str, back: nn.Module) -> None:
        super().__init__()
        self.opening, self.op, self.back = opening, op, back
        self.ends = nn.Parameter(torch.zeros(3, dtype=torch.float64), requires_grad=False)
        self.rows = nn.Parameter(torch.tensor([[0.75, -0.25, -0.25]], dtype=torch.float64), requires_grad=False)

    def features(self, x: Tensor) -> Tensor:
        """(batch, tokens, n)"""
        u: Tensor = self.opening(x)
        count = FEATURES[self.op].numbers
        return FEATURES[self.op].apply(u.reshape(*u.shape[:2], -1, count))

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        y: Tensor = self.back(self.features(x)) @ self.rows + self.ends
        return y


def exact(key: Key) -> Network:
    """A network whose least margins are known."""
    generator = key.generator()

    def pick(*choices: float) -> float:
        return choices[int(torch.randint(len(choices), (1,), generator=generator))]

    feature, kind = FEATURES[key.op], BACKS[(key.seed + key.depth) % 2]
    tokens, heads = int(pick(2, 3, 4)), int(pick(1, 2)) if feature.numbers < 3 else 1
    n = key.depth * heads if kind == "hull" else max(1, 4 // feature.numbers)
    opening = opened(key.opening, n * feature.numbers, tokens, pick(0.03, 0.1, 0.3), generator)
    opening.move(*_intervals(feature, opening, n, generator))
    low, high, points = _ranges(feature, opening, n)
    back: backs.Hull | backs.Monotone
    if kind == "hull":
        style = backs.STYLES[key.seed // 2 % len(backs.STYLES)]
        back = backs.Hull(key.depth, tokens, heads, style, _one_of(backs.GROWING, generator), generator)
    else:
        reach = float(torch.maximum(low.abs(), high.abs()).max())
        pool = "max" if pick(0, 1) else "mean"
        back = backs.Monotone(key.depth, tokens, n, reach, _one_of(backs.GROWING, generator), pool, generator)
    module = Exact(opening.module, key.op, back).double().eval()
    with torch.no_grad():
        up = back.corner(low, high)
        chosen = torch.where(up[..., None], points[1], points[0])  # (tokens, n, numbers)
        witness = opening.point(_shares(opening, chosen.reshape(tokens, -1)))
        _shift(key, module, opening, witness)
    facts: dict[str, object] = {"back": kind, "tokens": tokens, "features": n, "inputs": witness.numel()}
    return _checked(key, module, opening, witness, facts)


def _one_of(names: dict[str, Function], generator: torch.Generator) -> str:
    return list(names)[int(torch.randint(len(names), (1,), generator=generator))]


def _intervals(feature: Feature, opening: Opening, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Where the numbers, (tokens, n · numbers), are to move: within the feature's domain; as `alike` says."""
    low, high = feature.domain
    shape = (*opening.lower.shape[:1], n, feature.numbers)
    middle, width = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    radius = (0.05 + 0.3 * width) * (high - low) / 2
    centre = low + radius + middle * (high - low - 2 * radius)
    if feature.alike:
        centre[..., 1:], radius[..., 1:] = centre[..., :1], radius[..., :1]
        centre[..., :1] = centre[..., :1] + radius[..., :1] / 2
    return (centre - radius).flatten(1), (centre + radius).flatten(1)


def _ranges(feature: Feature, opening: Opening, n: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """The least and the greatest feature, (tokens, n) each, and the numbers (tokens, n, numbers) that give them."""
    lower, upper = (end.reshape(len(end), n, feature.numbers) for end in (opening.lower, opening.upper))
    points = candidates(feature, lower, upper)
    with torch.no_grad():
        values = feature.apply(points)
    found = []
    for best in (values.argmin(0), values.argmax(0)):
        index = best[None, ..., None].expand(1, *lower.shape)
        found.append((values.gather(0, best[None])[0], points.gather(0, index)[0]))
    return found[0][0], found[1][0], (found[0][1], found[1][1])


def _shares(opening: Opening, numbers: Tensor) -> Tensor:
    """Where in their intervals the numbers (tokens, m) are, 0 … 1."""
    width = opening.upper - opening.lower
    share = (numbers - opening.lower) / width.where(width > 0, 1.0)
    return torch.where(width > 0, share, 0.0).clamp(0, 1)


def _shift(key: Key, module: Exact, opening: Opening, witness: Tensor) -> None:
    """Put the least margin to class 1 at its distance from 0, that to class 2 farther; which side, the seed says."""
    M = module.back(module.features(_points(opening, key.generator(), 200)))
    least = float(module.back(module.features(witness)))
    spread = max(float(M.max()) - least, 1e-3)
    number = FEATURE_NUMBER[key.op]
    distance = DISTANCES[(key.seed + key.depth + number // 2) % len(DISTANCES)] * spread
    robust = (key.seed // len(DISTANCES) + number + INPUTS.index(key.opening)) % 2
    target = distance if robust else -distance
    module.ends.copy_(torch.tensor([target - least, 0.0, -0.5 * spread], dtype=torch.float64))


FEATURE_NUMBER = {name: i for i, name in enumerate(FEATURES)}


def _points(opening: Opening, generator: torch.Generator, count: int) -> Tensor:
    """(count, *input shape): corners and others of the set."""
    low, high = opening.input_set.lower, opening.input_set.upper
    t = torch.rand(count, *low.shape[1:], generator=generator, dtype=torch.float64)
    t[::2] = t[::2].round()
    return (low + t * (high - low)).clamp(low, high)


def _checked(key: Key, module: Exact, opening: Opening, witness: Tensor, facts: dict[str, object]) -> Network:
    """The instance, after a look: nothing seen is below the claimed minimum."""
    with torch.no_grad():
        outputs = module(witness)[0]
        margins = (outputs[0] - outputs).index_fill(0, torch.tensor([0]), torch.inf)
        seen = module(_points(opening, key.generator(), SEEN))
    least = (seen[:, :1] - seen)[:, 1:].amin(0)
    size = 1 + float(outputs.abs().max())
    fine = bool((least >= margins[1:] - 1e-9 * size).all()) and size < LARGEST
    if not fine or not bool(opening.input_set.contains(witness).all()):
        raise InternalError(f"{key.name}: the claimed least margins {margins.tolist()} are not; {least.tolist()} seen")
    facts = {**facts, "distance": float(margins.amin())}
    return Network(key, module, opening.input_set, bool(margins.amin() > 0), margins, witness, facts)


def made(key: Key) -> Network:
    """The instance of a key."""
    if key.family == "exact":
        return exact(key)
    from vertex_lab.soundness.hats import hat

    return hat(key)


def keys(seeds: int, first: int = 0) -> list[Key]:
    """All ops of each family at all depths, for images and tokens, for as many seeds."""
    from vertex_lab.soundness.hats import LAYERS

    places = list(itertools.product(range(first, first + seeds), DEPTHS, INPUTS))
    found = [Key("exact", opening, op, depth, seed) for seed, depth, opening in places for op in FEATURES]
    return found + [Key("hat", opening, op, depth, seed) for seed, depth, opening in places for op in LAYERS]


def rounding(network: Network) -> float:
    """How far a bound in float64 may be above the least margin and no one is to blame."""
    size = float(network.outputs(network.witness).abs().max())
    return 1e-9 * (1 + size) if math.isfinite(size) else math.inf
