"""Sets of combinations of words: what they hold, what they refuse, and the verdicts over them by enumeration."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.graph.models import TextClassifier, ready
from tests.slowly import few
from vertex_softmax import TokenChoices, bound, certify
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, VertexError
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.sets.loading import Loaded, read

pytestmark = pytest.mark.usefixtures("exported_once")
IDS = torch.tensor([[5, 6, 7, 8]])
CHOICES = {1: [6, 2, 3], 3: [1, 8], 0: [5, 9, 4]}


class Plain(nn.Module):
    """Embeddings, one attention without a mask, an MLP; nothing but the table reads the ids."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6)
        self.query, self.key, self.value, self.up, self.down = (nn.Linear(6, 6) for _ in range(5))
        self.head = nn.Linear(6, classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        x = x + self.down(torch.relu(self.up(x)))
        found: Tensor = self.head(x.mean(1))
        return found


@cache
def plain(seed: int = 0) -> Loaded:
    return read(ready(Plain(), seed))


@cache
def padded() -> Loaded:
    return read(ready(TextClassifier()))


def words(seed: int = 0) -> TokenChoices:
    return TokenChoices(plain(seed), IDS, CHOICES)


def every(some: TokenChoices) -> Tensor:
    return torch.cat(list(some.each(5)))


def test_the_set_is_that_of_all_combinations() -> None:
    some = words()
    assert some.combinations == (18,)
    assert some.choices == ({0: (5, 9, 4), 1: (6, 2, 3), 3: (8, 1)},)
    ids = every(some)
    assert ids.shape == (18, 4)
    assert len({tuple(row) for row in ids.tolist()}) == 18
    assert torch.equal(ids[0], IDS[0])
    points = some.look_up(ids[None])[0]
    assert torch.equal(points, plain().rows(ids))
    assert torch.equal(some.lower[0], points.amin(0))
    assert torch.equal(some.upper[0], points.amax(0))
    assert torch.equal(some.centre, plain().rows(IDS))
    assert all(bool(some.contains(point[None])) for point in points)
    assert "18 combinations" in repr(some)


def test_nothing_between_combinations_is_in_the_set() -> None:
    some = words()
    points = some.look_up(every(some)[None])[0]
    assert not bool(some.contains((points[:1] + points[-1:]) / 2))
    off = points[:1].clone()
    off[0, 2, 0] = torch.nextafter(off[0, 2, 0], torch.tensor(torch.inf, dtype=torch.float64))
    assert not bool(some.contains(off))
    assert not bool(some.contains(torch.full_like(off, torch.nan)))
    with pytest.raises(InvalidValueError, match="the set has"):
        some.contains(off[0])


def test_points_are_projected_sampled_and_moved_within_the_set() -> None:
    some = words()
    g = torch.Generator().manual_seed(0)
    ids = every(some)
    points = some.look_up(ids[None])
    assert torch.equal(some.ids_of(points)[0], ids)
    assert torch.equal(some.ids_of(points[:, 3]), ids[3:4])  # one point for each sentence, as in `counterexamples`
    assert some.ids_of(torch.full_like(points[:, 3], torch.nan)).tolist() == [[-1] * 4]
    near = points + 1e-3 * torch.randn(points.shape, generator=g, dtype=torch.float64)
    assert torch.equal(some.project(near), points)
    drawn = some.sample(200, g)
    assert all(bool(some.contains(drawn[:, j])) for j in range(200))
    assert len({tuple(row) for row in some.ids_of(drawn)[0].tolist()}) == 18
    gradient = torch.randn(points.shape, generator=g, dtype=torch.float64)
    moved = some.step(points, gradient, 1.0)
    values = torch.einsum("ptd,ntd->pn", gradient[0], points[0])
    least = values.amin(1)
    torch.testing.assert_close((gradient * moved)[0].flatten(1).sum(1), least, rtol=1e-12, atol=1e-12)
    one = some.step(points, gradient, 0.01)
    assert all(bool(some.contains(one[:, j])) for j in range(18))
    changed = (some.ids_of(one) != some.ids_of(points)).sum(-1)
    assert int(changed.max()) == 1
    far = torch.where(changed[0] > 0, (gradient * (one - points))[0].flatten(1).sum(1), torch.zeros(18).double())
    assert bool((far <= 0).all())


def test_a_batch_of_sentences_has_a_mapping_for_each() -> None:
    ids = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
    some = TokenChoices(plain(), ids, [{1: [6, 2]}, {0: [7, 1, 8], 2: [3, 9]}])
    assert some.combinations == (2, 6)
    assert some[1].combinations == (6,)
    assert torch.equal(every(some[1])[0], ids[1])
    found = certify(plain(), some, [0, 1], "bab")
    for i, label in enumerate((0, 1)):
        alone = certify(plain(), some[i], label, "bab")
        assert found.verdicts[i] == alone.verdicts[0]
    with pytest.raises(InvalidValueError, match="mappings of choices is 2, and there are"):
        TokenChoices(plain(), IDS, [{}, {}])
    with pytest.raises(InvalidValueError, match=r"choices\[1\]\[0\] does not have the word itself, id 1"):
        TokenChoices(plain(), ids, [{}, {0: [7]}])
    with pytest.raises(InvalidValueError, match="enumerate one at a time"):
        next(some.each())


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({1: [2, 3]}, r"choices\[1\] does not have the word itself, id 6"),
        ({1: []}, r"choices\[1\] is empty; give at least the word itself"),
        ({1: [6, 2, 2]}, r"choices\[1\] has the id 2 twice"),
        ({4: [6]}, "position 4; there are 4 tokens"),
        ({-1: [8]}, "position -1"),
        ({1: [6, 12]}, "id 12 at token 1 is not in the table"),
        ({1: [6, -2]}, r"choices\[1\] is -2"),
        ({1: [6, 2.5]}, "ids are integers"),
        ({"1": [6]}, "positions are integers"),
        ({True: [6]}, "positions are integers"),
        ([1, 2], "a mapping from positions"),
        (None, "a mapping from positions"),
    ],
)
def test_what_is_wrong_is_said(choices: object, message: str) -> None:
    with pytest.raises(VertexError, match=message):
        TokenChoices(plain(), IDS, choices)  # type: ignore[arg-type]


