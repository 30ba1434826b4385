"""The op contract as code. Each check raises AssertionError with the worst violation; the mutants must not pass them.

Tolerance: TOLERANCE times the size of the terms added up, Σ|A|·(largest |output|, or the terms it is made of) +
Σ|A_i|·(largest |x_i|), in the op's precision. Nothing is tolerated beyond that in the unsound direction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from tests.ops.cases import BATCH, Case, boxes, generator, points
from vertex_softmax.bounds.coefficients import Coefficients
from vertex_softmax.ops.contract import AffineForm, Context, Op, Relaxation, Step
from vertex_softmax.ops.fields import moved
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules

TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-5}
Forms = tuple[AffineForm | None, ...]


def context(box: tuple[Interval, ...], rules: Rules = Rules(), forms: Forms | None = None) -> Context:  # noqa: B008
    return Context(boxes=box, rules=rules, forms=forms or ())


def largest(box: Interval) -> Tensor:
    return torch.maximum(box.lower.abs(), box.upper.abs())


def sizes(case: Case, box: tuple[Interval, ...], values: Tensor) -> Tensor:
    """The size of what each output is added up of, (BATCH, *out)."""
    seen = values.abs().amax(0)
    return seen if case.size is None else torch.maximum(seen, case.size(*(largest(b).double() for b in box)))


def coefficients(out: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A (BATCH, S, *out): positive, negative, mixed, units, sparse, huge, tiny, and of all sizes at once."""
    g = generator(seed + 99)
    shape = (BATCH, 1, *out)

    def draw() -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    unit = torch.zeros(shape, dtype=torch.float64)
    unit.flatten(1)[:, torch.randint(unit[0].numel(), (1,), generator=g)] = 1
    sparse = torch.where(torch.rand(shape, generator=g) < 0.7, 0.0, draw())
    spread = draw() * 10.0 ** (6 * draw())
    rows = [draw().abs(), -draw().abs(), draw(), unit, -unit, sparse, 1e6 * draw(), 1e-12 * draw(), spread]
    return torch.cat([*rows, torch.zeros_like(unit)], 1).to(dtype)


def concrete(step: Step, xs: list[Tensor], xi: Tensor | None = None) -> Tensor:
    """Σ_i A_i·x_i + constant at points x (points, BATCH, *shape) → (points, BATCH, S), in float64.

    `xi`: the points' deviation of the network's input from its centre, (points, BATCH, inputs).
    """
    total = torch.zeros(xs[0].shape[0], 1, 1, dtype=torch.float64)
    total = total if step.constant is None else total + step.constant.double()
    for A, x in zip(step.coefficients, xs, strict=True):
        if A is not None:
            total = total + (A.double() * x.double().unsqueeze(2)).flatten(3).sum(-1)
    if step.start is not None:
        assert xi is not None
        total = total + (step.start * xi.unsqueeze(2)).sum(-1)
    return total


def scale(A: Tensor, step: Step, box: tuple[Interval, ...], size: Tensor) -> Tensor:
    """The size of the terms on both sides of the inequality, (BATCH, S)."""
    total = (A.double().abs() * size.unsqueeze(1)).flatten(2).sum(-1)
    for back, b in zip(step.coefficients, box, strict=True):
        if back is not None:
            total = total + (back.double().abs() * largest(b).double().unsqueeze(1)).flatten(2).sum(-1)
    return total


def backward(op: Op, A: Tensor, box: tuple[Interval, ...], rules: Rules = Rules(), forms: Forms | None = None) -> Step:  # noqa: B008
    return op.relax(context(box, rules, forms)).backward(A)


def check_interval(case: Case, box: tuple[Interval, ...], count: int = 60) -> None:
    """Values lie in the interval."""
    xs = points(box, count)
    values = case.evaluate(*xs)
    assert not values.isnan().any(), f"{case.label}: the op itself gives NaN"
    found = case.op.interval(*box)
    lower, upper = found.lower.double(), found.upper.double()
    slack = TOLERANCE[box[0].lower.dtype] * sizes(case, box, values)
    over = torch.maximum(lower - values, values - upper) - slack
    assert not lower.isnan().any(), f"{case.label} interval: NaN from a good box"
    assert (over <= 0).all(), f"{case.label} interval: a value lies outside by {float(over.max()):.3g}"


