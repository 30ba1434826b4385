"""simplify never changes a value: every rule on what it is for, on what it must leave alone, and on random graphs."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.masks import check_masks, move_masks
from vertex_softmax.graph.rewrite import rewrite
from vertex_softmax.graph.simplify import RULES, simplify
from vertex_softmax.ops import elementwise


def random_tensor(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def const(value: object) -> Node:
    return build.constant(torch.as_tensor(value, dtype=torch.float64))


def kinds(make: Callable[[Node], Node], *dims: int, after: Callable[[Graph], Graph] = simplify) -> Counter[str]:
    """The ops of the simplified graph of a function, which is checked to be the same function."""
    x = build.source(dims)
    graph = Graph(x, make(x))
    simple = after(graph)
    points = random_tensor(4, *dims, seed=1)
    torch.testing.assert_close(simple.evaluate(points), graph.evaluate(points), rtol=1e-12, atol=1e-12)
    assert simple.output.shape == graph.output.shape
    assert after(simple) is simple
    return Counter(type(node.op).__name__ for node in simple.nodes() if node is not simple.input)


def activate(op: object, x: Node) -> Node:
    return build.apply(op, x, name="f")  # type: ignore[arg-type]


# Affine rules --------------------------------------------------------------------------------------------------------


def test_identities_go() -> None:
    def make(x: Node) -> Node:
        y = build.multiply(build.add(x, const(0.0), "a"), const(torch.ones(4)), "b")
        y = build.reshape(build.reshape(y, (12,), "c"), (3, 4), "d")
        return build.permute(build.permute(y, (1, 0), "e"), (1, 0), "f")

    assert kinds(make, 3, 4) == {}


def test_consecutive_scales_shifts_and_linears_merge() -> None:
    w, v = random_tensor(4, 6), random_tensor(6, 5)

    def make(x: Node) -> Node:
        y = build.multiply(build.add(x, const(random_tensor(4)), "a"), const(2.0), "b")
        y = build.add(build.affine(y, w.mT, None, "c"), const(random_tensor(6)), "d")
        return build.multiply(build.affine(y, v.mT, random_tensor(5), "e"), const(random_tensor(5)), "f")

    # no sum of products is made, since it would be rounded
    assert kinds(make, 3, 4) == {"Shift": 1, "Linear": 2}


def test_what_is_used_elsewhere_stays() -> None:
    def make(x: Node) -> Node:
        y = build.affine(x, random_tensor(4, 4), None, "a")
        return build.add(build.multiply(y, const(random_tensor(4)), "b"), activate(elementwise.Relu(), y), "c")

    assert kinds(make, 3, 4) == {"Linear": 1, "Scale": 1, "Relu": 1, "Add": 1}


def test_batch_norm_goes_into_linear_over_a_transpose() -> None:
    factor, offset = random_tensor(4, 1), random_tensor(4, 1, seed=1)

    def before(x: Node) -> Node:
        y = build.transpose(x, 1, 2, "t")
        y = build.transpose(build.add(build.multiply(y, const(factor), "m"), const(offset), "a"), 1, 2, "t")
        q, k = (build.affine(y, random_tensor(5, 4, seed=s), None, "l") for s in (0, 3))
        return build.add(q, k, "s")

    def after(x: Node) -> Node:
        y = build.transpose(build.affine(activate(elementwise.Relu(), x), random_tensor(4, 4), None, "l"), 1, 2, "t")
        return build.add(build.multiply(y, const(factor), "m"), const(offset), "a")

    assert kinds(before, 1, 3, 4) == {"Permute": 2, "Scale": 1, "Shift": 1, "Linear": 2, "Add": 1}
    assert kinds(after, 1, 3, 4) == {"Relu": 1, "Linear": 1, "Permute": 1}


def test_a_scale_per_token_stays() -> None:
    def make(x: Node) -> Node:
        return build.multiply(build.affine(x, random_tensor(4, 4), None, "l"), const(random_tensor(3, 1)), "m")

    assert kinds(make, 3, 4) == {"Linear": 1, "Scale": 1}


def test_batch_norm_goes_into_a_convolution() -> None:
    def make(x: Node) -> Node:
        y = build.convolution(x, random_tensor(3, 2, 3, 3), None, (1, 1), (1, 1), (1, 1), 1, "c")
        return build.add(build.multiply(y, const(random_tensor(3, 1, 1)), "m"), const(random_tensor(3, 1, 1)), "a")

    assert kinds(make, 1, 2, 4, 4) == {"Convolution": 1}


def test_packed_projections_are_unpacked() -> None:
    def packed(x: Node) -> Node:
        y = build.affine(x, random_tensor(12, 4), random_tensor(12), "qkv")
        # (tokens, heads, 3, d) → (3, heads, tokens, d)
        y = build.permute(build.reshape(y, (3, 2, 3, 2), "v"), (2, 1, 0, 3), "p")
        q, k, v = (build.select(y, 0, i, "s") for i in range(3))
        return build.matmul(build.matmul(q, build.transpose(k, 1, 2, "t"), "m"), v, "m")

    found = kinds(packed, 3, 4)
    assert found["Linear"] == 3
    assert not found["Slice"]


def test_the_scale_of_scores_goes_into_the_queries() -> None:
    def make(x: Node) -> Node:
        made = (build.affine(x, random_tensor(4, 4, seed=s), None, "l") for s in (0, 1))
        q, k = (build.transpose(build.reshape(y, (3, 2, 2), "r"), 0, 1, "t") for y in made)
        return build.multiply(build.matmul(q, build.transpose(k, 1, 2, "t"), "m"), const(0.7), "s")

    assert "Scale" not in kinds(make, 3, 4)


# What was written out ------------------------------------------------------------------------------------------------


def erf_gelu(x: Node, c: float, one: float = 1.0) -> Node:
    gate = build.add(activate(elementwise.Erf(), build.multiply(x, const(c), "c")), const(one), "1")
    return build.multiply(build.multiply(x, const(0.5), "h"), gate, "g")


def test_gelu_with_any_constant_is_exact() -> None:
    assert kinds(lambda x: erf_gelu(x, 1 / math.sqrt(2)), 3, 4) == {"Gelu": 1, "Scale": 2}
    assert kinds(lambda x: erf_gelu(x, float(torch.tensor(1 / math.sqrt(2)))), 3, 4) == {"Gelu": 1, "Scale": 2}
    assert kinds(lambda x: erf_gelu(x, -3.0), 3, 4) == {"Gelu": 1, "Scale": 2}


def test_not_quite_gelu() -> None:
    assert "Gelu" not in kinds(lambda x: erf_gelu(x, 1 / math.sqrt(2), one=1.001), 3, 4)

    def other(x: Node) -> Node:
        y = activate(elementwise.Relu(), x)
        gate = build.add(activate(elementwise.Erf(), x), const(1.0), "1")
        return build.multiply(y, gate, "g")

    assert "Gelu" not in kinds(other, 3, 4)

    def cubic(x: Node, third: float) -> Node:
        cube = build.multiply(x, activate(elementwise.Square(), x), "3")
        inner = build.add(x, build.multiply(cube, const(third), "m"), "a")
        tanh = activate(elementwise.Tanh(), build.multiply(inner, const(math.sqrt(2 / math.pi)), "s"))
        return build.multiply(x, build.add(tanh, const(1.0), "1"), "g")

    assert "Gelu" in kinds(lambda x: cubic(x, 0.044715), 3, 4)
    assert "Gelu" not in kinds(lambda x: cubic(x, 0.0447), 3, 4)

    def squared(x: Node, second: float, gate: elementwise.Elementwise) -> Node:
        inner = build.add(x, build.multiply(activate(elementwise.Square(), x), const(second), "m"), "a")
        return build.multiply(x, build.add(activate(gate, inner), const(1.0), "1"), "g")

    assert "Gelu" in kinds(lambda x: squared(x, 0.0, elementwise.Erf()), 3, 4)
    assert "Gelu" not in kinds(lambda x: squared(x, 0.5, elementwise.Erf()), 3, 4)


def sigmoid_by_hand(x: Node) -> Node:
    return activate(elementwise.Reciprocal(), build.add(activate(elementwise.Exp(), x), const(1.0), "1"))


def test_silu_and_sigmoid() -> None:
    assert kinds(sigmoid_by_hand, 3, 4) == {"Sigmoid": 1, "Scale": 1}

    def make(x: Node) -> Node:
        e = activate(elementwise.Exp(), build.negate(x, "n"))
        return build.divide(x, build.add(const(1.0), e, "a"), "d")

    assert kinds(make, 3, 4) == {"Silu": 1}
    assert kinds(lambda x: build.multiply(x, activate(elementwise.Sigmoid(), x), "m"), 3, 4) == {"Silu": 1}


def by_exp(x: Node, total: Callable[[Node], Node]) -> Node:
    e = activate(elementwise.Exp(), x)
    return build.divide(e, total(e), "d")


def less_maximum(x: Node, dim: int) -> Node:
    return build.subtract(x, build.maximum(x, [dim], True, "m"), "s")


def test_softmax_written_out() -> None:
    assert kinds(lambda x: by_exp(x, lambda e: build.total(e, [-1], True, "s")), 4, 4) == {"Softmax": 1}
    assert kinds(lambda x: by_exp(x, lambda e: build.total(e, [0], False, "s")), 4, 4) == {"Softmax": 1, "Permute": 2}
    assert kinds(lambda x: by_exp(less_maximum(x, -1), lambda e: build.total(e, [-1], True, "s")), 4, 4) == {
        "Softmax": 1
    }


def test_not_quite_softmax() -> None:
    # the sums of rows, broadcast along columns
    assert "Softmax" not in kinds(lambda x: by_exp(x, lambda e: build.total(e, [-1], False, "s")), 4, 4)
    assert "Softmax" not in kinds(lambda x: by_exp(x, lambda e: build.total(e, None, True, "s")), 4, 4)
    # less the maximum of each column
    assert kinds(lambda x: by_exp(less_maximum(x, 0), lambda e: build.total(e, [-1], True, "s")), 4, 4)["Maximum"] == 1


def norm(x: Node, dims: list[int], *, keepdim: bool = True, count: float | None = None, eps: float = 1e-5) -> Node:
    y = build.subtract(x, build.mean(x, dims, keepdim, "m"), "c")
    squares = build.total(activate(elementwise.Square(), y), dims, keepdim, "v")
    n = math.prod(x.shape[d] for d in dims) if count is None else count
    root = activate(elementwise.Sqrt(), build.add(build.divide(squares, const(n), "d"), const(eps), "e"))
    return build.divide(y, root, "n")


def test_norms_written_out() -> None:
    assert kinds(lambda x: norm(x, [-1]), 4, 4) == {"Linear": 1, "Normalize": 1}
    assert kinds(lambda x: norm(x, [-1], count=3), 4, 4) == {"Linear": 1, "Normalize": 1, "Scale": 1}
    assert kinds(lambda x: norm(x, [-1, -2]), 2, 4, 4) == {"Reshape": 2, "Linear": 1, "Normalize": 1}
    assert kinds(lambda x: norm(x, [0]), 4, 4)["Normalize"] == 1


def test_not_quite_norms() -> None:
    assert not {"Normalize", "Linear"} & set(kinds(lambda x: norm(x, [-1], keepdim=False), 4, 4))
    assert "Normalize" not in kinds(lambda x: norm(x, [-1], eps=-1e-5), 4, 4)

    def other(x: Node) -> Node:
        total = build.total(activate(elementwise.Square(), activate(elementwise.Relu(), x)), [-1], True, "v")
        return build.multiply(x, activate(elementwise.Rsqrt(), build.add(total, const(1.0), "e")), "n")

    assert "Normalize" not in kinds(other, 4, 4)


# Attention -----------------------------------------------------------------------------------------------------------


def scores(x: Node) -> Node:
    return build.matmul(build.affine(x, random_tensor(4, 4), None, "q"), build.transpose(x, -1, -2, "t"), "s")


def test_attention_however_spelled() -> None:
    causal = torch.ones(3, 3).triu(1) * torch.finfo(torch.float32).min

    def masked(x: Node) -> Node:
        return build.matmul(build.softmax(build.add(scores(x), const(causal), "m"), -1, "p"), x, "v")

    def transposed(x: Node) -> Node:
        p = build.softmax(build.transpose(scores(x), -1, -2, "t"), -2, "p")
        return build.transpose(build.matmul(build.transpose(x, -1, -2, "t"), p, "v"), -1, -2, "t")

    def scaled(x: Node) -> Node:
        p = build.multiply(build.softmax(scores(x), -1, "p"), const(0.5), "m")
        return build.matmul(build.reshape(p, (2, 1, 3, 3), "r"), build.reshape(x, (2, 1, 3, 4), "r"), "v")

    def sliced(x: Node) -> Node:
        return build.matmul(build.slice_(build.softmax(scores(x), -1, "p"), 1, 0, 1, 1, "c"), x, "v")

    for make in (masked, transposed, scaled, sliced):
        found = kinds(make, 2, 3, 4)
        assert found["Attention"] == 1
        assert not found["Softmax"]
        assert found["MatMul"] == 1


def test_weights_along_another_dimension_are_no_attention() -> None:
    def make(x: Node) -> Node:
        return build.matmul(build.softmax(scores(x), -2, "p"), x, "v")

    assert kinds(make, 2, 4, 4)["Attention"] == 0
    assert kinds(lambda x: build.softmax(x, -1, "p"), 4, 4) == {"Softmax": 1}


def test_masks_move_over_what_keeps_them_masks() -> None:
    mask = torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf) + 0.25

    def make(x: Node) -> Node:
        y = build.add(scores(x), const(mask), "m")
        y = build.multiply(build.reshape(y, (2, 1, 3, 3), "r"), const(0.5), "s")
        return build.softmax(build.transpose(y, 0, 1, "t"), -1, "p")

    assert kinds(make, 2, 3, 4, after=move_masks)["Softmax"] == 1
    x = build.source((2, 3, 4))
    moved = move_masks(Graph(x, make(x)))
    check_masks(moved)
    assert torch.equal(moved.output.op.mask[0, 0], torch.ones(3, 3).triu(1).bool())  # type: ignore[attr-defined]


def test_a_mask_that_is_added_joins_the_one_that_is_there() -> None:
    added = torch.ones(3, 3).triu(1).bool()
    there = torch.tensor([[False, False, False], [True, False, False], [False, True, False]])

    def make(x: Node) -> Node:
        y = build.add(scores(x), const(torch.zeros(3, 3).masked_fill(added, -math.inf)), "m")
        return build.softmax(y, -1, "p", there)

    assert kinds(make, 2, 3, 4, after=move_masks)["Softmax"] == 1
    x = build.source((2, 3, 4))
    moved = move_masks(Graph(x, make(x)))
    assert torch.equal(moved.output.op.mask[0], added | there)  # type: ignore[attr-defined]


@pytest.mark.parametrize("factor", [-1.0, 0.0, 1e-35])
def test_masks_that_may_count_again_are_refused(factor: float) -> None:
    x = build.source((3, 3))
    masked = build.add(x, const(torch.full((3, 3), -1e31).triu(1)), "m")
    graph = move_masks(Graph(x, build.softmax(build.multiply(masked, const(factor), "s"), -1, "p")))
    with pytest.raises(UnsupportedModelError, match="masks are understood"):
        check_masks(graph)


# Random graphs -------------------------------------------------------------------------------------------------------


SMOOTH = [elementwise.Tanh(), elementwise.Relu(), elementwise.Gelu(), elementwise.Sigmoid()]


class Maker:
    """Random graphs of the ops that rules look for, right and wrong ones alike."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.x = build.source(self.random.choice([(1, 4, 4), (1, 3, 4), (2, 2, 2), (4, 4)]))
        self.pool = [self.x]

    def tensor(self, *dims: int) -> Tensor:
        return random_tensor(*dims, seed=self.random.randrange(10**6)) * 0.5

    def factor(self, x: Node) -> Tensor:
        n = x.shape[-1]
        thin = [1 if self.random.random() < 0.6 else m for m in x.shape]
        plain = [torch.ones(()), torch.zeros(()), -torch.ones(()), torch.tensor(0.5)]
        return self.random.choice([*plain, self.tensor(n), self.tensor(*x.shape), self.tensor(*thin)]).double()

    def pick(self) -> Node:
        return self.pool[-1] if self.random.random() < 0.7 else self.random.choice(self.pool)

    def step(self) -> None:
        x = self.pick()
        x = build.reshape(x, (1, *x.shape), "row") if len(x.shape) == 1 else x
        dim = self.random.randrange(len(x.shape))
        makers: list[Callable[[], Node]] = [
            lambda: activate(self.random.choice(SMOOTH), x),
            lambda: build.multiply(x, build.constant(self.factor(x)), "scale"),
            lambda: build.add(x, build.constant(self.factor(x)), "shift"),
            lambda: build.affine(x, self.tensor(self.random.choice([2, 4, 8]), x.shape[-1]), None, "linear"),
            lambda: build.multiply(scores(build.affine(x, self.tensor(4, x.shape[-1]), None, "k")), const(0.7), "s"),
            lambda: self.pooling(x),
            lambda: self.turned(x),
            lambda: build.subtract(build.mean(self.square(x), [dim], True, "m"), self.squared_mean(x), "v"),
            lambda: sigmoid_by_hand(activate(elementwise.Tanh(), x)),
            lambda: self.filled(x),
            lambda: build.permute(x, self.random.sample(range(len(x.shape)), len(x.shape)), "permute"),
            lambda: build.reshape(x, self.shape(math.prod(x.shape)), "reshape"),
            lambda: build.slice_(x, dim, 0, max(1, x.shape[dim] // 2), 1, "slice"),
            lambda: build.take(x, dim, torch.tensor([x.shape[dim] - 1, 0, 0]), "take"),
            lambda: build.centre(x, [dim], "centre"),
            lambda: norm(activate(elementwise.Tanh(), x), [dim], keepdim=self.keep(x), eps=1.0),
            lambda: by_exp(activate(elementwise.Tanh(), x), lambda e: build.total(e, [dim], self.keep(x), "sum")),
            lambda: build.softmax(x, dim, "softmax"),
            lambda: build.matmul(build.softmax(x, dim, "p"), build.transpose(x, -1, -2, "t"), "attention"),
            lambda: build.matmul(build.transpose(x, -1, -2, "t"), build.softmax(x, dim, "p"), "attention"),
            lambda: build.softmax(build.add(x, build.constant(self.minus_infinity(x)), "mask"), -1, "softmax"),
            lambda: erf_gelu(activate(elementwise.Tanh(), x), self.random.choice([0.7071, 1.0, -0.5])),
            lambda: build.multiply(x, activate(elementwise.Sigmoid(), build.multiply(x, const(1.5), "k")), "silu"),
            lambda: build.add(x, self.pick_like(x), "add"),
            lambda: build.subtract(x, self.pick_like(x), "subtract"),
            lambda: build.multiply(activate(elementwise.Tanh(), x), self.pick_like(x), "multiply"),
            lambda: build.mean(x, [dim], True, "mean"),
            lambda: build.maximum(x, [dim], True, "max"),
            lambda: build.concat([x, self.pick_like(x)], dim, "concat"),
        ]
        y = self.random.choice(makers)()
        if math.prod(y.shape) <= 256 and y.shape:
            self.pool.append(y)

    def keep(self, x: Node) -> bool:
        return len(set(x.shape)) > 1 or self.random.random() < 0.7

    def pooling(self, x: Node) -> Node:
        a, b = (self.random.randrange(len(x.shape)) for _ in range(2))
        weights = build.softmax(build.affine(x, self.tensor(1, x.shape[-1]), None, "score"), a, "p")
        return build.total(build.multiply(weights, self.pick_like(x), "m"), [b], True, "pooled")

    def turned(self, x: Node) -> Node:
        """Permute, dimensions of size 1 added or dropped, Permute."""
        for _ in range(3):
            x = build.permute(x, self.random.sample(range(len(x.shape)), len(x.shape)), "turn")
            dims = [n for n in x.shape if n != 1]
            for _ in range(self.random.randrange(2)):
                dims.insert(self.random.randrange(len(dims) + 1), 1)
            x = build.reshape(x, dims or [1], "ones")
        return x

    def square(self, x: Node) -> Node:
        return activate(elementwise.Square(), x)

    def squared_mean(self, x: Node) -> Node:
        return self.square(build.mean(x, [self.random.randrange(len(x.shape))], True, "mean"))

    def filled(self, x: Node) -> Node:
        """masked_fill(x, −∞) before a softmax, the mask along it or (wrongly) along another dimension."""
        keep = torch.ones(x.shape, dtype=torch.float64)
        if x.shape[-1] > 1:
            keep[..., self.random.randrange(x.shape[-1])] = 0.0
        fill = torch.zeros_like(keep).masked_fill(keep == 0, self.random.choice([-math.inf, -1e31, -2.0]))
        y = build.add(build.multiply(x, build.constant(keep), "keep"), build.constant(fill), "fill")
        return build.softmax(build.multiply(y, const(self.random.choice([0.5, 1.0])), "s"), -1, "p")

    def minus_infinity(self, x: Node) -> Tensor:
        mask = torch.zeros(x.shape, dtype=torch.float64)
        if x.shape[-1] > 1:
            mask[..., self.random.randrange(x.shape[-1])] = self.random.choice([-math.inf, -1e38, -3.0])
        return mask

    def pick_like(self, x: Node) -> Node:
        same = [n for n in self.pool if n.shape == x.shape]
        return self.random.choice(same or [x])

    def shape(self, count: int) -> list[int]:
        dims = []
        for _ in range(self.random.randrange(1, 3)):
            n = self.random.choice([d for d in (1, 2, 4, 3) if count % d == 0])
            dims.append(n)
            count //= n
        return [*dims, count]


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_keep_their_values(seed: int) -> None:
    for part in range(25):
        maker = Maker(1000 * seed + part)
        for _ in range(maker.random.randrange(3, 14)):
            maker.step()
        graph = Graph(maker.x, maker.pool[-1])
        x = random_tensor(3, *graph.input.shape, seed=part)
        truth = graph.evaluate(x)
        if not bool(truth.isfinite().all()) or float(truth.abs().max()) > 1e6:
            continue
        simple = simplify(graph)
        torch.testing.assert_close(simple.evaluate(x), truth, rtol=1e-10, atol=1e-10)


def test_the_random_graphs_use_every_rule() -> None:
    used: set[str] = set()
    for seed in range(250):
        maker = Maker(seed)
        for _ in range(10):
            maker.step()
        graph = Graph(maker.x, maker.pool[-1])
        for _ in range(3):
            for rule in RULES:
                new = rewrite(graph, rule)
                used |= {rule.__name__} if new is not graph else set()
                graph = new
    assert {rule.__name__ for rule in RULES} - used <= {"fold"}