def test_ids_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"use ids\[None\]"):
        TokenChoices(plain(), IDS[0], {})
    with pytest.raises(InvalidTypeError, match="ids are integers"):
        TokenChoices(plain(), IDS.double(), {})
    assert TokenChoices(plain(), IDS.numpy(), {1: np.array([6, 2])}).combinations == (2,)


@pytest.mark.parametrize("seed", range(8))
def test_verdicts_are_those_of_enumeration(seed: int) -> None:
    some, module = words(seed), ready(Plain(), seed)
    with torch.no_grad():
        logits = module(every(some))
    for label in range(3):
        margins = (logits[:, label : label + 1] - logits)[:, [c for c in range(3) if c != label]].amin(1)
        found = certify(plain(seed), some, label, "bab")
        assert found.verdict == ("verified" if float(margins.min()) > 0 else "falsified")
        if found.verdict == "verified":
            assert float(found.worst) <= float(margins.min()) + 1e-9
        else:
            point = found.counterexamples[:1]
            assert bool(some.contains(point))
            ids = some.ids_of(point[None])[0]
            with torch.no_grad():
                assert int(module(ids).argmax()) != label
            assert "misclassified" in found.reasons[0]


@pytest.mark.parametrize(
    ("method", "seed"),
    few(itertools.product(METHODS, range(3)), lambda method, seed: seed == 0 or method in ("ibp", "crown", "vertex")),
)
def test_every_method_bounds_all_combinations(method: str, seed: int) -> None:
    some = words(seed)
    with torch.no_grad():
        logits = ready(Plain(), seed)(every(some))
    found = bound(plain(seed), some, method)
    assert bool((logits >= found.lower - 1e-9).all() & (logits <= found.upper + 1e-9).all())
    least = (logits[:, :1] - logits)[:, 1:].amin(0)
    assert bool((certify(plain(seed), some, 0, method).lower[0, 1:] <= least + 1e-9).all())