def check_backward(
    case: Case, box: tuple[Interval, ...], rules: Rules, *, count: int = 60, descend: bool = True,
    xs: list[Tensor] | None = None, forms: Forms | None = None, seed: int = 0,
) -> None:  # fmt: skip
    """Σ A·f(x) ≥ Σ_i A_i·x_i + constant at points of the boxes, and where descent on the difference leads."""
    dtype = box[0].lower.dtype
    A = coefficients(case.out, seed, dtype)
    step = backward(case.op, A, box, rules, forms)
    for back, dims in zip(step.coefficients, case.shapes, strict=True):
        assert back is None or tuple(back.shape[1:]) == (A.shape[1], *dims), (
            f"{case.label} backward: coefficients' shape"
        )
    free = xs is None
    xs = points(box, count, seed) if xs is None else xs
    values = case.evaluate(*xs)
    slack = TOLERANCE[dtype] * scale(A, step, box, sizes(case, box, values))
    for at in [xs, *([lowest(case.op, A, step, box, xs)] if free and descend and dtype == torch.float64 else [])]:
        values = case.evaluate(*at)
        left = (A.double() * values.unsqueeze(2)).flatten(3).sum(-1)
        right = concrete(step, at)
        assert not right.isnan().any(), f"{case.label} backward: NaN from a good box"
        over = (right - left - slack) / slack.clamp(min=1e-300)
        worst = int(over.amax((0, 1)).argmax())
        assert (right <= left + slack).all(), (
            f"{case.label} backward {rules}: objective {worst} is {float(over.max()):.3g} tolerances above the function"
        )


def lowest(op: Op, A: Tensor, step: Step, box: tuple[Interval, ...], xs: list[Tensor], steps: int = 12) -> list[Tensor]:
    """Points where Σ A·f − Σ A_i·x_i is small for one objective each: signed descent from the points given."""
    S = A.shape[1]
    starts = [x[torch.arange(2 * S) % x.shape[0]].clone() for x in xs]  # two starts for every objective
    which = torch.arange(2 * S) % S
    mine = A[:, which].transpose(0, 1)
    for k in range(steps):
        at = [x.detach().requires_grad_() for x in starts]
        gap = (mine * op.evaluate(*at)).sum()
        for back, x in zip(step.coefficients, at, strict=True):
            if back is not None:
                gap = gap - (back[:, which].transpose(0, 1) * x).sum()
        grads = torch.autograd.grad(gap, at, allow_unused=True)
        for i, (x, g, b) in enumerate(zip(at, grads, box, strict=True)):
            if g is not None:
                move = torch.nan_to_num(g).sign() * (b.upper - b.lower) * 0.6 ** (k + 1)
                starts[i] = (x.detach() - move).clamp(b.lower, b.upper)
    return [x.detach() for x in starts]


def check_parameters(
    case: Case, box: tuple[Interval, ...], rules: Rules, count: int = 30, *,
    forms: Forms | None = None, at: tuple[list[Tensor], Tensor] | None = None,
) -> Relaxation | None:  # fmt: skip
    """Every value of the free parameters is sound, and gradients by them are those of finite differences.

    With forms, `at` are points that share the deviation ξ of the input, and this ξ. None: there are no parameters.
    """
    free = dataclasses.replace(rules, free=True)
    relaxed = case.op.relax(context(box, free, forms))
    names = relaxed.parameters()
    assert set(names) <= set(relaxed.ranges), f"{case.label} parameters: no range"
    A = coefficients(case.out, 17)
    xs, xi = (points(box, count), None) if at is None else at
    values = case.evaluate(*xs)
    left = (A * values.unsqueeze(2)).flatten(3).sum(-1)
    g = generator(18)
    for kind in range(4) if names else ():
        chosen = {}
        for name, start in names.items():
            full = start.expand(BATCH, A.shape[1], *start.shape[2:])
            low, high, _ = relaxed.ranges[name]
            t = torch.rand(full.shape, generator=g, dtype=full.dtype) if kind > 1 else torch.full_like(full, kind)
            chosen[name] = (low + t * (high - low)).requires_grad_()
        step = relaxed.with_parameters(chosen).backward(A)
        slack = TOLERANCE[torch.float64] * scale(A, step, box, sizes(case, box, values))
        right = concrete(step, xs, xi)
        assert (right <= left + slack).all(), f"{case.label} parameters: a value of {list(chosen)} is unsound"
        if kind < 3:
            continue
        tensors = list(chosen.values())
        direction = [torch.rand(t.shape, generator=g, dtype=t.dtype) - 0.5 for t in tensors]
        weight = torch.where(A.flatten(2).abs().amax((0, 2)) < 1e3, 1.0, 0.0)  # the moderate ones
        slopes = torch.autograd.grad((right * weight).sum(), tensors)
        ahead = {n: (t + 1e-6 * d).detach() for (n, t), d in zip(chosen.items(), direction, strict=True)}
        back = {n: (t - 1e-6 * d).detach() for (n, t), d in zip(chosen.items(), direction, strict=True)}
        ends = [(concrete(relaxed.with_parameters(v).backward(A), xs, xi) * weight).sum() for v in (ahead, back)]
        numeric = float(ends[0] - ends[1]) / 2e-6
        exact = sum(float((s * d).sum()) for s, d in zip(slopes, direction, strict=True))
        assert abs(numeric - exact) <= 1e-4 * (1 + abs(exact)), f"{case.label} parameters: the gradient is wrong"
    return relaxed if names else None


