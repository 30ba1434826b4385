"""Input sets: what they contain, exactly; and what they refuse."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, VertexError
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import Box, InputSet, LinfBall, TokenBall
from vertex_softmax.sets.region import BoxRegion
from vertex_softmax.sets.rounding import outward

MODERATE = st.floats(-1e12, 1e12) | st.floats(-2, 2) | st.floats(allow_nan=False, allow_infinity=False, width=16)


def images(batch: int = 3) -> torch.Tensor:
    return torch.rand(batch, 1, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# --- what they contain ---


@given(MODERATE, st.floats(0, 1e6) | st.floats(0, 1e-6))
def test_the_real_ball_is_contained_and_no_more_than_a_float_is_added(x, eps) -> None:
    ball = LinfBall(torch.tensor([[x]], dtype=torch.float64), eps)
    low, high = ball.lower.item(), ball.upper.item()
    real_low, real_high = Fraction(x) - Fraction(eps), Fraction(x) + Fraction(eps)
    assert Fraction(low) <= real_low
    assert Fraction(high) >= real_high
    assert Fraction(np.nextafter(low, np.inf).item()) > real_low  # the largest float that will do
    assert Fraction(np.nextafter(high, -np.inf).item()) < real_high


def test_rounding_to_nearest_would_not_do() -> None:
    x, eps = 0.7, 0.1
    assert Fraction(x - eps) > Fraction(x) - Fraction(eps)  # why the end has to move
    assert LinfBall(np.array([[x]]), eps).lower.item() == np.nextafter(x - eps, -np.inf)


def test_a_radius_that_is_no_float_is_rounded_up() -> None:
    for eps in (Fraction(1, 3), Fraction(2, 3), 2**60 + 1, 2**60 - 1):
        ball = LinfBall(np.zeros((1, 1)), eps)
        assert Fraction(ball.lower.item()) <= -eps
        assert Fraction(ball.upper.item()) >= eps


def test_clip_is_exact() -> None:
    ball = LinfBall(torch.tensor([[0.0, 0.05, 0.95, 1.0]], dtype=torch.float64), 0.1, clip=(0, 1))
    assert ball.lower[0, :2].tolist() == [0.0, 0.0]
    assert ball.upper[0, 2:].tolist() == [1.0, 1.0]
    assert ball.clip == (0.0, 1.0)


def test_eps_zero_is_the_point() -> None:
    x = images()
    ball = LinfBall(x, 0)
    assert torch.equal(ball.lower, x)
    assert torch.equal(ball.upper, x)


def test_eps_for_each_image_and_for_each_entry() -> None:
    x = images()
    each = LinfBall(x, torch.tensor([0.0, 0.1, 0.2]))
    for i, eps in enumerate((0.0, 0.1, 0.2)):
        assert torch.equal(each.lower[i : i + 1], LinfBall(x[i : i + 1], float(np.float32(eps))).lower)
    assert (LinfBall(x, torch.full((2, 2), 0.5)).upper - x).max() <= 0.5000001
    assert LinfBall(torch.zeros(2, 2), torch.tensor([0.0, 1.0])).upper.tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_an_end_in_single_precision_is_the_nearest_that_is_not_inside() -> None:
    values = [0.1, -0.1, 0.5, 0.0, 1 + 2.0**-40, -1 - 2.0**-40, 1e-50, -1e-50, 1e300, -1e300, 3.0]
    x = torch.tensor(values, dtype=torch.float64)
    assert torch.equal(outward(x, torch.float64, -torch.inf), x)
    for way in (-torch.inf, torch.inf):
        found = outward(x, torch.float32, way)
        assert found.dtype == torch.float32
        back = torch.nextafter(found, torch.full_like(found, -way)).double()
        sign = 1 if way > 0 else -1
        assert (sign * found.double() >= sign * x).all()
        assert (sign * back < sign * x).all()


def test_float32_is_taken_at_its_exact_value() -> None:
    x = np.array([[0.1]], dtype=np.float32)
    ball = LinfBall(x, 0.0)
    assert ball.lower.dtype == torch.float64
    assert ball.lower.item() == float(x[0, 0])


def test_a_set_is_a_copy_without_gradients() -> None:
    low = torch.zeros(1, 2, dtype=torch.float64)
    high = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    array = np.full((1, 2), 0.5)
    box, ball = Box(low, high), LinfBall(array, 0.25)
    low += 7
    array += 7
    assert box.lower.tolist() == [[0.0, 0.0]]
    assert ball.x.tolist() == [[0.5, 0.5]]
    assert not box.upper.requires_grad
    with pytest.raises(AttributeError):
        box.lower = low  # type: ignore[misc]


def test_the_centre_is_inside() -> None:
    huge = np.finfo(np.float64).max
    box = Box(np.array([[-huge, 1.0, 5e-324]]), np.array([[huge, 1.0, 5e-324]]))
    assert box.centre.tolist() == [[0.0, 1.0, 5e-324]]
    assert torch.equal(LinfBall(images(), 0.3, (0, 1)).centre, images())


def test_contains_has_no_tolerance() -> None:
    ball = LinfBall(images(), 0.125, (0, 1))
    assert ball.contains(ball.lower).all()
    assert ball.contains(ball.upper).all()
    outside = ball.upper.clone()
    outside[1, 0, 0, 1] = np.nextafter(outside[1, 0, 0, 1].item(), np.inf)
    outside[2, 0, 0, 0] = torch.nan
    assert ball.contains(outside).tolist() == [True, False, False]
    with pytest.raises(InvalidValueError, match="has shape"):
        ball.contains(torch.zeros(3, 2))


# --- tokens ---


def test_only_the_chosen_tokens_move() -> None:
    e = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ball = TokenBall(e, 0.5, tokens=[0, -1])
    moved = (ball.upper > ball.lower).all(-1)
    assert moved.tolist() == [[True, False, False, True]] * 2
    assert torch.equal(ball.tokens, moved)
    assert torch.equal(ball.lower[:, 1:3], e[:, 1:3])
    assert torch.equal(ball.centre, e)
    assert TokenBall(e, 0.5).tokens.all()
    mask = torch.tensor([[True, False, False, False], [False, True, False, False]])
    assert torch.equal((TokenBall(e, 0.5, mask).upper > e).all(-1), mask)
    assert torch.equal(TokenBall(e, 0.5, mask[0]).tokens, mask[:1].expand(2, 4))
    assert not TokenBall(e, 0.5, []).tokens.any()


def test_ids_are_carried() -> None:
    ids = np.array([[1, 2], [3, 4]])
    ball = TokenBall(np.zeros((2, 2, 3)), 0.1, ids=ids)
    assert ball.ids is not None
    assert ball[1].ids.tolist() == [[3, 4]]


# --- sub-batches ---


EVERY = [
    Box(images() - 1, images()),
    LinfBall(images(), torch.tensor([0.1, 0.2, 0.3]), (0, 1)),
    TokenBall(images()[:, 0], 0.1, tokens=[1], ids=torch.arange(6).reshape(3, 2)),
]


@pytest.mark.parametrize("whole", EVERY)
@pytest.mark.parametrize(
    ("index", "which"),
    [
        (1, [1]),
        (np.int64(2), [2]),
        (-1, [2]),
        (slice(0, 2), [0, 1]),
        (slice(None, None, -1), [2, 1, 0]),
        ([2, 0], [2, 0]),
        ([], []),
        (torch.tensor([True, False, True]), [0, 2]),
        (torch.tensor(1), [1]),
    ],
)
def test_a_part_of_the_batch(whole: InputSet, index, which) -> None:
    part = whole[index]
    assert type(part) is type(whole)
    assert len(part) == len(which)
    assert torch.equal(part.lower, whole.lower[which])
    assert torch.equal(part.upper, whole.upper[which])
    assert torch.equal(part.centre, whole.centre[which])


def test_iteration_gives_each_input_once() -> None:
    whole = LinfBall(images(), 0.1)
    assert torch.equal(torch.cat([one.lower for one in whole]), whole.lower)


@pytest.mark.parametrize("index", [3, -4, [0, 3], torch.tensor([True, False])])
def test_an_index_out_of_range(index) -> None:
    with pytest.raises(InvalidValueError, match="the set holds 3 inputs"):
        LinfBall(images(), 0.1).at(index)


# --- what they refuse ---

X = np.zeros((2, 3))
E = np.zeros((2, 3, 4))
NAN = np.where(np.arange(6).reshape(2, 3) == 4, np.nan, 0.0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Box(X.astype(np.int64), X), InvalidTypeError, r"lower has dtype int64.*/ 255"),
        (lambda: LinfBall(X.astype(np.uint8), 0.1), InvalidTypeError, r"x has dtype uint8.*/ 255"),
        (lambda: LinfBall(torch.zeros(2, 3, dtype=torch.float16), 0.1), InvalidTypeError, "x has dtype float16"),
        (lambda: LinfBall(X.astype(np.complex128), 0.1), InvalidTypeError, "x has dtype complex128"),
        (lambda: LinfBall([["a"]], 0.1), InvalidTypeError, "x has dtype <U1"),
        (lambda: LinfBall([[1.0], [1.0, 2.0]], 0.1), InvalidTypeError, "cannot be read as an array"),
        (lambda: LinfBall(np.ma.array(X), 0.1), InvalidTypeError, "masked array"),
        (lambda: LinfBall(torch.zeros(2, 3, device="meta"), 0.1), InvalidTypeError, "meta"),
        (lambda: Box(X, NAN), InvalidValueError, r"upper is nan at index \(1, 1\)"),
        (lambda: Box(X - np.inf, X), InvalidValueError, r"lower is -inf at index \(0, 0\)"),
        (lambda: Box(X + np.eye(2, 3), X), InvalidValueError, r"lower > upper at index \(0, 0\): 1.0 > 0.0; swap"),
        (lambda: Box(X, X[:, :2]), InvalidValueError, r"lower has shape \(2, 3\), upper \(2, 2\)"),
        (lambda: Box(X[0], X[0]), InvalidValueError, r"lower has shape \(3,\).*lower\[None\]"),
        (lambda: LinfBall(np.zeros((2, 0)), 0.1), InvalidValueError, "without entries"),
        (lambda: LinfBall(X, -0.1), InvalidValueError, "eps is -0.1; a radius is"),
        (lambda: LinfBall(X, np.array([0.1, -0.2])), InvalidValueError, r"eps is -0.2 at index \(1, 0\)"),
        (lambda: LinfBall(X, float("nan")), InvalidValueError, "eps is nan; an input set"),
        (lambda: LinfBall(X, "8/255"), InvalidTypeError, r"eps has dtype <U5 \(text\); pass real numbers"),
        (lambda: LinfBall(X.astype(np.int64), 0.1), InvalidTypeError, "around token ids make a TokenBall"),
        (lambda: TokenBall(E, 0.1, ids={"input_ids": X}), InvalidTypeError, "ids is a dict; give its 'input_ids'"),
        (lambda: LinfBall(X, 10**400), InvalidValueError, "eps is beyond the largest float64; choose a smaller one"),
        (lambda: LinfBall(X, Fraction(10**400, 3)), InvalidValueError, "eps is beyond the largest float64"),
        (lambda: LinfBall(X, 0.1, clip=(0, 10**400)), InvalidValueError, "an end of clip is beyond the largest"),
        (lambda: TokenBall(E, 10**400), InvalidValueError, "eps is beyond the largest float64"),
        (lambda: LinfBall(X, True), InvalidTypeError, "eps has dtype bool"),
        (lambda: LinfBall(X, np.zeros(5)), InvalidValueError, r"eps has shape \(5,\).*one per input \(2\)"),
        (lambda: LinfBall(X + 1e308, 1.7e308), InvalidValueError, r"x ± eps overflows at index \(0, 0\)"),
        (lambda: LinfBall(X, 0.1, clip=(1, 0)), InvalidValueError, r"clip is \(1, 0\); its lower end"),
        (lambda: LinfBall(X, 0.1, clip=(0, float("nan"))), InvalidValueError, "neither is NaN"),
        (lambda: LinfBall(X, 0.1, clip=3), InvalidTypeError, "clip is 3; pass two numbers"),
        (lambda: LinfBall(X + 1.5, 0.1, clip=(0, 1)), InvalidValueError, r"x is 1.5 at index \(0, 0\), outside clip"),
        (lambda: TokenBall(X, 0.1), InvalidValueError, r"it must be \(batch, tokens, d\)"),
        (lambda: TokenBall(E, 0.1, tokens=[0, 3]), InvalidValueError, r"tokens\[1\] is 3, out of range: there are 3"),
        (lambda: TokenBall(E, 0.1, tokens=[-4]), InvalidValueError, r"tokens\[0\] is -4"),
        (lambda: TokenBall(E, 0.1, tokens=[0.5]), InvalidTypeError, "tokens has dtype float64"),
        (lambda: TokenBall(E, 0.1, tokens=[True, False]), InvalidValueError, r"a mask of shape \(2,\)"),
        (lambda: TokenBall(E, 0.1, ids=X), InvalidTypeError, "ids are integers"),
        (lambda: TokenBall(E, 0.1, ids=np.zeros((2, 4), int)), InvalidValueError, r"need \(2, 3\)"),
    ],
)
def test_refused(make, error, message) -> None:
    with pytest.raises(error, match=message) as caught:
        make()
    assert isinstance(caught.value, VertexError)


def test_reprs_are_short_and_say_what_matters() -> None:
    x = torch.rand(3, 4, 16)
    assert repr(LinfBall(x, 0.02, (0, 1))) == "LinfBall(3 inputs of 4×16, eps 0.02, clip 0 … 1)"
    assert repr(LinfBall(x, torch.tensor([0.1, 0.2, 0.3]))[:2]) == "LinfBall(2 inputs of 4×16, eps 0.1 … 0.2)"
    assert repr(Box(torch.zeros(1, 5), torch.ones(1, 5))) == "Box(1 input of 5, widths 1)"
    ball = TokenBall(x, 0.5, torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]).bool())
    assert repr(ball) == "TokenBall(3 inputs of 4×16, eps 0.5, 1 … 4 of 4 tokens move)"
    assert repr(LinfBall(x[:0], 0.1)) == "LinfBall(0 inputs of 4×16, eps –)"


# --- a set stays what it says it is ---


@pytest.mark.parametrize("whole", EVERY)
def test_nothing_that_is_read_from_a_set_can_be_changed_in_it(whole: InputSet) -> None:
    inside, said = whole.contains(whole.upper), repr(whole)
    for name in (*whole.FIELDS, "centre"):
        value = getattr(whole, name)
        if isinstance(value, torch.Tensor):
            before = value.clone()
            value.zero_()
            assert torch.equal(getattr(whole, name), before)
        with pytest.raises(AttributeError):
            object.__setattr__(whole, name, value)
        with pytest.raises(AttributeError):
            delattr(whole, name)
    assert torch.equal(whole.contains(whole.upper), inside)
    assert repr(whole) == said


class Wider(LinfBall):
    """A ball with wider ends than its x and eps say."""

    def __init__(self, x: torch.Tensor, eps: float, more: float) -> None:
        super().__init__(x, eps)
        self._set(lower=self.lower - more, upper=self.upper + more)


class Cube(LinfBall):
    """Bounds see another set than the ball."""

    def region(self, shape, dtype, device) -> BoxRegion:  # type: ignore[no-untyped-def]
        return BoxRegion(*(torch.full((len(self), *shape), end, dtype=dtype, device=device) for end in (-1.0, 1.0)))


class Named(LinfBall):
    """A ball with something more for each input."""

    def __init__(self, x: torch.Tensor, eps: float, names: list[str]) -> None:
        super().__init__(x, eps)
        self._set(names=names)


def test_selected_inputs_keep_the_type_and_the_ends_of_a_subclass() -> None:
    whole = Wider(images(), 0.1, 1.0)
    for part, which in ((whole[1], [1]), (whole[[2, 0]], [2, 0])):
        assert type(part) is Wider
        assert torch.equal(part.lower, whole.lower[which])
        assert torch.equal(part.upper, whole.upper[which])
    assert type(Cube(images(), 0.1)[0]) is Cube
    with pytest.raises(InvalidTypeError, match=r"Named has the attribute 'names' of its own.*_pick\(index\)"):
        Named(images(), 0.1, ["a", "b", "c"])[0]


def test_an_answer_is_about_the_set_that_was_given() -> None:
    model = torch.nn.Linear(2, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    x = torch.zeros(1, 2)
    assert certify(model, LinfBall(x, 0.1), 0, "crown").verdict == "verified"
    for wide in (Wider(x, 0.1, 1.0), Cube(x, 0.1)):
        assert certify(model, wide, 0, "crown").verdict in ("falsified", "unknown")
        assert certify(model, wide, 0, "crown", attack=None).verdict == "unknown"
    with pytest.raises(InvalidValueError, match="centre of input 0 is not in its set"):
        certify(model, Wider(x, 0.1, -0.5), 0, "crown")