def test_ids_that_are_read_elsewhere_too_are_refused_where_that_matters() -> None:
    ids = torch.tensor([[3, 1, 4, 5, 9]])
    fine = TokenChoices(padded(), ids, {1: [1, 2], 3: [5, 6, 7]})
    with torch.no_grad():
        logits = ready(TextClassifier())(torch.cat(list(fine.each())))
    label = int(logits[0].argmax())
    found = certify(padded(), fine, label, "bab")
    right = bool((logits.argmax(1) == label).all())
    assert found.verdict == ("verified" if right else "falsified")
    masked = TokenChoices(padded(), ids, {1: [1, 2], 3: [5, 0, 7]})  # 0 is padding
    with pytest.raises(InvalidValueError, match="reads its ids elsewhere"):
        certify(padded(), masked, label, "ibp")


class Secret(Plain):
    """Turns its answer round at one combination of ids, which no embedding shows."""

    rule = "pair"

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = super().forward(ids)
        if self.rule == "pair":  # comparisons of single ids, joined
            odd = (ids == 2).any(1) & (ids == 4).any(1)
        elif self.rule == "sum":  # not even that
            odd = ids.sum(1) == 22
        elif self.rule == "self":  # ids with each other
            odd = (ids[:, :1] > ids[:, 1:2]).any(1)
        else:  # harmless: no choice is 11
            odd = (ids == 11).any(1)
        return torch.where(odd[:, None], -found, found)


@pytest.mark.parametrize("rule", ["pair", "sum", "self", "none"])
def test_a_module_that_hides_a_rule_about_ids_is_refused(rule: str) -> None:
    model = ready(Secret(), 1)
    model.rule = rule
    some = TokenChoices(model, IDS, CHOICES)
    with torch.no_grad():
        logits = model(every(some))
    label = int(logits[0].argmax())
    if rule == "none":
        assert certify(model, some, label, "bab").verdict in ("verified", "falsified")
        return
    with pytest.raises(InvalidValueError, match=r"reads its ids elsewhere|uses its ids in"):
        certify(model, some, label, "bab")


def test_a_precision_that_does_not_hold_the_embeddings_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"float32 does not hold the embeddings"):
        certify(plain(), words(), 0, "crown", dtype=torch.float32)
    single = ready(Plain(), 0).float()
    assert certify(single, TokenChoices(single, IDS, CHOICES), 0, "crown", dtype=torch.float32).verdict in (
        "verified",
        "unknown",
        "falsified",
    )


def test_certificates_of_all_combinations() -> None:
    """Accepted by the checker, about choices, and only where every combination is right."""
    proved = 0
    for seed in range(6):
        some, module = words(seed), ready(Plain(), seed)
        with torch.no_grad():
            logits = module(every(some))
        for label in range(3):
            margins = (logits[:, label : label + 1] - logits)[:, [c for c in range(3) if c != label]].amin(1)
            found = certify(plain(seed), some, label, "bab", certificate=True)
            if found.certificates[0] is not None:
                proved += 1
                checked = found.certificates[0].check()
                assert checked.accepted
                assert float(margins.min()) >= checked.margin - 1e-9
                assert "choices" in checked.statement or "vectors" in checked.statement
    assert proved


@pytest.mark.parametrize("method", few(METHODS, lambda method: method in ("crown", "joint")))
def test_a_sentence_without_choices_is_a_point(method: str) -> None:
    for model, ids in ((plain(), IDS), (padded(), torch.tensor([[3, 1, 4, 5, 9]]))):
        alone = TokenChoices(model, ids, {})
        assert alone.combinations == (1,)
        assert torch.equal(torch.cat(list(alone.each())), ids)
        original = ready(Plain(), 0) if model is plain() else ready(TextClassifier())
        with torch.no_grad():
            label = int(original(ids).argmax())
        assert certify(model, alone, label, method).verdict == "verified"
        assert certify(model, alone, 1 - min(label, 1), method).verdict == "falsified"
