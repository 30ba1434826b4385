"""Faults in balls, in affine forms over them, in the ball rule, in products of their unknowns; and in selections."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "ops/attention/ball_row.py",
        "ops/test_ball_row.py",
        {
            "balls: the curve of e^t without its cubic part": ("_curve", "0.5 + small / 6 * small.exp()", "0.5"),
            "balls: half of the curve for wide scores": (
                "_curve",
                "(torch.expm1(large) - large) / large.square()",
                "(torch.expm1(large) - large) / large.square() / 2",
            ),
            "balls: values count as if they did not move": (
                "BallRow.backward",
                "(self._reach(h) - W).clamp(min=0)",
                "(-W).clamp(min=0)",
            ),
            "balls: what is of third order is left out": (
                "BallRow.backward",
                "n + self._reach(slope.flatten(-2)) * beside(self.third)",
                "n",
            ),
            "balls: scores are not centred": (
                "ball_row",
                "torch.diag_embed(lengths) - (weights * lengths).unsqueeze(-2)",
                "torch.diag_embed(lengths)",
            ),
            "balls: what is across the scores is left out": (
                "BallRow._most_over_euclidean",
                "T.mT * (weights * across).unsqueeze(-2)",
                "0 * T.mT * (weights * across).unsqueeze(-2)",
            ),
            "balls: the mixed part with the other sign": (
                "BallRow._most_over_euclidean",
                "convex - (mixed + mixed.mT) / 2",
                "convex + (mixed + mixed.mT) / 2",
            ),
            "balls: cross-polytope without mixed terms": (
                "BallRow._most_over_cross",
                "(convex.abs() + mixed).flatten(-2).amax(-1)",
                "convex.abs().flatten(-2).amax(-1)",
            ),
            "balls: keys that share inputs": (
                "ball_row",
                "keys > MOST_KEYS or bool((used.sum(0) > 1).any())",
                "keys > MOST_KEYS",
            ),
            "balls: a product of balls counts as one": (
                "ball_row",
                "unit.cube or (unit.of is not None and bool((unit.of != unit.of[0]).any()))",
                "unit.cube",
            ),
            "balls: slopes are in units of the ball": (
                "BallRow._on_inputs",
                "found / torch.where(self.radius > 0, self.radius, torch.ones_like(self.radius)).unsqueeze(1)",
                "found",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/forms.py",
        "ops/test_unit_sets.py",
        {
            "balls: rows with common inputs share the radius": ("_share", "same & ~common", "same"),
            "balls: rows of different balls share a radius": ("_share", "same & ~common", "~common"),
            "balls: an eighth over cross-polytopes": (
                "_share",
                "0.5 if left.unit.ball is UnitBall.EUCLIDEAN else 0.25",
                "0.5 if left.unit.ball is UnitBall.EUCLIDEAN else 0.125",
            ),
            "balls: a quarter over Euclidean balls": (
                "_share",
                "0.5 if left.unit.ball is UnitBall.EUCLIDEAN else 0.25",
                "0.25",
            ),
            "balls: functionals without the radii": (
                "RowForm.columns",
                "self.matrix * self.radius.unsqueeze(-2)",
                "self.matrix * self.radius.unsqueeze(-2).square()",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/unit_sets.py",
        "ops/test_unit_sets.py",
        {
            "balls: only one of several balls": (
                "UnitSet.reach",
                "total + torch.linalg.vector_norm(own, ord=order, dim=-1)",
                "torch.linalg.vector_norm(own, ord=order, dim=-1)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "sets/lp_region.py",
        "sets/test_lp_ball.py",
        {
            "balls: the way of the other side": (
                "LpRegion._moves",
                "torch.where(b > 0, down, up)",
                "torch.where(b > 0, up, down)",
            ),
            "balls: members are not found again": ("LpRegion.rearranged", "place[self.members]", "self.members"),
            "balls: the best of several balls alone": (
                "LpRegion.support",
                "_farthest(b.abs(), way, self.norm)[0].sum(-1)",
                "_farthest(b.abs(), way, self.norm)[0].amax(-1)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/pairs.py",
        "bounds/test_second_order_balls.py",
        {
            "balls: half of the pairs": (
                "_ball_spectral",
                "matrix[..., second, first] = entries[..., : len(first)] / math.sqrt(2)",
                "matrix[..., second, first] = 0.0",
            ),
            "balls: no squares": (
                "_ball_spectral",
                "matrix.diagonal(dim1=-2, dim2=-1).copy_(entries[..., len(first) :])",
                "matrix.diagonal(dim1=-2, dim2=-1).copy_(0 * entries[..., len(first) :])",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/second_order.py",
        "bounds/test_second_order_balls.py",
        {
            "balls: pairs without their root": (
                "with_products",
                "torch.cat([p / math.sqrt(2), q], 1)",
                "torch.cat([p / 2, q], 1)",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/liveness.py",
        "graph/test_liveness.py",
        {
            "selections: what is read elsewhere is selected too": (
                "selected_first",
                "not 0 < len(index) < op.size or not view.sole(base)",
                "not 0 < len(index) < op.size",
            ),
            "selections: masks keep all rows": ("_masked", "part.of_fields(op, rank)", "op"),
            "selections: a permuted dimension": ("_through_permute", "part.along(op.dims[part.dim])", "part"),
            "selections: normalised numbers": ("_through_normalize", "part.dim < rank - op.count", "True"),
            "selections: rows of a product from both": (
                "_through_product",
                "return op, (part.of(left), right)",
                "return op, (part.of(left), part.of(right))",
            ),
            "selections: rows of attention from the values": (
                "_through_attention",
                "values if part.dim == rank - 2 else part.of(values)",
                "part.of(values)",
            ),
        },
    ),
]
