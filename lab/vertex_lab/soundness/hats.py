"""Networks that are robust but for a hat: a counterexample that fills less than a millionth of the set.

Invariant: the witness is a point of the set and is misclassified by a clear margin; without the hat the network is
proved robust by `hybrid`. So only the hat breaks it, and a verifier that says `verified` has lost the hat.

The network below the hat is `depth` blocks of attention and one layer of the fuzzer's (fuzz/layers.py), over patches of
an image or embedded tokens; the radius is halved until it is robust. The hat is relu(1 − k Σ|x − x°|) over three to
five entries of the input (or a minimum or product of tents), so that its gradient is 0 almost everywhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vertex_lab.fuzz.build import module_of
from vertex_lab.fuzz.recipe import ACTIVATIONS, ATTENTIONS, MOVES, NORMS, SAFE, Layer
from vertex_lab.soundness.networks import Key, Network
from vertex_lab.soundness.openings import PATCH, WORDS
from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import InputSet, LinfBall, TokenBall
from vertex_softmax.sets.loading import read

LAYERS: dict[str, Layer] = {
    **{f"activation-{kind}": {"op": "activation", "kind": kind} for kind in ACTIVATIONS},
    **{f"safe-{kind}": {"op": "safe", "kind": kind} for kind in SAFE if kind != "logsoftmax"},
    **{f"norm-{kind}": {"op": "norm", "kind": kind, "eps": 1e-3, "affine": True} for kind in NORMS},
    **{f"attention-{kind}": {"op": "attention", "style": kind} for kind in ATTENTIONS},
    **{f"move-{kind}": {"op": "move", "kind": kind} for kind in MOVES},
}
"""One layer of each kind; log(softmax) is not imported."""
SHARE = 1e-6
"""Of the set, the most that a hat may cover."""
STEEP = 256.0
"""Of the hat: it is 0 where an entry is a 256th of the set's radius away."""
CLEAR = 0.25
"""The margin by which the witness is misclassified, in parts of the largest margin at the centre."""
HALVINGS = 30
WIDTH = 4


