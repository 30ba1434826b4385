"""The rows of an attention by every rule, over families of scores whose common part is much larger than the rest.

A family of scores gives two boxes, that of s and that of t = s − ω·s. Every member must obey the bound: exactly
minimised over the values, Σ p w ≥ a·s + m·w + B for whatever values the free parameters have.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.ops.cases import BATCH, generator
from tests.ops.checks import coefficients
from tests.slowly import few
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.attention.affine_row import AffineRow
from vertex_softmax.ops.attention.better_row import BetterRow
from vertex_softmax.ops.attention.lse_row import LseRow
from vertex_softmax.ops.attention.minorant import _pieces, centred_log_probabilities, minorant
from vertex_softmax.ops.attention.shared import shifted_box
from vertex_softmax.ops.attention.vertex_row import VertexRow
from vertex_softmax.ops.contract import CentredRows, Context, Relaxation
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.ops.softmax import MaskedSoftmax

TOLERANCE = 1e-12
N, K, D = 3, 4, 2
FAMILIES = ("common", "independent", "narrow", "wide", "far", "one up", "point", "offset")
MASKS = {
    "none": None,
    "key": torch.tensor([False, True, False, False]),
    "causal": torch.tensor([[False, True, True, True], [False, False, True, True], [False, False, False, True]]),
}


@dataclasses.dataclass(frozen=True)
class Family:
    """Scores (points, BATCH, N, keys), and what is known of them."""

    scores: Tensor
    weights: Tensor
    mask: Tensor | None

    @property
    def box(self) -> Interval:
        return Interval(self.scores.amin(0), self.scores.amax(0))

    @property
    def shifted(self) -> Tensor:
        return self.scores - (self.weights * self.scores).sum(-1, keepdim=True)

    @property
    def centred(self) -> CentredRows:
        return CentredRows(self.weights, Interval(self.shifted.amin(0), self.shifted.amax(0)))

    @property
    def log_p(self) -> Tensor:
        masked = self.scores if self.mask is None else self.scores.masked_fill(self.mask, -torch.inf)
        return masked.log_softmax(-1)


def family(kind: str, mask: Tensor | None = None, keys: int = K, seed: int = 0, points: int = 80) -> Family:
    g = generator(100 * FAMILIES.index(kind) + seed)

    def normal(*dims: int) -> Tensor:
        return torch.randn(*dims, generator=g, dtype=torch.float64)

    centre = 1.5 * normal(BATCH, N, keys)
    t = 2 * torch.rand(points, BATCH, N, keys, generator=g, dtype=torch.float64) - 1
    t[: points // 2] = torch.where(t[: points // 2] < 0, -1.0, 1.0)
    common = 2 * torch.rand(points, BATCH, N, 1, generator=g, dtype=torch.float64) - 1
    if kind == "common":
        scores = centre + 0.3 * t + 5 * common
    elif kind == "narrow":
        scores = centre + 1e-5 * t + 0.1 * common
    elif kind == "wide":
        scores = centre + 20 * t
    elif kind == "far":  # ω of the others is 0 or subnormal, and they stay there
        centre = torch.tensor([800.0, -800.0, 50.0, 0.0, 741.0])[:keys].double() + centre
        scores = centre + t + common
    elif kind == "one up":  # ω underflows for a key that comes up to the top
        centre = torch.tensor([500.0, -500.0, -300.0, 480.0])[:keys].double() + centre
        scores = centre + torch.where(torch.rand(t.shape, generator=g) < 0.4, 900.0, 1.0) * t
    elif kind == "point":
        scores = (centre + 0 * t).clone()
    elif kind == "offset":
        scores = 300 + centre + 0.5 * t + 30 * common
    else:
        scores = centre + t
    # ω as the op chooses it: softmax at the centre of the box
    weights = Attention(mask).centring_weights(0, Interval(scores.amin(0), scores.amax(0)))
    assert weights is not None
    return Family(scores, weights, mask)


def other_weights(found: Family, seed: int) -> Family:
    """Any distribution over the keys that are there is as sound; some have weight 0."""
    g = generator(seed)
    drawn = torch.rand(found.weights.shape, generator=g, dtype=torch.float64)
    drawn = torch.where(torch.rand(drawn.shape, generator=g) < 0.3, 0 * drawn, drawn)
    drawn[..., 0] += 0.1
    if found.mask is not None:
        drawn = drawn.masked_fill(found.mask, 0.0)
    return dataclasses.replace(found, weights=drawn / drawn.sum(-1, keepdim=True))


def values_box(keys: int, seed: int, wide: float = 1.0) -> Interval:
    g = generator(seed + 7)
    centre = torch.randn(BATCH, keys, D, generator=g, dtype=torch.float64)
    radius = wide * torch.rand(BATCH, keys, D, generator=g, dtype=torch.float64)
    return Interval(centre - radius, centre + radius)


def relax(found: Family, values: Interval, rules: Rules, centred: bool = True) -> Relaxation:
    known = (found.centred if centred else None, None)
    return Attention(found.mask).relax(Context(boxes=(found.box, values), rules=rules, centred=known))


def check_row(found: Family, values: Interval, relaxed: Relaxation, chosen: dict[str, Tensor] | None = None) -> None:
    """Σ A·out − a·s − m·w − B ≥ 0 at every member of the family, at the worst of all values in their box."""
    A = coefficients((N, D), 3)[:, :7]  # not those of all sizes at once
    step = (relaxed if chosen is None else relaxed.with_parameters(chosen)).backward(A)
    to_s, to_v = step.coefficients
    assert step.constant is not None
    assert not step.constant.isnan().any()
    p, s = found.log_p.exp().unsqueeze(2), found.scores.unsqueeze(2)
    slope = p.mT @ A - (0 if to_v is None else to_v)  # (points, BATCH, S, keys, D)
    low, high = (x.unsqueeze(1) for x in values)
    gap = torch.minimum(slope * low, slope * high).flatten(3).sum(-1) - step.constant
    most = torch.maximum(low.abs(), high.abs())
    size = (A.abs() @ most.mT).flatten(2).sum(-1) + step.constant.abs()
    size = size + (0 if to_v is None else (to_v.abs() * most).flatten(2).sum(-1))
    if to_s is not None:
        gap = gap - (to_s * s).flatten(3).sum(-1)
        size = size + (to_s.abs() * s.abs()).flatten(3).sum(-1)
    over = -gap - TOLERANCE * size
    assert (over <= 0).all(), (
        f"a row's bound is {float(over.max()):.3g} too high, {float((over / size).max()):.3g} of it"
    )


def drawn(relaxed: Relaxation, seed: int, silly: float, S: int = 7) -> dict[str, Tensor]:
    """Values of the free parameters far beyond where they are looked for; shares stay shares."""
    g = generator(seed + 31)
    chosen = {}
    for name, start in relaxed.parameters().items():
        full = start.expand(BATCH, S, *start.shape[2:])
        t = torch.rand(full.shape, generator=g, dtype=torch.float64)
        t = torch.where(torch.rand(full.shape, generator=g) < 0.3, t.round(), t)
        low, high, _ = relaxed.ranges[name]
        if name in {"weight", "mix"}:
            chosen[name] = t
        elif name == "place":
            chosen[name] = (t + silly * (t - 0.5)).clamp(-0.2, 1.2)
        else:
            chosen[name] = full + silly * (2 * t - 1) * max(abs(low), abs(high)) / 10
    return chosen


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_log_probabilities_from_centred_scores(kind: str, mask: str) -> None:
    check_log_probabilities(kind, MASKS[mask])


def check_log_probabilities(kind: str, mask: Tensor | None, keys: int = K) -> None:
    for seed in range(3):
        plain = family(kind, mask, keys, seed)
        for found in (plain, other_weights(plain, seed)):
            scores = MaskedSoftmax(mask).score_box(found.box)
            box = shifted_box(found.centred, scores)
            there = scores.upper > -torch.inf
            assert ((box.upper > -torch.inf) == there).all()
            assert ((box.lower == -torch.inf) == ~there).all()
            low, high, (least, most) = centred_log_probabilities(found.centred, box)
            log_p = found.log_p
            t = found.shifted if mask is None else found.shifted.masked_fill(mask, -torch.inf)
            lse = t.logsumexp(-1, keepdim=True)
            slack = TOLERANCE * (10 + found.scores.abs().amax(0).amax(-1, keepdim=True))
            assert (low[~there] == -torch.inf).all()
            for name, over in (
                ("lse too high", (lse - most - slack).amax()),
                ("lse too low", (least - lse - slack).amax()),
                ("log p too high", torch.where(there, log_p - high - slack, 0 * slack).amax()),
                ("log p too low", torch.where(there, low - log_p - slack, 0 * slack).amax()),
            ):
                assert over <= 0, f"{kind}: {name} by {float(over):.3g}"


def test_a_single_key() -> None:
    for kind in ("common", "wide", "point", "far"):
        check_log_probabilities(kind, None, keys=1)
        found = family(kind, keys=1)
        for rule in RowRule:
            rules = Rules(attention=rule, pieces=3, coupled=True)
            relaxed = relax(found, values_box(1, 0), rules)
            check_row(found, values_box(1, 0), relaxed)
            if rule in {RowRule.LSE, RowRule.AFFINE}:
                check_row(found, values_box(1, 0), relaxed, drawn(relaxed, 1, 3.0))


def test_centred_scores_are_worth_their_box() -> None:
    """Where the common part is large the ranges of log p are those of the rest, of second order beyond it."""
    found = family("common")
    low, high = (
        minorant(MaskedSoftmax().score_box(found.box)).log_low,
        minorant(MaskedSoftmax().score_box(found.box)).log_high,
    )
    tight = minorant(MaskedSoftmax().score_box(found.box), found.centred)
    assert (tight.log_high - tight.log_low <= high - low + 1e-12).all()
    assert float((tight.log_high - tight.log_low).mean()) < 0.3 * float((high - low).mean())


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_row_is_in_a_piece(kind: str, count: int) -> None:
    """All log p_j of one member lie in the ranges of one and the same piece."""
    for name, mask in MASKS.items():
        for centred in (False, True):
            found = family(kind, mask, seed=5)
            row = minorant(MaskedSoftmax(mask).score_box(found.box), found.centred if centred else None, count)
            low, high = (x.squeeze(1) for x in row.pieces)
            assert low.shape[-2] == count
            slack = TOLERANCE * (10 + found.scores.abs().amax())
            log_p = found.log_p.unsqueeze(-2)
            there = high > -torch.inf
            inside = ((log_p >= low - slack) & (log_p <= high + slack)) | ~there
            assert inside.all(-1).any(-1).all(), f"{kind} {name}: a member is in no piece"


def test_pieces_that_cross_are_kept() -> None:
    """Ends that rounding crossed change places; none becomes empty."""
    low = torch.tensor([[-1.0, -0.5]], dtype=torch.float64)
    sums = Interval(torch.tensor([[0.0]]).double(), torch.tensor([[-1e-9]]).double())
    found = _pieces(Interval(low, low - 1e-12), Interval(low, low), sums, 4)
    assert (found.lower <= found.upper).all()
    assert (found.upper - found.lower <= 1e-8).all()
    assert (found.lower <= (low - 1e-12).unsqueeze(-2)).all()  # both ends are still there
    assert (found.upper >= low.unsqueeze(-2)).all()
    assert found.lower.shape == (1, 4, 2)


@pytest.mark.parametrize("pieces", few(range(1, 7), lambda pieces: pieces in {1, 2, 6}))
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_affine_rule_whatever_its_parameters(kind: str, pieces: int) -> None:
    check_affine_rule(kind, pieces)


def check_affine_rule(kind: str, pieces: int = 1, masks: tuple[str, ...] = tuple(MASKS)) -> None:
    rules = Rules(attention=RowRule.AFFINE, pieces=pieces, coupled=True)
    for name in masks:
        plain = family(kind, MASKS[name], seed=pieces)
        for centred, found in ((False, plain), (True, plain), (True, other_weights(plain, 9))):
            for wide in (1.0, 0.0):
                values = values_box(K, pieces, wide)
                relaxed = relax(found, values, rules, centred)
                assert set(relaxed.parameters()) == {"place", "slope", "level", "weight"}
                check_row(found, values, relaxed)
                check_row(found, values, relaxed, {k: v.expand(-1, 7, *v.shape[2:]) for k, v in start(relaxed).items()})
                for silly in (0.1, 3.0, 300.0):
                    check_row(found, values, relaxed, drawn(relaxed, pieces, silly))


def start(relaxed: Relaxation) -> dict[str, Tensor]:
    return relaxed.parameters()


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_lse_rule_whatever_its_parameters(kind: str) -> None:
    check_lse_rule(kind)


def check_lse_rule(kind: str) -> None:
    for name, mask in MASKS.items():
        found = family(kind, mask, seed=3)
        for wide in (1.0, 0.0):
            values = values_box(K, 4, wide)
            relaxed = relax(found, values, Rules(attention=RowRule.LSE))
            assert set(start(relaxed)) == {"ratio", "tangent", "pivot", "mix"}, name
            check_row(found, values, relaxed)
            check_row(found, values, relaxed, {k: v.expand(-1, 7, *v.shape[2:]) for k, v in start(relaxed).items()})
            for silly in (0.1, 3.0, 30.0):
                check_row(found, values, relaxed, drawn(relaxed, 5, silly))


@pytest.mark.parametrize("rule", [RowRule.VERTEX, RowRule.BETTER])
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_other_rules_over_two_boxes(kind: str, rule: RowRule) -> None:
    for mask in MASKS.values():
        plain = family(kind, mask, seed=6)
        for found in (plain, other_weights(plain, 8)):
            values = values_box(K, 6)
            check_row(found, values, relax(found, values, Rules(attention=rule)))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_second_box_never_costs(kind: str) -> None:
    """The exact optimum over the better of two boxes is at least that over one."""
    found, values = family(kind, seed=7), values_box(K, 7)
    A = coefficients((N, D), 3)[:, :7]
    both, one = (
        relax(found, values, Rules(attention=RowRule.VERTEX), centred).backward(A).constant for centred in (True, False)
    )
    assert (both >= one).all()


def test_the_share_of_the_exact_optimum() -> None:
    """λ = 1 is section 6: the exact score-box optimum, never less over the values' box; λ = 0 is the affine rule."""
    found, values = family("independent", seed=8), values_box(K, 8)
    A = coefficients((N, D), 3)[:, :7]
    relaxed = relax(found, values, Rules(attention=RowRule.AFFINE, coupled=True), centred=False)
    chosen = {k: v.expand(-1, 7, *v.shape[2:]).clone() for k, v in start(relaxed).items()}
    plain = relaxed.with_parameters(chosen).backward(A)
    assert torch.allclose(plain.constant, relaxed.backward(A).constant, rtol=1e-9, atol=1e-9)
    chosen["weight"] = torch.ones_like(chosen["weight"])
    whole = relaxed.with_parameters(chosen).backward(A)
    assert (whole.coefficients[0] == 0).all()
    exact = relax(found, values, Rules(attention=RowRule.VERTEX), centred=False).backward(A).constant
    g = generator(12)
    for _ in range(20):
        t = torch.rand(values.lower.shape, generator=g, dtype=torch.float64)
        v = values.lower + t * (values.upper - values.lower)
        at_v = (whole.coefficients[1] * v.unsqueeze(1)).flatten(2).sum(-1) + whole.constant
        assert (at_v >= exact - 1e-9 * (1 + exact.abs())).all()


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (RowRule.LSE, LseRow),
        (RowRule.VERTEX, VertexRow),
        (RowRule.BETTER, BetterRow),
        (RowRule.AFFINE, AffineRow),
    ],
)
def test_every_rule_has_its_class(rule: RowRule, kind: type[Relaxation]) -> None:
    found = relax(family("common"), values_box(K, 1), Rules(attention=rule))
    assert type(found) is kind
    assert set(found.parameters()) <= set(found.ranges)