def check_exact(case: Case, box: tuple[Interval, ...], rules: Rules) -> None:
    """Over a box that is a point, the bound is the value."""
    A = coefficients(case.out, 3)
    xs = [b.lower[None] for b in box]
    values = case.evaluate(*xs)
    step = backward(case.op, A, box, rules)
    left = (A * values.unsqueeze(2)).flatten(3).sum(-1)
    size = scale(A, step, box, sizes(case, box, values))
    assert ((concrete(step, xs) - left).abs() <= 1e-10 * size).all(), f"{case.label} exact: not the value at a point"
    found = case.op.interval(*box)
    size = sizes(case, box, values)
    for end in found:
        assert ((end - values[0]).abs() <= 1e-11 * size).all(), f"{case.label} exact: the interval of a point"


def check_diagonal(case: Case, box: tuple[Interval, ...], rules: Rules) -> None:
    """Diagonal coefficients give what the dense ones of the same objectives give."""
    out = case.out
    relaxed = case.op.relax(context(box, rules))
    A = coefficients(out, 7)
    for t in range(len(out)):
        kept = case.op.carries_diagonal(t, out)
        if kept is None or all(k is None for k in kept):
            continue
        step = relaxed.backward(A, t)
        full = Coefficients(A, t).dense()
        expected = relaxed.backward(full)
        size = scale(full, expected, box, sizes(case, box, case.evaluate(*points(box, 6))))
        if step.constant is not None or expected.constant is not None:
            assert step.constant is not None, f"{case.label} diagonal {t}: the constant is lost"
            assert expected.constant is not None
            assert tuple(step.constant.shape) == (BATCH, A.shape[1], out[t]), (
                f"{case.label} diagonal {t}: constant's shape"
            )
            off = (step.constant.flatten(1) - expected.constant).abs() - 1e-12 * size
            assert (off <= 0).all(), f"{case.label} diagonal {t}: the constant is off by {float(off.max()):.3g}"
        for got, k, want, dims in zip(step.coefficients, kept, expected.coefficients, case.shapes, strict=True):
            assert (got is None) == (want is None), f"{case.label} diagonal {t}: an input is lost"
            if got is None or want is None:
                continue
            if k is not None:
                assert dims[k] == out[t], f"{case.label} diagonal {t}: carried to a dimension of another size"
            whole = Coefficients(got, k).dense()
            assert whole.shape == want.shape, f"{case.label} diagonal {t}: coefficients' shape"
            most = want.abs().flatten(2).amax(-1).reshape(*want.shape[:2], *[1] * len(dims))
            off = (whole - want).abs() - 1e-12 * most
            assert (off <= 0).all(), f"{case.label} diagonal {t}: coefficients are off by {float(off.max()):.3g}"