class Hatted(nn.Module):
    """net(x) − height · hat(x) at output 0; ids are embedded first, where there are any."""

    spot: Tensor
    places: Tensor

    def __init__(self, net: nn.Module, embedding: nn.Embedding | None, first: int) -> None:
        super().__init__()
        self.net, self.embedding, self.form = net, embedding, 0
        self.slope, self.height = 1.0, 0.0
        self.register_buffer("spot", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("places", torch.zeros(0, dtype=torch.long))
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        """The logits; the label's is the first."""
        if self.embedding is not None and not x.is_floating_point():
            x = self.embedding(x)
        y: Tensor = self.net(x)
        y = torch.cat([y[:, self.first :], y[:, : self.first]], dim=1)
        if self.height == 0:
            return y
        drop = self.height * self.hat(x)
        return torch.cat([y[:, :1] - drop, y[:, 1:]], dim=1)

    def hat(self, x: Tensor) -> Tensor:
        """(batch, 1): 1 at the spot, 0 where any entry is 1 / slope away from it."""
        far = (x.flatten(1)[:, self.places] - self.spot).abs()
        if self.form == 0:
            return torch.relu(1 - self.slope * far.sum(1, keepdim=True))
        tents = torch.relu(1 - self.slope * far)
        if self.form == 1:
            return tents.amin(1, keepdim=True)
        found = tents[:, :1]
        for i in range(1, tents.shape[1]):
            found = found * tents[:, i : i + 1]
        return found


def hat(key: Key) -> Network:
    """A network that is robust but for its hat."""
    generator = key.generator()

    def draw(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    tokens = 2 + draw(3)
    tokens += tokens == 3 and key.opening == "vision"
    net = _net(key, tokens)
    if key.opening == "vision":
        module = Hatted(net, None, 0)
        point = torch.rand(1, 1, 2 * PATCH, tokens // 2 * PATCH, generator=generator, dtype=torch.float64)
        ids = None
    else:
        embedding = nn.Embedding(WORDS, WIDTH, dtype=torch.float64)
        with torch.no_grad():
            embedding.weight.copy_(torch.randn(WORDS, WIDTH, generator=generator, dtype=torch.float64))
        module, ids = Hatted(net, embedding, 0), torch.randint(WORDS, (1, tokens), generator=generator)
        point = embedding(ids).detach()
    module.double().eval()
    with torch.no_grad():
        module.first = int(module(point).argmax())
    input_set = _radius(key, module, point, ids)
    facts: dict[str, object] = {"tokens": tokens, "eps": float((input_set.upper - input_set.lower).max()) / 2}
    return _planted(key, module, input_set, generator, facts)


def _net(key: Key, tokens: int) -> nn.Module:
    """`depth` blocks of attention with a residual, then the layer, in float64."""
    number = key.generator().initial_seed() % (1 << 30)

    def weights(i: int) -> Layer:
        return {"seed": (number + 7919 * i) % (1 << 30), "scale": 1.0}

    kinds: Layer = {"style": "sdpa", "heads": 1 + key.seed % 2, "mask": ("none", "causal")[key.seed // 2 % 2]}
    layers: list[Layer] = []
    if key.opening == "vision":
        layers.append({"op": "patches", "out": WIDTH, "size": PATCH, "norm": False, **weights(0)})
    for i in range(key.depth):
        layer = {**kinds, **LAYERS[key.op], **weights(2 * i + 1), "loud": 1.0, "residual": True}
        if layer["op"] != "attention":
            layers.append({"op": "attention", **kinds, **weights(2 * i + 2), "loud": 1.0, "residual": True})
            if i + 1 < key.depth:  # some layers change the shape, and most are wild when repeated
                continue
        layers.append(layer)
    shape = [1, 2 * PATCH, tokens // 2 * PATCH] if key.opening == "vision" else [tokens, WIDTH]
    recipe = {"input": shape, "layers": layers, "pool": "mean", "head": True, "classes": 3, "seed": number}
    return module_of(recipe).double()


def _set(key: Key, point: Tensor, eps: float, ids: Tensor | None) -> InputSet:
    if ids is None:
        return LinfBall(point, eps, clip=(0.0, 1.0))
    return TokenBall(point, eps, tokens=[key.seed % ids.shape[1], (key.seed + 1) % ids.shape[1]], ids=ids)


def _radius(key: Key, module: Hatted, point: Tensor, ids: Tensor | None) -> InputSet:
    """The first of 0.2, 0.1, 0.05 … at which the network without a hat is proved robust."""
    model = read(module)
    for i in range(HALVINGS):
        input_set = _set(key, point, 0.2 * 2.0**-i, ids)
        if (
            certify(model, input_set, 0, "hybrid", options=Options(goal=0.0), attack=None).verdicts[0]
            == Verdict.VERIFIED
        ):
            return input_set
    raise InternalError(f"{key.name}: without a hat the network is not proved robust, however small the set")


def _away(module: Hatted, input_set: InputSet) -> Tensor:
    """(1, *input shape): 1 where the margins grow with the input, at the corner that an attack goes away from."""
    x = input_set.centre.clone().requires_grad_()
    with torch.enable_grad():
        y = module(x)
        (gradient,) = torch.autograd.grad((y[:, :1] - y).sum(), x)
    return (gradient > 0).double()


def _planted(
    key: Key, module: Hatted, input_set: InputSet, generator: torch.Generator, facts: dict[str, object]
) -> Network:
    """Put the hat at a point of the set that the seed gives, so high that this point is misclassified."""
    low, high = input_set.lower.flatten(), input_set.upper.flatten()
    moving = (high > low).nonzero()[:, 0]
    corner = key.seed % 4 == 1
    count = 5 if corner else 3 + int(torch.randint(3, (1,), generator=generator))
    places = moving[torch.randperm(len(moving), generator=generator)[:count]].sort().values
    t = torch.rand(len(places), generator=generator, dtype=torch.float64)
    t = _away(module, input_set).flatten()[places] if corner else 0.1 + 0.8 * t
    low, high = low[places], high[places]
    witness = input_set.centre.clone()
    witness.view(-1)[places] = module.spot = (low + t * (high - low)).clamp(low, high)
    radius = float((high - low).min()) / 2
    module.places, module.form, module.slope = places, key.seed % 3, STEEP / radius
    with torch.no_grad():
        centre, there = module(input_set.centre)[0], module(witness)[0]
        module.height = float(there[0] - there[1:].max() + CLEAR * (centre[0] - centre[1:].min()))
        outputs = module(witness)[0]
    share = STEEP ** -len(places) / (math.factorial(len(places)) if module.form == 0 else 1)
    if not bool(outputs[0] < outputs[1:].max()) or share > SHARE:
        raise InternalError(f"{key.name}: the hat is none: {outputs.tolist()}, {share}")
    return Network(key, module, input_set, False, None, witness, {**facts, "share": share, "form": module.form})