def check_batch(case: Case, box: tuple[Interval, ...], rules: Rules) -> None:
    """A batch gives what its singles give."""
    A = coefficients(case.out, 11)
    step = backward(case.op, A, box, rules)
    xs = points(box, 6)
    size = scale(A, step, box, sizes(case, box, case.evaluate(*xs)))
    whole = concrete(step, xs)
    interval = case.op.interval(*box)
    for b in range(BATCH):
        one = tuple(Interval(x.lower[b : b + 1], x.upper[b : b + 1]) for x in box)
        alone = concrete(backward(case.op, A[b : b + 1], one, rules), [x[:, b : b + 1] for x in xs])
        off = (alone - whole[:, b : b + 1]).abs() - 1e-12 * size[b : b + 1]
        assert (off <= 0).all(), f"{case.label} batch: differs by {float(off.max()):.3g}"
        for x, y in zip(case.op.interval(*one), interval, strict=True):
            assert ((x[0] - y[b]).abs() <= 1e-12 * sizes(case, box, case.evaluate(*xs))[b]).all(), f"{case.label} batch"


def broken(box: tuple[Interval, ...], seed: int) -> Iterator[tuple[tuple[Interval, ...], list[Tensor]]]:
    """The boxes with one NaN, in one end or both of one entry; and a point with NaN there."""
    g = generator(seed)
    for i, b in enumerate(box):
        at = int(torch.randint(b.lower[0].numel(), (1,), generator=g))
        for ends in ((0,), (1,), (0, 1)):
            bad = [x.clone() for x in b]
            for end in ends:
                bad[end].flatten(1)[:, at] = torch.nan
            x = [other.lower.clone() for other in box]
            x[i].flatten(1)[:, at] = torch.nan
            yield (*box[:i], Interval(*bad), *box[i + 1 :]), x


def check_nan(case: Case, box: tuple[Interval, ...], rules: Rules, seed: int = 0) -> None:
    """NaN in a box: no output that depends on it has finite ends, and no objective on those has a finite bound."""
    for bad, x in broken(box, seed):
        depends = case.evaluate(*x).isnan()  # (BATCH, *out)
        found = case.op.interval(*bad)
        quiet = depends & found.lower.isfinite() & found.upper.isfinite()
        assert not quiet.any(), f"{case.label} nan: a finite interval from a NaN box"
        if case.op.affine or not depends.any():
            continue
        A = depends.unsqueeze(1).double() * torch.tensor([1.0, -1.0]).reshape(1, 2, *[1] * len(case.out))
        step = backward(case.op, A, bad, rules)
        total = step.constant
        assert total is not None, f"{case.label} nan: no constant"
        for back in step.coefficients:
            if back is not None:
                total = total + 0 * back.flatten(2).sum(-1)
        good = ~depends.flatten(1).any(1).unsqueeze(1) | total.isnan() | (total == -torch.inf)
        assert good.all(), f"{case.label} nan: a finite bound from a NaN box"


def check_float32(case: Case, box: tuple[Interval, ...], rules: Rules) -> None:
    """float32 agrees with float64 on boxes that are exact in both, to single precision."""
    A = coefficients(case.out, 13, torch.float32)[:, :6]  # not those of all sizes at once
    narrow = tuple(Interval(b.lower.float(), b.upper.float()) for b in box)
    wide = tuple(Interval(b.lower.double(), b.upper.double()) for b in narrow)
    op32 = moved(case.op, torch.float32, torch.device("cpu"))
    op64 = moved(op32, torch.float64, torch.device("cpu"))
    single, double = backward(op32, A, narrow, rules), backward(op64, A.double(), wide, rules)
    xs = points(wide, 6)
    size = scale(A, double, wide, sizes(case, wide, case.evaluate(*xs)))
    off = (concrete(single, xs) - concrete(double, xs)).abs() - 1e-4 * size
    assert (off <= 0).all(), f"{case.label} float32: differs by {float(off.max()):.3g}"


def check_case(case: Case, kinds: tuple[str, ...], *, seed: int = 0, count: int = 40, descend: bool = True) -> None:
    """The whole contract on some kinds of boxes."""
    for kind in kinds:
        box = boxes(case, kind, seed)
        check_interval(case, box, count)
        for rules in case.rules:
            check_backward(case, box, rules, count=count, descend=descend, seed=seed)
            if kind == "point":
                check_exact(case, box, rules)
            if kind in {"ordinary", "mixed"}:
                check_diagonal(case, box, rules)
                check_batch(case, box, rules)
                check_nan(case, box, rules, seed)
